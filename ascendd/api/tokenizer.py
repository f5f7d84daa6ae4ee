"""The model's tokenizer: tokenizer.json does the work, tokenizer_config.json names the special texts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import Encoding, Tokenizer

from ascendd.api.detokenizer import Detokenizer, Pieces
from ascendd.api.token_bytes import TokenBytes, decoder_kinds
from ascendd.errors import ModelNotFound, WeightsCorrupt

# Shorter texts are encoded on the event loop: a hop to a thread costs more than they do.
INLINE_CHARS = 2_000
_BYTE_PIECE = re.compile(r"<0x[0-9A-F]{2}>")
_SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")

T = TypeVar("T")


class ModelTokenizer:
    """Encodes off the event loop, makes Detokenizers, and knows the special tokens. Raises what `load` says."""

    def __init__(self, tokenizer: Tokenizer, config: dict[str, Any]) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_padding()
        tokenizer.no_truncation()  # a cut prompt would be answered as if it were the whole one
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenizer")
        self.config = config
        self.special_texts = _special_texts(config)
        added = tokenizer.get_added_tokens_decoder()
        self._added_ids = {token.content: token_id for token_id, token in added.items()}
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        self.num_ids = max(vocab.values(), default=-1) + 1
        self._pieces = Pieces(
            decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False)),
            num_ids=self.num_ids,
            special_ids=frozenset(token_id for token_id, token in added.items() if token.special),
            byte_ids=_byte_ids(tokenizer, vocab),
        )
        self.token_bytes = TokenBytes(tokenizer)
        bos = self.special_texts.get("bos_token")
        self.bos_token_id: int | None = None if bos is None else tokenizer.token_to_id(bos)
        self._add_bos = config.get("add_bos_token")

    @classmethod
    def load(cls, folder: Path) -> ModelTokenizer:
        """Read the tokenizer of the model in `folder`. Raises ModelNotFound or WeightsCorrupt."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelNotFound(
                f"{folder} holds no tokenizer.json",
                remedy="Download the model's tokenizer.json into that folder, or save it there in the fast format.",
                path=str(path),
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for any broken file
            raise WeightsCorrupt(f"{path} cannot be read: {error}", path=str(path)) from error
        return cls(tokenizer, read_json(folder / "tokenizer_config.json"))

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """
        Return the ids of `text`; a BOS is added as tokenizer.json says, and add_bos_token of the config overrules it.

        Without `add_special_tokens` nothing is added; special texts inside of `text` become their ids either way.
        """
        encoding = self._encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        if self._lacks_bos(ids, add_special_tokens=add_special_tokens):
            ids.insert(0, self.bos_token_id)  # type: ignore[arg-type]
        return ids

    def count(self, text: str) -> int:
        """Return how many tokens `text` is by itself."""
        return len(self.encode(text, add_special_tokens=False))

    def encode_pieces(self, text: str, *, add_special_tokens: bool) -> tuple[list[int], list[str]]:
        """
        Return the ids of `text` and the part of it that each stands for; joined, the parts are `text`.

        A character of several tokens is with the first of them; tokens that were added have no part.
        """
        encoding = self._encode(text, add_special_tokens=add_special_tokens)
        pieces: list[str] = []
        cut = 0
        for _, end in encoding.offsets:
            pieces.append(text[cut:end])
            cut = max(cut, end)
        if pieces:
            pieces[-1] += text[cut:]
        ids: list[int] = encoding.ids
        if self._lacks_bos(ids, add_special_tokens=add_special_tokens):
            ids.insert(0, self.bos_token_id)  # type: ignore[arg-type]
            pieces.insert(0, "")
        return ids, pieces

    def _encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens and self._add_bos is not False)

    def _lacks_bos(self, ids: list[int], *, add_special_tokens: bool) -> bool:
        wanted = add_special_tokens and self._add_bos and self.bos_token_id is not None
        return bool(wanted and ids[:1] != [self.bos_token_id])

    async def run(self, num_chars: int, work: Callable[[], T]) -> T:
        """Return `work()`, run in a thread where `num_chars` characters would keep the event loop too long."""
        if num_chars <= INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the whole text of `ids`, special tokens included."""
        return self._pieces.decode(ids)

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        """Return a fresh Detokenizer."""
        return Detokenizer(self._pieces, skip_special_tokens=skip_special_tokens)

    def added_token_id(self, text: str) -> int | None:
        """Return the id of the added token that is exactly `text`: such a token never shows up as plain text."""
        return self._added_ids.get(text)

    def close(self) -> None:
        """End the threads without waiting."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in `path`, {} where there is no such file. Raises WeightsCorrupt."""
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error}", path=str(path)) from error
    if not isinstance(data, dict):
        raise WeightsCorrupt(f"{path} holds no JSON object", path=str(path))
    return data


def _special_texts(config: dict[str, Any]) -> dict[str, str]:
    """Return name -> text; a value is the text itself or an object with `content`."""
    texts: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            texts[name] = value
    return texts


def _byte_ids(tokenizer: Tokenizer, vocab: dict[str, int]) -> frozenset[int]:
    kinds = decoder_kinds(tokenizer)
    if "ByteFallback" not in kinds:
        return frozenset()
    return frozenset(token_id for piece, token_id in vocab.items() if _BYTE_PIECE.fullmatch(piece))
