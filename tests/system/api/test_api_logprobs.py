"""Logprobs and best_of over HTTP, in both dialects, whole and streamed, with an engine that speaks from a script."""

from __future__ import annotations

import itertools
import math

import pytest

pytestmark = pytest.mark.system

COLUMNS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def columns_of(answer, stream):
    """The joined columns of a completion, and its text."""
    choices = [c for e in answer.events[:-1] for c in e["choices"]] if stream else answer.json["choices"]
    text = "".join(choice["text"] for choice in choices)
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    return {name: list(itertools.chain(*(part[name] for part in told))) for name in COLUMNS}, text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["\n1. Carol has 20", "Příliš 😀", [75, 76, 0, 80]], ids=ascii)
def test_b36_echo_and_logprobs(api, prompt, stream):
    """B36: tokens joined are the text, offsets are running lengths, the first token has no logprob; as k, so k or k + 1."""
    answer = api.complete(prompt=prompt, echo=True, logprobs=1, max_tokens=5, stream=stream)
    columns, text = columns_of(answer, stream)
    num_prompt = len(prompt if isinstance(prompt, list) else api.ids(prompt))
    lengths = [len(token) for token in columns["tokens"]]

    assert "".join(columns["tokens"]) == text
    assert len(columns["tokens"]) == num_prompt + 5
    assert columns["text_offset"] == [0, *itertools.accumulate(lengths)][:-1]
    assert columns["token_logprobs"] == [
        None,
        *(-0.25 * n for n in range(1, num_prompt)),
        *(-0.25 * n for n in range(5)),
    ]
    assert columns["top_logprobs"][0] is None
    assert all(len(top) == 2 for top in columns["top_logprobs"][1:])
    assert (api.engine.added[0].params.prompt_logprobs, api.engine.added[0].params.logprobs) == (1, 1)


@pytest.mark.parametrize("stream", [False, True])
def test_b29_prompt_alone_is_scored(api, stream):
    """B29: with max_tokens 0 there are the prompt's logprobs and nothing generated, in text or in usage."""
    answer = api.complete(
        prompt="answer Yes", echo=True, logprobs=1, max_tokens=0, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
    )  # fmt: skip
    columns, text = columns_of(answer, stream)
    usage = answer.events[-2]["usage"] if stream else answer.json["usage"]

    assert text == "".join(columns["tokens"]) == "answer Yes"
    assert len(columns["tokens"]) == usage["prompt_tokens"] == len(api.ids("answer Yes"))
    assert usage["completion_tokens"] == 0
    assert (answer.events[-3] if stream else answer.json)["choices"][0]["finish_reason"] == "length"
    assert api.engine.added[0].params.max_tokens == 0


@pytest.mark.parametrize("stop", [None, ["lo w"]], ids=["whole", "stopped"])
def test_stream_and_whole_tell_the_same(api, stop):
    """Streamed columns joined are those of the whole answer, also where a stop string cuts tokens."""
    body = {"logprobs": 3, "max_tokens": 9, "stop": stop}
    whole, text = columns_of(api.complete(**body), stream=False)

    assert columns_of(api.complete(**body, stream=True), stream=True) == (whole, text)
    assert "".join(whole["tokens"]) == text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_top", [None, 0, 3])
def test_b34_chat_logprobs(api, num_top, stream):
    """B34: each token has token, logprob, bytes and top_logprobs, [] unless asked for; bytes joined are the text."""
    extra = {} if num_top is None else {"top_logprobs": num_top}
    answer = api.chat(logprobs=True, max_tokens=4, n=2, stream=stream, **extra)
    choices = [c for e in answer.events[:-1] for c in e["choices"]] if stream else answer.json["choices"]
    for index in (0, 1):
        own = [choice for choice in choices if choice["index"] == index]
        content = [item for choice in own if choice["logprobs"] for item in choice["logprobs"]["content"]]
        text = "".join((choice["delta"] if stream else choice["message"]).get("content", "") for choice in own)

        assert [item["logprob"] for item in content] == [0.0, -0.25, -0.5, -0.75]
        assert b"".join(bytes(item["bytes"]) for item in content).decode() == text
        for item in content:
            assert set(item) == {"token", "logprob", "bytes", "top_logprobs"}
            assert len(item["top_logprobs"]) == (num_top or 0)
            assert all(set(top) == {"token", "logprob", "bytes"} for top in item["top_logprobs"])
            logprobs = [top["logprob"] for top in item["top_logprobs"]]
            assert logprobs == sorted(logprobs, reverse=True)


def test_no_logprobs_unasked(api):
    """Without the fields the key is there and null, and the engine is not asked."""
    answer = api.complete(max_tokens=2).json
    chat = api.chat(max_tokens=2, logprobs=False, top_logprobs=0).json

    assert answer["choices"][0]["logprobs"] is None
    assert "prompt_logprobs" not in answer["choices"][0]
    assert chat["choices"][0]["logprobs"] is None
    assert {add.params.logprobs for add in api.engine.added} == {None}


@pytest.mark.parametrize("value", [-math.inf, math.nan])
@pytest.mark.parametrize("stream", [False, True])
def test_b37_infinite_logprob_is_json(api, script, value, stream):
    """B37: -inf and NaN become -9999.0 in completions and chats, prompt and answer alike, and all of it is JSON."""
    api.engine.script = lambda _: script(api.ids("hello"), logprob=lambda _: value)
    completion = api.complete(
        prompt="a b c", echo=True, logprobs=1, temperature=1, top_k=1, max_tokens=2, stream=stream
    )
    chat = api.chat(logprobs=True, top_logprobs=2, max_tokens=2, stream=stream)
    columns, _ = columns_of(completion, stream)

    assert (completion.status, chat.status) == (200, 200)
    for body in (completion.body, chat.body):
        assert b"Infinity" not in body
        assert b"NaN" not in body
        assert b"-9999.0" in body
    assert set(columns["token_logprobs"]) == {None, -9999.0}


def test_prompt_logprobs_in_vllm_s_form(api):
    """Null for the first token, then id -> logprob, rank and text; in completions per choice, in chats beside them."""
    completion = api.complete(prompt="ab", prompt_logprobs=2, max_tokens=1).json
    chat = api.chat(prompt_logprobs=0, max_tokens=1).json
    a, b = api.ids("a")[0], api.ids("b")[0]

    assert completion["choices"][0]["prompt_logprobs"] == [
        None,
        {
            str(b): {"logprob": -0.25, "rank": 2, "decoded_token": "b"},
            str(b + 1): {"logprob": 0.25, "rank": 1, "decoded_token": "c"},
        },
    ]
    assert completion["choices"][0]["text"]
    assert a != b
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert all(len(item) == 1 for item in chat["prompt_logprobs"][1:])


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("completions", {"logprobs": 21}, "logprobs"),
        ("completions", {"logprobs": -1}, "logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
        ("completions", {"top_logprobs": 2}, "top_logprobs"),
        ("completions", {"prompt_logprobs": 21}, "prompt_logprobs"),
        ("completions", {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ("chat/completions", {"logprobs": 2}, "logprobs"),
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
    ],
    ids=str,
)
def test_wrong_number_of_logprobs_is_400(api, path, body, param):
    """Out of range, of the other route's kind, or where it cannot be told: 400 that names the field."""
    base = {"prompt": "hi"} if path == "completions" else {"messages": [{"role": "user", "content": "hi"}]}
    answer = api.request("POST", f"/v1/{path}", {"model": "tiny", **base, **body})

    assert answer.status == 400
    assert answer.error["param"] == param
    assert api.engine.added == []


def test_b53_best_of_answers_the_likeliest(api, script):
    """B53: of three candidates per prompt the two with the highest sum of logprobs, best first; usage counts all six."""
    sums = {0: -2.0, 1: -9.0, 2: -1.0, 3: -4.0, 4: -3.0, 5: -5.0}
    order = itertools.count()

    def one(_):
        number = next(order)
        return script(api.ids("abcdef"[number]), logprob=lambda _: sums[number])

    api.engine.script = one
    answer = api.complete(prompt=["x", "y"], best_of=3, n=2, max_tokens=2, seed=5).json
    seeds = [add.params.seed for add in api.engine.added]

    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [
        (0, "cc"),
        (1, "aa"),
        (2, "ee"),
        (3, "dd"),
    ]
    assert all(choice["logprobs"] is None for choice in answer["choices"])
    assert answer["usage"]["completion_tokens"] == 12
    assert answer["usage"]["prompt_tokens"] == 2
    assert len(set(seeds[:3])) == 3
    assert seeds[0] == 5
