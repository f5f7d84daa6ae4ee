"""What an answer cost, read as it passes: whole or streamed, in any cuts, with or without a usage of the server."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from ascendd.gateway.answer_usage import AnswerUsage

ASKED: dict[str, Any] = {"stream": True}


def stream(*events: object, end: str = "\n\n") -> bytes:
    """Return server-sent events."""
    return "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}{end}" for e in events).encode()


def delta(text: str) -> dict[str, Any]:
    """Return a chunk with text."""
    return {"choices": [{"delta": {"content": text}}], "usage": None}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"])
def test_usage_that_nobody_asked_for_is_counted_and_kept_back(end: str) -> None:
    """However the bytes are cut, the client gets every other event as it was, and the usage's figure counts."""
    whole, cuts = stream(delta("a"), delta('"usage"'), USAGE, "[DONE]", end=end), random.Random(3)
    for _ in range(200):
        usage = AnswerUsage(100)
        assert usage.asked_for(ASKED) == {"stream_options": {"include_usage": True}}
        places = sorted(cuts.sample(range(1, len(whole)), cuts.randint(0, 6)))
        pieces = [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]
        passed = b"".join(map(usage.feed, pieces)) + usage.rest()

        assert passed == stream(delta("a"), delta('"usage"'), "[DONE]", end=end)
        assert usage.num_tokens == 7


@pytest.mark.parametrize(
    ("raw", "changes"),
    [
        ({"stream": True, "stream_options": {"include_usage": True}}, {}),
        ({"stream": True, "stream_options": "x"}, {}),
        ({"stream": False}, {}),
        ({"stream": True, "stream_options": {"a": 1}}, {"stream_options": {"a": 1, "include_usage": True}}),
    ],
)
def test_a_stream_is_asked_for_its_usage(raw: dict[str, Any], changes: dict[str, Any]) -> None:
    """Unless it is asked already, is none, or has options that the instance refuses."""
    assert AnswerUsage(0).asked_for(raw) == changes


def test_usage_that_the_client_asked_for_is_passed_on() -> None:
    """It is counted as well."""
    usage = AnswerUsage(100)
    usage.asked_for({"stream": True, "stream_options": {"include_usage": True}})
    whole = stream(delta("a"), USAGE, "[DONE]")

    assert usage.feed(whole) == whole
    assert usage.num_tokens == 7


def test_a_stream_that_breaks_is_estimated() -> None:
    """The prompt's estimate and a token for each event; nothing where none came."""
    usage = AnswerUsage(100)
    before = usage.num_tokens
    half = b'data: {"choices": [{'
    passed = usage.feed(stream(delta("a"), delta("b")) + half) + usage.rest()

    assert before == 0
    assert usage.num_tokens == 102
    assert passed == stream(delta("a"), delta("b")) + half


def test_a_whole_answer_tells_its_own() -> None:
    """One that is no JSON, or has no usage, counts nothing."""
    figures = []
    for body in (json.dumps(USAGE).encode(), b"[1]", b"{", b'{"usage": {"total_tokens": "7"}}'):
        usage = AnswerUsage(100)
        usage.whole(body)
        figures.append(usage.num_tokens)

    assert figures == [7, 0, 0, 0]


def test_an_event_without_an_end_is_not_kept() -> None:
    """Bytes that never end an event go on to the client instead of into memory."""
    usage = AnswerUsage(0)

    assert len(usage.feed(b"x" * (1 << 20))) == 0
    assert len(usage.feed(b"x")) == (1 << 20) + 1
