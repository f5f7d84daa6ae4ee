"""A chat, a stream, a tool and a schema, by litellm; the argument is the base URL."""

import json
import sys

import litellm

common = {
    "model": "openai/tiny", "api_base": sys.argv[1], "api_key": "none", "max_tokens": 300, "temperature": 0, "seed": 1,
    "messages": [{"role": "user", "content": "hi"}],
}  # fmt: skip
schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
tools = [{"type": "function", "function": {"name": "sub", "parameters": schema}}]
assert isinstance(litellm.completion(**{**common, "max_tokens": 8}).choices[0].message.content, str)
assert len(list(litellm.completion(**{**common, "max_tokens": 8}, stream=True))) > 1
choice = litellm.completion(
    **common, tools=tools, tool_choice={"type": "function", "function": {"name": "sub"}}
).choices[0]
assert choice.finish_reason == "tool_calls", choice
assert "a" in json.loads(choice.message.tool_calls[0].function.arguments)
form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
assert "a" in json.loads(litellm.completion(**common, response_format=form).choices[0].message.content)
print("ok")
