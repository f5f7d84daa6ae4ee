"""Token ids to their own bytes: what one token stands for, also where that is only part of a character."""

from __future__ import annotations

import json
import re

from tokenizers import Tokenizer

_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class TokenBytes:
    """The bytes of single tokens; joined, those of an answer's tokens are its text in UTF-8, specials included."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {token_id: token.content for token_id, token in tokenizer.get_added_tokens_decoder().items()}
        kinds = decoder_kinds(tokenizer)
        self._byte_of = _byte_alphabet() if "ByteLevel" in kinds else {}
        self._has_byte_pieces = "ByteFallback" in kinds

    def of(self, token_id: int) -> bytes:
        """Return the bytes of `token_id`; none for an id beyond the tokenizer's (a padded vocabulary)."""
        if token_id in self._added:
            return self._added[token_id].encode()
        piece = self._tokenizer.id_to_token(token_id)
        if piece is None:
            return b""
        if self._byte_of:
            if all(character in self._byte_of for character in piece):
                return bytes(self._byte_of[character] for character in piece)
            return piece.encode()
        match = _BYTE_PIECE.fullmatch(piece) if self._has_byte_pieces else None
        return bytes([int(match[1], 16)]) if match else piece.replace("▁", " ").encode()

    def text(self, token_id: int) -> str:
        """Return the token's own text; U+FFFD for bytes that are no character by themselves."""
        return self.of(token_id).decode("utf-8", errors="replace")

    def key(self, token_id: int) -> str:
        """Return a name for `token_id` that two tokens rarely share: its text, else its bytes, else its number."""
        data = self.of(token_id)
        if not data:
            return f"token_id:{token_id}"
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def decoder_kinds(tokenizer: Tokenizer) -> set[str | None]:
    """Return the types of the decoder and of its parts, as tokenizer.json names them."""
    decoder = json.loads(tokenizer.to_str()).get("decoder") or {}
    return {decoder.get("type"), *(part.get("type") for part in decoder.get("decoders", ()))}


def _byte_alphabet() -> dict[str, int]:
    """Return character -> byte of byte-level BPE (GPT-2): printable ones are themselves, the rest follow 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(rest)}
