"""Token ids to text, one at a time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascendd.api.tokenizer import ModelTokenizer

ALLOW_FIXTURES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)


def pieces_of(tokenizer: ModelTokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    """What a fresh Detokenizer gives out for `ids`, the flush last."""
    detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
    return [detokenizer.push(token_id) for token_id in ids] + [detokenizer.flush()]


def whole(tokenizer: ModelTokenizer, ids: list[int], *, skip: bool) -> str:
    """What the tokenizer itself makes of all ids at once."""
    text: str = tokenizer._tokenizer.decode(ids, skip_special_tokens=skip)
    return text


# Ids beyond the vocabulary are in: models pad theirs.
@ALLOW_FIXTURES
@given(ids=st.lists(st.integers(0, 320), max_size=60), skip=st.booleans())
def test_joined_pieces_are_the_whole_text(any_tokenizer: ModelTokenizer, ids: list[int], skip: bool) -> None:
    """Whatever the ids, halves of characters included, the pieces join to decode(all ids)."""
    assert "".join(pieces_of(any_tokenizer, ids, skip=skip)) == whole(any_tokenizer, ids, skip=skip)


@ALLOW_FIXTURES
@given(text=st.text(max_size=80))
def test_text_comes_back_with_no_replacement_character(any_tokenizer: ModelTokenizer, text: str) -> None:
    """Any text, encoded and fed token by token, comes back whole, and no piece holds half a character."""
    if "\ufffd" in text or "▁" in text:
        return
    ids = any_tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(any_tokenizer, ids)

    assert "".join(pieces) == whole(any_tokenizer, ids, skip=True)
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("text", ["😀", "你好", "ď", "👨‍👩‍👧", "a😀b"], ids=ascii)
def test_character_over_several_tokens_comes_once(any_tokenizer: ModelTokenizer, text: str) -> None:
    """B08: a character spelled byte by byte comes in one piece, when its last byte is there or right after."""
    ids = [any_tokenizer._tokenizer.token_to_id(piece) for piece in _byte_pieces(any_tokenizer, text)]
    pieces = [piece for piece in pieces_of(any_tokenizer, ids) if piece]

    assert None not in ids
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)


def test_half_a_character_at_the_end_is_one_replacement(byte_level_tokenizer: ModelTokenizer) -> None:
    """B09: bytes held at the end are flushed as one U+FFFD, as decode() shows them."""
    ids = [byte_level_tokenizer._tokenizer.token_to_id(piece) for piece in _byte_pieces(byte_level_tokenizer, "😀")[:2]]

    assert pieces_of(byte_level_tokenizer, ids) == ["", "", "\ufffd"]


def test_replacement_characters_that_are_certain_are_not_held(byte_level_tokenizer: ModelTokenizer) -> None:
    """Of broken bytes only the newest is held back, so a garbled stream still flows."""
    stray = byte_level_tokenizer._tokenizer.token_to_id(_byte_pieces(byte_level_tokenizer, "é")[1])

    assert pieces_of(byte_level_tokenizer, [stray] * 4) == ["", "\ufffd", "\ufffd", "\ufffd", "\ufffd"]


def test_window_stays_short(byte_level_tokenizer: ModelTokenizer) -> None:
    """A long text keeps only its newest ids, so the cost of a token does not grow with the text."""
    detokenizer = byte_level_tokenizer.detokenizer(skip_special_tokens=True)
    longest = 0
    for token_id in byte_level_tokenizer.encode("hello world " * 200, add_special_tokens=False) + [1] * 500:
        detokenizer.push(token_id)
        longest = max(longest, len(detokenizer._window))

    assert 1 < longest <= 20


def test_special_tokens_show_when_asked_for(byte_level_tokenizer: ModelTokenizer) -> None:
    """skip_special_tokens false lets the text of special tokens through."""
    end = byte_level_tokenizer.added_token_id("<|end|>")
    assert end is not None
    ids = [*byte_level_tokenizer.encode("ok", add_special_tokens=False), end]

    assert "".join(pieces_of(byte_level_tokenizer, ids, skip=True)) == "ok"
    assert "".join(pieces_of(byte_level_tokenizer, ids, skip=False)) == "ok<|end|>"


def _byte_pieces(tokenizer: ModelTokenizer, text: str) -> list[str]:
    """The single-byte pieces that spell `text`."""
    if tokenizer._pieces.byte_ids:
        return [f"<0x{byte:02X}>" for byte in text.encode()]
    # GPT-2's printable stand-ins for bytes: the bytes that print as themselves, then the others from U+0100 on.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    return [stand_in[byte] for byte in text.encode()]
