"""Tokenizers out of GGUF metadata, against those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer

from ascendd.artefact.gguf_tokenizer import build_tokenizer, build_tokenizer_files, merges_from_scores
from ascendd.errors import ModelUnsupported, WeightsCorrupt

pytestmark = pytest.mark.torch

CORPUS = {
    "english": "The quick brown fox doesn't jump; it's 'over' the lazy dog's — \"really\"? I'LL say: they've won.",
    "code": 'def f(x: int) -> str:\n    return f"{x!r:>10}"  # tab\there\n\n\nclass A:\n\t\tpass\r\n  x += 1_000\n',
    "chinese": "昇腾处理器上的大语言模型推理服务，支持连续批处理。你好，世界！①②③ 。",
    "other scripts": "Привет, мир! مرحبا بالعالم ١٢٣ नमस्ते दुनिया こんにちは 안녕하세요 ñandú Ångström e\u0301",
    "emoji": "👩‍👩‍👧‍👦 flies 🇨🇳 with 👍🏽 and 🧑🏿‍🚀!!! \U0001f9ff",
    "digits": "3.14159 1234567890 0x1F 2026-12-02 1,000,000 ½ ² Ⅷ",
    "white space": "a  b   c    d\n\n\n\n e \t\t f\r\n\r\n   \n\t \u00a0\u3000\u200b end   ",
    "special": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<|endoftext|><|im_start|><|not_special|>",
    "special inside": "a<|im_end|>b <repo_name>x <|im_end |> <|im_end|",
    "bytes": "".join(chr(code) for code in range(1, 256)),
    "empty": "",
    "space": " ",
    "spaces and digits": "  1 a   22 \n\t3\n\n 4",
}


@pytest.fixture(scope="module")
def demo_tokenizers(demo_folder: Path) -> tuple[Tokenizer, Any, dict[str, Any]]:
    """Ours and that of transformers, from the same file, and our tokenizer_config.json."""
    from transformers import AutoTokenizer

    from ascendd.artefact.gguf_file import GgufFile

    (path,) = demo_folder.glob("*.gguf")
    with GgufFile(path) as source:
        files = source.tokenizer_files()
    ours = Tokenizer.from_str(files["tokenizer.json"].decode())
    theirs = AutoTokenizer.from_pretrained(demo_folder, gguf_file=path.name)
    return ours, theirs, json.loads(files["tokenizer_config.json"])


@pytest.mark.demo
@pytest.mark.parametrize("name", CORPUS)
def test_demo_tokens_equal_those_of_transformers(demo_tokenizers: Any, name: str) -> None:
    """Text becomes the same ids, and they become the same text again, with and without special tokens."""
    ours, theirs, _ = demo_tokenizers
    text = CORPUS[name]

    ids = ours.encode(text).ids

    assert ids == theirs(text).input_ids
    whole = ours.decode(ids, skip_special_tokens=False)
    assert whole == theirs.decode(ids)
    assert whole == text or name == "bytes"  # SmolLM2's vocabulary has no token for some control characters
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.demo
def test_demo_tokens_of_longer_text(demo_tokenizers: Any, repo_root: Path) -> None:
    """Whole source files and documents become the same ids."""
    ours, theirs, _ = demo_tokenizers
    texts = [path.read_text(encoding="utf-8") for path in sorted((repo_root / "ascendd").rglob("*.py"))[:40]]

    for text in texts:
        assert ours.encode(text).ids == theirs(text).input_ids


@pytest.mark.demo
def test_demo_chat_template_comes_along(demo_tokenizers: Any) -> None:
    """The texts of special tokens and the chat template are those of transformers."""
    _, theirs, config = demo_tokenizers

    assert config["chat_template"] == theirs.chat_template
    assert (config["bos_token"], config["eos_token"], config["pad_token"], config["unk_token"]) == (
        theirs.bos_token,
        theirs.eos_token,
        theirs.pad_token,
        theirs.unk_token,
    )
    assert config["add_bos_token"] is False


@pytest.mark.demo
def test_converted_folder_is_a_tokenizer_for_transformers(demo_tokenizers: Any, demo_model: Path) -> None:
    """What transformers loads from the converted folder renders and tokenises a chat as the GGUF file does."""
    from transformers import AutoTokenizer

    _, theirs, _ = demo_tokenizers
    messages = [{"role": "user", "content": "Hello 世界  12"}]

    loaded = AutoTokenizer.from_pretrained(demo_model)

    rendered = loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert loaded(rendered).input_ids == theirs(rendered).input_ids


# --- vocabularies made here ------------------------------------------------------------------------------------------


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in byte-level vocabularies."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def byte_level_metadata(pre: str, **changes: Any) -> dict[str, Any]:
    """A byte-level vocabulary with merges that cross digits and spaces, a control and a user-defined token."""
    merges = ["1 2", "12 3", "123 4", "h e", "Ġ h", "Ġ Ġ", "l l", "he ll", "e Ì", "Ã ©", "eÌ ģ"]
    tokens = [*byte_alphabet(), *("".join(merge.split(" ")) for merge in merges), "<|end|>", "<tool>"]
    metadata = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 4],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
        "tokenizer.ggml.add_bos_token": False,
    }
    return {**metadata, **changes}


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str]:
    """Tokens as written in the vocabulary."""
    return tokenizer.encode(text).tokens


def test_pre_tokenizers_split_as_their_models_do() -> None:
    """Qwen2 takes digits one by one, Llama 3 by threes, GPT-2 in one run."""
    splits = {pre: build_tokenizer(Path("x"), byte_level_metadata(pre)) for pre in ("default", "qwen2", "llama-bpe")}

    assert tokens_of(splits["default"], "1234") == ["1234"]
    assert tokens_of(splits["qwen2"], "1234") == ["1", "2", "3", "4"]
    assert tokens_of(splits["llama-bpe"], "1234") == ["123", "4"]


def test_qwen2_composes_accents() -> None:
    """Qwen2's tokenizer normalises to NFC, so both spellings of é are the same tokens; GPT-2's does not."""
    qwen2 = build_tokenizer(Path("x"), byte_level_metadata("qwen2"))
    default = build_tokenizer(Path("x"), byte_level_metadata("default"))

    assert tokens_of(qwen2, "e\u0301") == tokens_of(qwen2, "\u00e9") == ["Ã©"]
    assert tokens_of(default, "e\u0301") != tokens_of(default, "\u00e9")


def test_whole_tokens_are_never_split() -> None:
    """Control tokens are special and vanish from plain decoding; user-defined ones are text."""
    tokenizer = build_tokenizer(Path("x"), byte_level_metadata("default"))

    encoded = tokenizer.encode("hell<|end|><tool>he")

    assert encoded.tokens == ["hell", "<|end|>", "<tool>", "he"]
    assert tokenizer.decode(encoded.ids) == "hell<tool>he"
    assert tokenizer.get_vocab_size() == len(byte_level_metadata("default")["tokenizer.ggml.tokens"])


@pytest.mark.parametrize(
    ("pre", "flag", "has_bos"),
    [("llama-bpe", None, True), ("qwen2", None, False), ("qwen2", True, True), ("llama-bpe", False, False)],
)
def test_text_begins_with_bos_where_trained_so(pre: str, flag: bool | None, has_bos: bool) -> None:
    """The file's flag decides; a file without it follows its vocabulary."""
    metadata = byte_level_metadata(pre, **{"tokenizer.ggml.add_bos_token": flag})
    if flag is None:
        del metadata["tokenizer.ggml.add_bos_token"]

    tokenizer = build_tokenizer(Path("x"), metadata)

    assert (tokens_of(tokenizer, "he")[0] == "<|end|>") is has_bos
    assert tokenizer.encode("he", add_special_tokens=False).tokens == ["he"]


def sentencepiece_metadata() -> dict[str, Any]:
    """A SentencePiece vocabulary: <unk>, <s>, </s>, 256 bytes, letters and words with falling scores."""
    letters = list("▁abcdehlorw,")
    words = ["he", "ll", "hell", "hello", "▁w", "or", "▁wor", "▁world", "ld", "▁hello"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, *letters]
    scores = [0.0] * 259 + [-float(index) for index in range(len(words) + len(letters))]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(words) + len(letters))
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_sentencepiece_falls_back_to_bytes() -> None:
    """Known words are one token, unknown characters their UTF-8 bytes, and the text comes back."""
    tokenizer = build_tokenizer(Path("x"), sentencepiece_metadata())

    encoded = tokenizer.encode("hello world, 好")

    assert encoded.tokens == ["<s>", "▁hello", "▁world", ",", "▁", "<0xE5>", "<0xA5>", "<0xBD>"]
    assert tokenizer.decode(encoded.ids) == "hello world, 好"


def test_sentencepiece_equals_transformers(tmp_path: Path, save_model: Any, write_gguf: Any) -> None:
    """A SentencePiece file is tokenised as transformers tokenises it."""
    from transformers import AutoTokenizer

    metadata = sentencepiece_metadata()

    path = tmp_path / "sp.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_scores(metadata["tokenizer.ggml.scores"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_head_count(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)

    ours = build_tokenizer(path, metadata)

    for text in ("hello world", "hello  hello", "world,hello", "好 wor", "held old low", "abc</s>hello"):
        assert ours.encode(text).ids == theirs(text).input_ids, text


def test_merges_follow_the_scores() -> None:
    """Every way to join two tokens to a third is a merge, higher scores first; byte and control tokens take no part."""
    tokens, scores = ["a", "b", "ab", "abb", "<x>", "<"], [-4.0, -5.0, -2.0, -1.0, 0.0, -3.0]

    merges = merges_from_scores(tokens, scores, [1, 1, 1, 1, 3, 1])

    assert merges == [("ab", "b"), ("a", "b")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "tokenizer bert is not supported; supported: gpt2, llama"),
        ({"tokenizer.ggml.pre": "tekken"}, "pre-tokenizer tekken is not supported; supported: .*qwen2"),
    ],
)
def test_unknown_kind_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """A vocabulary that would be cut differently is refused, with what is known."""
    with pytest.raises(ModelUnsupported, match=message):
        build_tokenizer(Path("x"), byte_level_metadata("default", **changes))


def test_missing_merges_are_named() -> None:
    """A byte-level vocabulary without merges is damaged."""
    metadata = byte_level_metadata("default")
    del metadata["tokenizer.ggml.merges"]

    with pytest.raises(WeightsCorrupt, match=r"has no tokenizer\.ggml\.merges"):
        build_tokenizer(Path("x"), metadata)


def test_files_survive_their_own_reading() -> None:
    """tokenizer.json, read back, tokenises as the tokenizer that was built."""
    metadata = byte_level_metadata("qwen2")

    files = build_tokenizer_files(Path("x"), metadata)

    loaded = Tokenizer.from_str(files["tokenizer.json"].decode())
    text = "hello 1234 <|end|>  <tool> é 好"
    assert loaded.encode(text).ids == build_tokenizer(Path("x"), metadata).encode(text).ids
    assert loaded.decode(loaded.encode(text).ids, skip_special_tokens=False) == text
