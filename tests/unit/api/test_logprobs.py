"""Logprobs in both dialects, and what single tokens are called in them."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from ascendd.api.body import convert
from ascendd.api.logit_fields import LogprobSpec
from ascendd.api.logprobs import LEAST_LOGPROB, LogprobReport, TokenEntry, finite
from ascendd.api.parameters import read_spec
from ascendd.api.prompts import Prompt
from ascendd.api.protocol import CompletionRequest
from ascendd.api.sequence_text import SequenceText
from ascendd.api.tokenizer import ModelTokenizer
from ascendd.errors import InternalError
from ascendd.ipc.messages import EngineHello, FinishReason, TokenLogprobs

HELLO = EngineHello("m", 128, 320, (1,), 64, 16, 8)
SCORES = TokenLogprobs(-0.5, 2, [], [])


def text_of(tokenizer: ModelTokenizer, **fields: Any) -> SequenceText:
    body = convert(fields, CompletionRequest)
    spec = read_spec(
        body, HELLO, tokenizer, max_tokens=None, default_max_tokens=16, logprobs=LogprobSpec(output=0)
    )  # fmt: skip
    return SequenceText(spec, tokenizer)


def run(text: SequenceText, ids: list[int], finish: FinishReason = FinishReason.LENGTH) -> tuple[str, list[TokenEntry]]:
    """Push `ids`; check after each that the entries given out are exactly the text given out."""
    out, entries = "", []
    for place, token_id in enumerate(ids):
        piece, told = text.push(token_id, finish if place == len(ids) - 1 else 0, SCORES)
        out, entries = out + piece, entries + told
        assert out.startswith("".join(entry.text for entry in entries))
        if text.has_ended():
            break
    return out, entries


@pytest.mark.parametrize("said", ["hello world", "Příliš 😀 kůň", "你好 ab", "\n1. x\n\n"], ids=ascii)
@pytest.mark.parametrize("stop", [None, ["o w"], ["ůň", "zzz"], ["b"], ["\n\n"]], ids=ascii)
def test_joined_tokens_are_the_text(any_tokenizer: ModelTokenizer, said: str, stop: list[str] | None) -> None:
    """B36: whatever is cut or held back, tokens joined are the text, offsets are running lengths, and each token has one."""
    ids = any_tokenizer.encode(said, add_special_tokens=False)
    text = text_of(any_tokenizer, stop=stop)
    out, entries = run(text, ids)

    assert "".join(entry.text for entry in entries) == out
    assert [entry.offset for entry in entries] == [
        len("".join(e.text for e in entries[:i])) for i in range(len(entries))
    ]
    assert [entry.token_id for entry in entries] == ids[: text.num_tokens]


def test_half_a_character_has_its_entry(byte_level_tokenizer: ModelTokenizer) -> None:
    """B09: one token of an emoji is one entry whose text is the U+FFFD that the answer ends in."""
    first = byte_level_tokenizer.encode("😀", add_special_tokens=False)[0]
    out, entries = run(text_of(byte_level_tokenizer), [first])

    assert (out, [entry.text for entry in entries]) == ("\ufffd", ["\ufffd"])


def test_engine_that_tells_nothing_is_a_defect(byte_level_tokenizer: ModelTokenizer) -> None:
    """Logprobs that were asked for and did not come are an InternalError, not an answer without them."""
    with pytest.raises(InternalError):
        text_of(byte_level_tokenizer).push(75, 0, None)


@pytest.mark.parametrize("value", [-math.inf, math.nan, math.inf, -1e300, -0.5, 0.0])
def test_every_number_is_json(byte_level_tokenizer: ModelTokenizer, value: float) -> None:
    """B37: no infinity and no NaN reaches JSON, in any of the shapes; -inf is -9999.0 in all of them."""
    scores = TokenLogprobs(value, 3, [5, 6], [value, value])
    report = LogprobReport(LogprobSpec(output=2, prompt=2, echo=True), byte_level_tokenizer.token_bytes)
    entries = [TokenEntry(75, "h", 0, scores)]
    prompt = Prompt([5, 75], "ah", ["a", "h"])
    shapes = [
        report.completion(entries),
        report.chat(entries),
        report.prompt(prompt, [scores]),
        report.echo(prompt, [scores]),
    ]
    written = [msgspec.json.encode(shape).decode() for shape in shapes]

    for text in written:
        json.loads(text, parse_constant=pytest.fail)
        assert "null" not in text.replace('"refusal":null', "").replace("[null,", "[")
    expected = value if value in (-0.5, 0.0) else LEAST_LOGPROB
    assert finite(value) == expected
    assert all(str(expected) in text for text in written)


@pytest.mark.parametrize("said", ["hello world", "Příliš 😀", "你好"], ids=ascii)
def test_bytes_of_tokens_joined_are_utf_8(any_tokenizer: ModelTokenizer, said: str) -> None:
    """Parts of characters have their own bytes; together they are the text."""
    ids = any_tokenizer.encode(said, add_special_tokens=False)
    data = b"".join(map(any_tokenizer.token_bytes.of, ids)).decode()

    assert data.lstrip() == said  # SentencePiece puts a space before the first word


def test_names_of_tokens(byte_level_tokenizer: ModelTokenizer) -> None:
    """Text where it is one, bytes where it is part of a character, the number where the tokenizer has none."""
    tokens = byte_level_tokenizer.token_bytes
    first = byte_level_tokenizer.encode("😀", add_special_tokens=False)[0]

    assert tokens.key(1) == "<|end|>"
    assert tokens.key(first).startswith("bytes:\\xf0")
    assert tokens.text(first) == "\ufffd"
    assert tokens.key(100_000) == "token_id:100000"
    assert tokens.of(100_000) == b""


def test_the_token_itself_stands_among_its_alternatives(byte_level_tokenizer: ModelTokenizer) -> None:
    """It is there once, under the name it has in `tokens`, whether or not it is one of the best."""
    report = LogprobReport(LogprobSpec(output=2), byte_level_tokenizer.token_bytes)
    (h, e, x) = (byte_level_tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "hex")
    inside = report.completion([TokenEntry(h, "h", 0, TokenLogprobs(-1.0, 2, [e, h], [-0.5, -1.0]))])
    outside = report.completion([TokenEntry(x, "x", 0, TokenLogprobs(-7.0, 9, [e, h], [-0.5, -1.0]))])

    assert inside is not None
    assert outside is not None
    assert inside.top_logprobs == [{"e": -0.5, "h": -1.0}]
    assert outside.top_logprobs == [{"e": -0.5, "h": -1.0, "x": -7.0}]


@pytest.mark.parametrize(
    "said", ["hello world", "  two  spaces ", "Příliš 😀 kůň", "\n1. Carol has 20", "<s>a"], ids=ascii
)
def test_pieces_of_a_prompt_joined_are_the_prompt(any_tokenizer: ModelTokenizer, bos_tokenizer: ModelTokenizer, said: str) -> None:  # fmt: skip
    """B36: the parts of a prompt are cut from it, so joined they are it; an added BOS has none; ids are those of encode."""
    for tokenizer in (any_tokenizer, bos_tokenizer):
        ids, pieces = tokenizer.encode_pieces(said, add_special_tokens=True)

        assert "".join(pieces) == said
        assert ids == tokenizer.encode(said, add_special_tokens=True)
        assert len(pieces) == len(ids)
    assert (ids[0], pieces[0]) == (0, "")
