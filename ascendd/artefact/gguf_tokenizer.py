"""
tokenizer.json and tokenizer_config.json, built from the metadata of a GGUF file.

Two kinds of vocabulary are known: byte-level BPE (`gpt2`) with its merges, and SentencePiece BPE (`llama`), whose
merges follow from the scores of the tokens. Anything else is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from ascendd.errors import ModelUnsupported, WeightsCorrupt

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

# How text is split before merging, by tokenizer.ggml.pre, as in the models' public tokenizer.json; None: GPT-2's split.
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
SPLITS: dict[str, str | None] = {
    "default": None,
    "gpt-2": None,
    # SmolLM also parts digits. Its merges join none, so the plain split differs just for white space before a digit;
    # it is kept because transformers reads these files so, and equal ids for equal text is what users compare.
    "smollm": None,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
}


def build_tokenizer_files(path: Path, metadata: Mapping[str, Any]) -> dict[str, bytes]:
    """Return both files by name. Raises ModelUnsupported for an unknown kind, WeightsCorrupt for missing metadata."""
    tokenizer = build_tokenizer(path, metadata)
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False).encode(),
        "tokenizer_config.json": (
            json.dumps(_tokenizer_config(metadata), indent=2, ensure_ascii=False) + "\n"
        ).encode(),
    }


def build_tokenizer(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the tokenizer that the metadata describes; `path` names the file in errors."""
    kind = metadata.get("tokenizer.ggml.model", "(none)")
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in builders:
        raise ModelUnsupported(f"{path}: tokenizer {kind} is not supported; supported: {', '.join(builders)}")
    try:
        tokenizer = builders[kind](path, metadata)
    except KeyError as error:
        raise WeightsCorrupt(f"{path} has no {error.args[0]}", path=str(path)) from error
    _add_whole_tokens(tokenizer, metadata)
    _add_ends(tokenizer, metadata)
    return tokenizer


def _byte_level(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    if pre not in SPLITS:
        raise ModelUnsupported(f"{path}: pre-tokenizer {pre} is not supported; supported: {', '.join(sorted(SPLITS))}")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    split = SPLITS[pre]
    # Llama 3 takes a word that is a token as it is, without merging.
    tokenizer = Tokenizer(BPE(vocab=_vocabulary(metadata), merges=merges, ignore_merges=split is _LLAMA3_SPLIT))
    if split is _QWEN2_SPLIT:
        tokenizer.normalizer = normalizers.NFC()
    if split is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(split), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(path: Path, metadata: Mapping[str, Any]) -> Tokenizer:
    vocabulary = _vocabulary(metadata)
    if "tokenizer.ggml.merges" in metadata:
        merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    else:
        merges = merges_from_scores(
            metadata["tokenizer.ggml.tokens"],
            metadata["tokenizer.ggml.scores"],
            metadata.get("tokenizer.ggml.token_type"),
        )
    unknown = _token_text(metadata, "unknown")
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    add_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="▁", prepend_scheme="first" if add_space else "never", split=False
    )
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space:
        steps.append(decoders.Strip(content=" ", left=1))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def merges_from_scores(tokens: list[str], scores: list[float], types: list[int] | None) -> list[tuple[str, str]]:
    """Return all pairs of tokens that join to a token, best score first; control and byte tokens take no part."""
    usable = {token for token, kind in zip(tokens, types or [NORMAL] * len(tokens), strict=True) if kind == NORMAL}
    ranked = [
        (-score, -cut, token[:cut], token[cut:])
        for token, score in zip(tokens, scores, strict=True)
        if token in usable
        for cut in range(1, len(token))
        if token[:cut] in usable and token[cut:] in usable
    ]
    ranked.sort(key=lambda item: item[:2])
    return [(left, right) for _, _, left, right in ranked]


def _vocabulary(metadata: Mapping[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}


def _add_whole_tokens(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Tell the tokenizer which tokens are matched whole: control tokens are special, user-defined ones are not."""
    tokens = metadata["tokenizer.ggml.tokens"]
    types = metadata.get("tokenizer.ggml.token_type") or []
    named = {_token_text(metadata, kind) for kind in ("bos", "eos", "unknown", "padding", "eot")}
    special = [
        token
        for index, token in enumerate(tokens)
        if (types[index] if index < len(types) else NORMAL) in (CONTROL, UNKNOWN) or token in named
    ]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    user_defined = [token for token, kind in zip(tokens, types, strict=False) if kind == USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in user_defined])


def _add_ends(tokenizer: Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Put BOS before and EOS after a text where the model was trained so."""
    begin = [text for text in [_token_text(metadata, "bos")] if text is not None and _adds(metadata, "bos")]
    end = [text for text in [_token_text(metadata, "eos")] if text is not None and _adds(metadata, "eos")]
    if begin or end:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*begin, "$A", *end],
            pair=[*begin, "$A", *end, *(f"{text}:1" for text in begin), "$B:1", *(f"{text}:1" for text in end)],
            special_tokens=[(text, tokenizer.token_to_id(text)) for text in dict.fromkeys(begin + end)],
        )


def _adds(metadata: Mapping[str, Any], kind: str) -> bool:
    # Files from before the flag: SentencePiece and Llama 3 vocabularies begin a text with BOS.
    is_old_default = kind == "bos" and (
        metadata.get("tokenizer.ggml.model") == "llama"
        or SPLITS.get(metadata.get("tokenizer.ggml.pre", "default")) is _LLAMA3_SPLIT
    )
    return bool(metadata.get(f"tokenizer.ggml.add_{kind}_token", is_old_default))


def _token_text(metadata: Mapping[str, Any], kind: str) -> str | None:
    tokens, index = metadata["tokenizer.ggml.tokens"], metadata.get(f"tokenizer.ggml.{kind}_token_id")
    return None if index is None or not 0 <= index < len(tokens) else str(tokens[index])


def _tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    architecture = metadata.get("general.architecture", "")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _token_text(metadata, "bos"),
        "eos_token": _token_text(metadata, "eos"),
        "unk_token": _token_text(metadata, "unknown"),
        "pad_token": _token_text(metadata, "padding"),
        "add_bos_token": _adds(metadata, "bos"),
        "add_eos_token": _adds(metadata, "eos"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{architecture}.context_length"),
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    return {key: value for key, value in config.items() if value is not None}
