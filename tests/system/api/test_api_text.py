"""Text through the real API process: streams and whole answers, stop strings, characters, usage, order."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.system


def say(api: Any, script: Any, *pieces: str, **options: Any) -> None:
    """Have the engine say `pieces`, each as the tokens that spell it, once."""
    ids = [token_id for piece in pieces for token_id in api.ids(piece)]
    api.engine.script = lambda _: script(ids, repeat=False, **options)


def joined(events: list[Any], index: int = 0) -> str:
    """The text of one choice of a stream."""
    choices = [c for e in events if e != "[DONE]" for c in e["choices"] if c["index"] == index]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


def reasons(events: list[Any], index: int = 0) -> list[Any]:
    """The finish reasons of one choice of a stream, chunk by chunk; the key must be there."""
    return [c["finish_reason"] for e in events if e != "[DONE]" for c in e["choices"] if c["index"] == index]


def test_completion_has_text_usage_and_id(api):
    """A plain completion gives the engine's text, its finish reason and its token counts."""
    answer = api.complete(prompt="the lazy dog", max_tokens=5)
    body = answer.json

    assert answer.status == 200, answer.body
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert body["choices"][0]["text"] == api.tokenizer.decode((api.ids("hello world ") * 5)[:5])
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["prompt_tokens"] == len(api.ids("the lazy dog"))
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 5


def test_chat_has_role_and_content(api):
    """A chat gives one assistant message, and the prompt is what the template wrote."""
    answer = api.chat(max_tokens=3)
    body = answer.json
    prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"

    assert answer.status == 200, answer.body
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["usage"]["prompt_tokens"] == len(api.ids(prompt))
    assert api.engine.added[-1].prompt_token_ids == api.ids(prompt)


@pytest.mark.parametrize("kind", ["complete", "chat"])
def test_b01_usage_chunk_when_asked_for(api, kind):
    """B01: one chunk with no choices and the usage comes between the finish chunk and [DONE]; the others have null."""
    events = getattr(api, kind)(stream=True, stream_options={"include_usage": True}, max_tokens=4).events

    assert events[-1] == "[DONE]"
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 4
    assert events[-3]["choices"][0]["finish_reason"] == "length"
    assert all(event["usage"] is None for event in events[:-2])


@pytest.mark.parametrize("kind", ["complete", "chat"])
def test_b02_no_usage_chunk_unasked(api, kind):
    """B02: without the option every chunk has a choice and none has usage."""
    events = getattr(api, kind)(stream=True, max_tokens=4).events

    assert events[-1] == "[DONE]"
    assert all(event["choices"] and "usage" not in event for event in events[:-1])


def test_b05_b06_roles_and_reasons_of_two_samples(api):
    """B05, B06: each index has its role in the first delta only and null reasons until its own last chunk."""
    events = api.chat(stream=True, n=2, max_tokens=4).events

    for index in (0, 1):
        deltas = [c["delta"] for e in events[:-1] for c in e["choices"] if c["index"] == index]
        assert deltas[0]["role"] == "assistant"
        assert not any("role" in delta for delta in deltas[1:])
        assert deltas[-1] == {}
        assert reasons(events, index) == [None] * (len(deltas) - 1) + ["length"]


@pytest.mark.parametrize("text", ["😀 dobře 你好", "ďábel", "👨‍👩‍👧!"], ids=ascii)
def test_b08_characters_are_never_split(api, script, text):
    """B08: characters over several tokens come whole, and stream, whole answer and decode agree."""
    say(api, script, text, step_s=0.001)
    whole = api.complete(max_tokens=64).json["choices"][0]["text"]
    events = api.complete(max_tokens=64, stream=True).events

    # The engine ends by its last token, which as a stop token has no text.
    expected = api.tokenizer.decode(api.ids(text)[:-1])
    assert whole == joined(events) == expected
    assert len([e for e in events[:-1] if e["choices"][0]["text"]]) > 1


def test_b09_half_a_character_is_flushed(api, script):
    """B09: an answer cut inside a character ends in one U+FFFD, streamed or not, and counts its token."""
    ids = api.ids("😀")
    api.engine.script = lambda _: script(ids)
    answer = api.complete(max_tokens=1).json
    events = api.complete(max_tokens=1, stream=True).events

    assert len(ids) == 4
    assert answer["choices"][0]["text"] == joined(events) == "\ufffd"
    assert answer["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("case", "pieces", "body", "expected"),
    [
        ("B10", ["D", "EF", "G", "HI", "J", "!"], {"stop": ["DEFGHIJ"]}, ""),
        ("B12", ["aX", "b", "X", "Y", "!"], {"stop": ["XY"]}, "aXb"),
        ("B13", ["Hello", " world", "!"], {"stop": ["lo"]}, "Hel"),
        ("B14", ["a", ",", "b,c,d", "!"], {"stop": ["b,c"], "include_stop_str_in_output": True}, "a,b,c"),
        ("B14", ["a", ",", "b,c,d", "!"], {"stop": ["b,c"], "include_stop_str_in_output": False}, "a,"),
        ("B16", ["ok", "<|end|>", "more", "!"], {"stop": ["<|end|>"], "ignore_eos": True}, "ok"),
        ("B16", ["ok", "<|end|>", "!"], {"stop": ["<|end|>"], "include_stop_str_in_output": True}, "ok<|end|>"),
        ("B16", ["ok", "<think>", "more", "!"], {"stop": "<think>"}, "ok"),
    ],
    ids=["B10", "B12", "B13", "B14 with", "B14 without", "B16", "B16 with", "B16 not special"],
)
def test_stop_strings(api, script, case, pieces, body, expected):
    """B10-B16: the text ends at the stop string, streamed or not; the reason is stop, the engine is told."""
    say(api, script, *pieces, step_s=0.001)
    answer = api.complete(max_tokens=64, **body).json
    events = api.complete(max_tokens=64, stream=True, **body).events

    assert answer["choices"][0]["text"] == joined(events) == expected, case
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert reasons(events)[-1] == "stop"
    assert 0 < answer["usage"]["completion_tokens"] <= sum(len(ids) for ids in api.pieces(*pieces))


def test_stop_string_frees_the_engine(api, script):
    """A sequence that a stop string ended is aborted at the engine, which would go on otherwise."""
    api.engine.script = lambda _: script(api.ids("abc"), step_s=0.002)
    answer = api.complete(max_tokens=120, stop=["abca"]).json

    assert answer["choices"][0]["text"] == ""
    assert answer["usage"]["completion_tokens"] == len(api.ids("abca"))
    api.engine.wait(lambda: api.engine.aborted == [api.engine.added[0].seq_id])


def test_stop_strings_wait_for_min_tokens(api, script):
    """No stop string counts inside the first min_tokens tokens."""
    api.engine.script = lambda _: script(api.ids("X"))
    answer = api.complete(max_tokens=8, min_tokens=3, stop=["X"]).json

    assert answer["choices"][0]["text"] == "XXX"
    assert answer["usage"]["completion_tokens"] == 4


def test_b17_ignore_eos_and_stop_ids_reach_the_engine(api):
    """B17, B18: ignore_eos, min_tokens and the caller's stop ids are the engine's to obey, and reach it."""
    api.complete(
        max_tokens=20, ignore_eos=True, min_tokens=8, stop_token_ids=[9, 8], top_k=5, top_p=0.5, seed=3, priority=-2
    )
    add = api.engine.added[-1]

    assert add.params.ignore_eos
    assert add.params.min_tokens == 8
    assert add.params.stop_token_ids == (9, 8)
    assert (add.params.top_k, add.params.top_p, add.params.seed, add.priority) == (5, 0.5, 3, -2)


def test_eos_has_no_text(api, script):
    """The token that ends a text is counted and not shown, also when special tokens are."""
    say(api, script, "ok", "<|end|>")
    answer = api.complete(max_tokens=64, skip_special_tokens=False).json

    assert answer["choices"][0]["text"] == "ok"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(api.ids("ok")) + 1


def test_special_tokens_are_hidden_unless_asked_for(api, script):
    """skip_special_tokens false shows special tokens inside of a text."""
    say(api, script, "a", "<|im_end|>", "b", "!")

    assert api.complete(max_tokens=64).json["choices"][0]["text"] == "ab"
    assert api.complete(max_tokens=64, skip_special_tokens=False).json["choices"][0]["text"] == "a<|im_end|>b"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["answer Yes", [75, 131, 106]], ids=["text", "ids"])
def test_b29_b40_echo(api, prompt, stream):
    """B29, B40: echo gives the prompt first; with max_tokens 0 it gives nothing else and asks the engine for nothing."""
    text = prompt if isinstance(prompt, str) else api.tokenizer.decode(prompt)
    zero = api.complete(prompt=prompt, echo=True, max_tokens=0, stream=stream)
    num_added = len(api.engine.added)
    two = api.complete(prompt=prompt, echo=True, max_tokens=2, stream=stream)
    two_text = joined(two.events) if stream else two.json["choices"][0]["text"]

    assert (joined(zero.events) if stream else zero.json["choices"][0]["text"]) == text
    assert (reasons(zero.events)[-1] if stream else zero.json["choices"][0]["finish_reason"]) == "length"
    assert stream or zero.json["usage"]["completion_tokens"] == 0
    assert num_added == 0
    assert two_text == text + api.tokenizer.decode(api.ids("hello world ")[:2])


def test_b30_defaults_of_max_tokens(api):
    """B30: null means 16 for completions and the rest of the context for chats."""
    completion = api.complete(max_tokens=None).json
    chat = api.chat(max_tokens=None).json

    assert completion["usage"]["completion_tokens"] == 16
    assert chat["usage"]["total_tokens"] == 128


def test_max_completion_tokens_is_the_newer_name(api):
    """Chats take max_completion_tokens, which wins over max_tokens."""
    assert api.chat(max_completion_tokens=3, max_tokens=5).json["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("temperature", [0.00001, 1e-4, 1e-3, 0])
def test_b49_tiny_temperature_is_greedy(api, temperature):
    """B49: temperatures near zero reach the engine as zero."""
    answer = api.complete(temperature=temperature, max_tokens=3)

    assert answer.status == 200
    assert api.engine.added[-1].params.temperature == 0.0


def test_b52_two_samples(api):
    """B52: two samples count the prompt once and all tokens; they are two sequences with seeds of their own."""
    answer = api.complete(prompt="hello world", n=2, temperature=1, seed=1, max_tokens=4).json
    seeds = [add.params.seed for add in api.engine.added]

    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["prompt_tokens"] == len(api.ids("hello world"))
    assert answer["usage"]["completion_tokens"] == 8
    assert seeds[0] == 1
    assert seeds[1] not in (1, None)


@pytest.mark.parametrize("stream", [False, True])
def test_b101_batch_keeps_order(api, script, stream):
    """B101: choices are numbered prompt x n + sample, whatever finishes first."""
    slow = {api.ids("a")[0]: 0.03, api.ids("b")[0]: 0.01, api.ids("c")[0]: 0.0}
    api.engine.script = lambda add: script(add.prompt_token_ids, step_s=slow.get(add.prompt_token_ids[0], 0))
    answer = api.complete(prompt=["a", "b", "c"], n=2, max_tokens=2, stream=stream)
    texts = [joined(answer.events, i) for i in range(6)] if stream else [c["text"] for c in answer.json["choices"]]

    assert texts == ["aa", "aa", "bb", "bb", "cc", "cc"]
    assert api.complete(prompt=[[75, 80], [90]], max_tokens=1).json["usage"]["prompt_tokens"] == 3


def test_b101_one_bad_prompt_fails_the_call_before_any_work(api):
    """B101: a mix, or one bad prompt, is a 400 and no sequence reaches the engine."""
    mixed = api.complete(prompt=["a", [1]], max_tokens=2)
    bad = api.complete(prompt=[[1], [290]], max_tokens=2)

    assert (mixed.status, bad.status) == (400, 400)
    assert api.engine.added == []


def test_cached_tokens_are_told(api, script):
    """Prompt tokens served by the prefix cache are in prompt_tokens_details."""
    api.engine.script = lambda _: script(api.ids("hello"), num_cached=3)
    answer = api.complete(prompt="hello world", n=2, max_tokens=2).json

    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 3
