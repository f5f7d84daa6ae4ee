"""The model's tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendd.api.tokenizer import ModelTokenizer
from ascendd.errors import ModelNotFound, WeightsCorrupt


@pytest.mark.parametrize(("text", "expected_first"), [("", 0), ("hello", 0)])
def test_bos_is_added_to_completions_only(bos_tokenizer: ModelTokenizer, text: str, expected_first: int) -> None:
    """B88: a text gets the BOS of tokenizer.json once, and none where special tokens are not to be added."""
    with_bos = bos_tokenizer.encode(text, add_special_tokens=True)
    without = bos_tokenizer.encode(text, add_special_tokens=False)

    assert with_bos == [expected_first, *without]


def test_special_text_inside_is_one_token(bos_tokenizer: ModelTokenizer) -> None:
    """A template that writes <s> gets exactly that id, so a chat has one BOS."""
    ids = bos_tokenizer.encode("<s>hello", add_special_tokens=False)

    assert ids.count(0) == 1
    assert ids[0] == 0


@pytest.mark.parametrize(
    ("add_bos_token", "expected"),
    [(True, 1), (False, 0), (None, 0)],
    ids=["true adds", "false does not", "absent: the file"],
)
def test_config_overrules_the_file(
    byte_level_tokenizer: ModelTokenizer, add_bos_token: bool | None, expected: int
) -> None:
    """add_bos_token of tokenizer_config.json decides where it is written."""
    config = {"bos_token": "<s>"} if add_bos_token is None else {"bos_token": "<s>", "add_bos_token": add_bos_token}
    tokenizer = ModelTokenizer(byte_level_tokenizer._tokenizer, config)

    assert tokenizer.encode("hello", add_special_tokens=True).count(0) == expected


def test_special_texts_are_read_in_both_forms(byte_level_tokenizer: ModelTokenizer) -> None:
    """A special token may be written as text or as an object with `content`."""
    assert byte_level_tokenizer.special_texts == {"bos_token": "<s>", "eos_token": "<|end|>"}


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A model folder without tokenizer.json is ModelNotFound with the file's name."""
    with pytest.raises(ModelNotFound, match=r"tokenizer\.json"):
        ModelTokenizer.load(tmp_path)


@pytest.mark.parametrize("broken", ["tokenizer.json", "tokenizer_config.json"])
def test_broken_file_is_named(tmp_path: Path, byte_level_tokenizer: ModelTokenizer, broken: str) -> None:
    """A file that is no tokenizer, or no JSON, is WeightsCorrupt with the file's name."""
    byte_level_tokenizer._tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / broken).write_text("[1, 2", encoding="utf-8")

    with pytest.raises(WeightsCorrupt, match=broken):
        ModelTokenizer.load(tmp_path)


def test_file_that_truncates_is_overruled(tmp_path: Path, byte_level_tokenizer: ModelTokenizer) -> None:
    """B33: truncation stored in tokenizer.json never cuts a prompt."""
    path = tmp_path / "tokenizer.json"
    other = type(byte_level_tokenizer._tokenizer).from_str(byte_level_tokenizer._tokenizer.to_str())
    other.enable_truncation(4)
    other.save(str(path))

    assert len(ModelTokenizer.load(tmp_path).encode("hello world " * 10, add_special_tokens=True)) > 4
