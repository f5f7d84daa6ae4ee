"""Answers in a form, from a real daemon with a tiny random model, by the openai package."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.system

TINY_MODEL = Path(__file__).resolve().parent / "tiny_qwen2.py"
CLIENTS = Path(__file__).resolve().parent / "clients"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "kind", "n"],
    "additionalProperties": False,
}  # fmt: skip
MESSAGES: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def client(tiny_daemon: Callable[[int, str], AbstractContextManager[int]]) -> Iterator[openai.OpenAI]:
    """The package, connected to a daemon."""
    with (
        tiny_daemon(1024, "max_num_blocks: 128") as port,
        openai.OpenAI(api_key="none", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as made,
    ):
        yield made


def ask(client: openai.OpenAI, **body: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=700, seed=3, **body)


def as_schema(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def fits(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"ok", "kind", "n"} and value["ok"] in (True, False) and value["kind"] in ("a", "b")


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_schema_holds_the_answer(client: openai.OpenAI, temperature: float) -> None:
    """Random weights write JSON of the schema, in each of two samples, greedy and drawn, and stop by themselves."""
    answer = ask(client, response_format=as_schema(SCHEMA), temperature=temperature, n=2)

    assert [choice.finish_reason for choice in answer.choices] == ["stop", "stop"]
    assert all(fits(choice.message.content) for choice in answer.choices)


def test_stream_is_the_same_text(client: openai.OpenAI) -> None:
    """Streamed and whole answers of a form are the same text."""
    whole = ask(client, response_format=as_schema(SCHEMA)).choices[0].message.content
    chunks = list(ask(client, response_format=as_schema(SCHEMA), stream=True))

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


@pytest.mark.parametrize(
    ("extra", "allowed"),
    [
        ({"guided_choice": ["left", "right"]}, ("left", "right")),
        ({"structured_outputs": {"choice": ["x (y)"]}}, ("x (y)",)),
        ({"guided_regex": "[01]{4}"}, tuple(f"{number:04b}" for number in range(16))),
    ],
    ids=["choice", "structured_outputs", "regex"],
)
def test_vllm_s_parameters(client: openai.OpenAI, extra: dict[str, Any], allowed: tuple[str, ...]) -> None:
    """Choice and regular expression hold the answer."""
    assert ask(client, extra_body=extra).choices[0].message.content in allowed


@pytest.mark.parametrize(
    "schema",
    [{"type": "not-a-type"}, {"$ref": "#"}, {"type": "string", "pattern": "(?=x)y"}],
    ids=["B81", "B82-ref", "B82-pattern"],
)
@pytest.mark.parametrize("stream", [False, True])
def test_b81_b82_bad_schema_fails_its_request_alone(client: openai.OpenAI, schema: Any, stream: bool) -> None:
    """B81, B82: a schema that cannot be compiled is a 400 with the reason, streamed or not, and the next request is served."""
    with pytest.raises(openai.BadRequestError, match="response_format") as caught:
        ask(client, response_format=as_schema(schema), stream=stream)

    assert caught.value.param == "response_format"
    assert ask(client, extra_body={"guided_choice": ["alive"]}).choices[0].message.content == "alive"


def test_b84_json_object_cut_off(client: openai.OpenAI) -> None:
    """B84: an object that max_tokens cuts off ends with `length`, which is no error."""
    quotes = {str(token_id): 100 for token_id in client_ids(client, '"')}
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=3, response_format={"type": "json_object"}, logit_bias=quotes
    )

    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.content.startswith("{")
    assert answer.usage.completion_tokens == 3


def test_b84_no_infinite_whitespace(client: openai.OpenAI) -> None:
    """B84: white space that the model prefers to all else ends after 32 characters in a row."""
    bias = {str(token_id): 100 for token_id in client_ids(client, " \n")}
    answer = ask(client, response_format=as_schema(SCHEMA), logit_bias=bias)

    assert fits(answer.choices[0].message.content)
    assert answer.choices[0].finish_reason == "stop"


def client_ids(client: openai.OpenAI, text: str) -> list[int]:
    """Token ids of `text`, by the server."""
    url = str(client.base_url).replace("/v1/", "/tokenize")
    request = urllib.request.Request(url, json.dumps({"model": "tiny", "prompt": text}).encode())
    with urllib.request.urlopen(request, timeout=120) as response:
        ids: list[int] = json.load(response)["tokens"]
    return ids


def sub_tool(name: str = "sub") -> Any:
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["a"],
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters, "description": "takes away"}}


def calls_of(chunks: list[Any]) -> list[tuple[str, str]]:
    """Names and joined arguments of a stream's calls; each begins with id, type and name, and goes on with arguments."""
    calls: list[list[str]] = []
    for chunk in chunks:
        for piece in chunk.choices[0].delta.tool_calls or []:
            if piece.index == len(calls):
                assert piece.id
                assert piece.type == "function"
                calls.append([piece.function.name, piece.function.arguments])
            else:
                assert (piece.id, piece.type, piece.function.name) == (None, None, None)
                calls[piece.index][1] += piece.function.arguments
    return [(name, arguments) for name, arguments in calls]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "sub"}}], ids=["required", "named"]
)
def test_b89_tool_choice_required(client: openai.OpenAI, choice: Any) -> None:
    """B89: a call that is required is one, its arguments are JSON of the schema, and the stream is the same."""
    body = {
        "tools": [sub_tool(), sub_tool("add")],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "temperature": 1,
    }
    whole = ask(client, **body).choices[0]
    chunks = list(ask(client, **body, stream=True))
    call = whole.message.tool_calls[0].function

    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    assert call.name in (("sub", "add") if choice == "required" else ("sub",))
    assert 0 <= json.loads(call.arguments)["a"] <= 99
    assert calls_of(chunks) == [(call.name, call.arguments)]
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["tool_calls"]


def test_tools_reach_the_template(client: openai.OpenAI) -> None:
    """Tools are told to the model, unless `tool_choice` is none."""
    prompts = [ask(client, **body).usage.prompt_tokens for body in (
        {}, {"tools": [sub_tool()], "tool_choice": "none"}, {"tools": [sub_tool()]},
    )]  # fmt: skip

    assert prompts[0] == prompts[1] < prompts[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("package", "script"),
    [("langchain-openai==1.8.1", "with_langchain.py"), ("litellm==1.110.2", "with_litellm.py")],
    ids=["langchain-openai", "litellm"],
)
def test_python_clients(client: openai.OpenAI, tmp_path: Path, package: str, script: str) -> None:
    """Unchanged clients, each in a virtual environment of its own: chat, stream, tool, JSON schema."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "v")], check=True, timeout=120)
    python = str(tmp_path / "v" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-qq", package], check=True, timeout=600)
    done = subprocess.run(
        [python, str(CLIENTS / script), str(client.base_url)], capture_output=True, text=True, timeout=200, check=False
    )

    assert done.stdout.strip().endswith("ok"), done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_node_client(client: openai.OpenAI, tmp_path: Path) -> None:
    """The openai package of Node, unchanged: chat, stream, tool, JSON schema, and its own class of error."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("there is no node or npm on this machine")
    shutil.copy(CLIENTS / "with_openai.mjs", tmp_path)
    install = [npm, "install", "--no-audit", "--no-fund", "--silent", "openai@6.49.0"]
    subprocess.run(install, cwd=tmp_path, check=True, timeout=300)
    done = subprocess.run(
        [node, "with_openai.mjs", str(client.base_url)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.stdout.strip() == "ok", done.stderr
