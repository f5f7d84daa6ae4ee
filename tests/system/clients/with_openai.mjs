// A chat, a stream, a tool and a schema, by the openai package of Node; the argument is the base URL.
import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const common = { model: "tiny", max_tokens: 300, temperature: 0, seed: 1, messages: [{ role: "user", content: "hi" }] };
const schema = {
  type: "object", properties: { a: { type: "integer", minimum: 0, maximum: 9 } }, required: ["a"], additionalProperties: false,
};

const whole = await client.chat.completions.create({ ...common, max_tokens: 8 });
assert.equal(typeof whole.choices[0].message.content, "string");
let text = "";
for await (const chunk of await client.chat.completions.create({ ...common, max_tokens: 8, stream: true })) {
  text += chunk.choices[0].delta.content ?? "";
}
assert.equal(text, whole.choices[0].message.content);
const tools = [{ type: "function", function: { name: "sub", parameters: schema } }];
const called = await client.chat.completions.create({ ...common, tools, tool_choice: "required", parallel_tool_calls: false });
assert.equal(called.choices[0].finish_reason, "tool_calls");
assert.equal(typeof JSON.parse(called.choices[0].message.tool_calls[0].function.arguments).a, "number");
const form = { type: "json_schema", json_schema: { name: "x", schema } };
const formed = await client.chat.completions.create({ ...common, response_format: form });
assert.equal(typeof JSON.parse(formed.choices[0].message.content).a, "number");
await assert.rejects(client.chat.completions.create({ ...common, model: "none" }), OpenAI.NotFoundError);
console.log("ok");
