"""Small tokenizers of the two families that the supported models use, built in memory."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ascendd.api.tokenizer import ModelTokenizer


def byte_level(*, bos: bool = False) -> Tokenizer:
    """A byte-level BPE (Qwen2, Llama 3): every byte is a piece, merges make words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["hello world alphabet ABC DEFGHIJ Příliš žluťoučký kůň 你好 😀"] * 4, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """A BPE in the way of SentencePiece (Llama 2): `▁` is a space, what has no piece is spelled <0xHH>."""
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", "a", "b", "c", "▁a", "▁b", "▁ab"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    merges = [("▁", "a"), ("▁", "b"), ("▁a", "b")]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


@pytest.fixture(scope="session")
def byte_level_tokenizer() -> ModelTokenizer:
    """A byte-level tokenizer without BOS."""
    return ModelTokenizer(byte_level(), {"bos_token": "<s>", "eos_token": {"content": "<|end|>"}})


@pytest.fixture(scope="session")
def bos_tokenizer() -> ModelTokenizer:
    """A byte-level tokenizer whose tokenizer.json adds a BOS."""
    return ModelTokenizer(byte_level(bos=True), {"bos_token": "<s>"})


@pytest.fixture(scope="session")
def byte_fallback_tokenizer() -> ModelTokenizer:
    """A tokenizer with <0xHH> pieces."""
    return ModelTokenizer(byte_fallback(), {"bos_token": "<s>", "eos_token": "</s>"})


@pytest.fixture(params=["byte-level", "byte-fallback"])
def any_tokenizer(
    request: pytest.FixtureRequest, byte_level_tokenizer: ModelTokenizer, byte_fallback_tokenizer: ModelTokenizer
) -> ModelTokenizer:
    """Each family in turn."""
    return byte_level_tokenizer if request.param == "byte-level" else byte_fallback_tokenizer
