"""
Token ids to text, one token at a time: what was given out never changes, and a character is never split.

The text of all tokens is decode(all ids), but a prefix of the ids need not decode to a prefix of the text: bytes of a
character that is not whole yet decode to U+FFFD, and pieces such as <0xE4> decode as a run. So the newest ids are kept
in a window that starts where the text was whole, and what may still change is held back:

    ids      [ ... given out and forgotten ... | window ... newest ]
    text of the window                         [ sent | delta | held U+FFFD ]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

REPLACEMENT = "\ufffd"
# Decoding is linear in the window; a longer window is only kept while no clean end is found.
_MAX_WINDOW = 16


@dataclass(frozen=True)
class Pieces:
    """What a Detokenizer must know of a tokenizer; `decode` must not skip any token."""

    decode: Callable[[Sequence[int]], str]
    num_ids: int
    special_ids: frozenset[int]
    # Ids of <0x00> .. <0xFF> where the decoder joins runs of them; empty for byte-level tokenizers.
    byte_ids: frozenset[int]


class Detokenizer:
    """The text of one sequence; join of all `push` and `flush` results == decode(all ids)."""

    def __init__(self, pieces: Pieces, *, skip_special_tokens: bool = True) -> None:
        self._pieces = pieces
        self._skipped = pieces.special_ids if skip_special_tokens else frozenset()
        self._window: list[int] = []
        # Number of characters of the window's text that were given out.
        self._num_sent = 0

    def push(self, token_id: int) -> str:
        """Add a token and return the text that is now certain, often its own, sometimes none."""
        # Ids beyond the tokenizer's (a padded vocabulary) have no text, as in decode().
        if token_id in self._skipped or not 0 <= token_id < self._pieces.num_ids:
            return ""
        self._window.append(token_id)
        if token_id in self._pieces.byte_ids:
            # A run of byte pieces is text or replacement characters as a whole; only its end decides.
            return ""
        return self._advance(is_last=False)

    def flush(self) -> str:
        """Return what was held back: at the end of a sequence a half character is one U+FFFD, as in decode()."""
        return self._advance(is_last=True) if self._window else ""

    def _advance(self, *, is_last: bool) -> str:
        text = self._pieces.decode(self._window)
        # Of several U+FFFD in a row only the last can still become a character.
        num_certain = len(text) - (not is_last and text.endswith(REPLACEMENT))
        delta = text[self._num_sent : num_certain]
        self._num_sent = max(self._num_sent, num_certain)
        if num_certain == len(text):
            self._slide()
        return delta

    def _slide(self) -> None:
        """Forget all but the newest id of a window that ends whole; it hides how decoders treat a first token."""
        if len(self._window) > _MAX_WINDOW:
            text = self._pieces.decode(self._window[-1:])
            if text:
                self._window, self._num_sent = self._window[-1:], len(text)
