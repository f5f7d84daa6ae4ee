"""What the text of a chat's answer consists of: reasoning, content, and calls of tools; the same for any cuts."""

from __future__ import annotations

from typing import NamedTuple

from ascendd.api.tool_calls import CallDelta, ToolCallParser, overlap
from ascendd.api.tools import Tools

_OPEN, _CLOSE = "<think>", "</think>"


class ChatPiece(NamedTuple):
    """One of: text of the answer, text of its reasoning, a piece of a call."""

    content: str = ""
    reasoning: str = ""
    call: CallDelta | None = None


class ChatPieces:
    """Reads one answer. `splits` says whether the template has reasoning, `open_` whether the prompt has begun it."""

    def __init__(self, tools: Tools | None, *, splits: bool, open_: bool) -> None:
        self._parser = None if tools is None else ToolCallParser(tools.form, tools.names)
        # Reasoning comes first or not at all.
        self._may_open = splits and not open_
        self._in_reasoning = splits and open_
        self._is_fresh = False
        self._is_reasoning_fresh = True
        self._held = ""

    @property
    def num_calls(self) -> int:
        """Calls so far."""
        return 0 if self._parser is None else self._parser.num_calls

    def push(self, text: str, *, is_last: bool = False) -> list[ChatPiece]:
        """Take `text` and return what it makes certain; with `is_last` all."""
        pieces: list[ChatPiece] = []
        text = self._split(text, pieces, is_last=is_last)
        if self._is_fresh and text:
            text = text.lstrip("\n")
            self._is_fresh = not text
        if self._parser is None:
            return pieces + ([ChatPiece(content=text)] if text else [])
        found = self._parser.push(text) + (self._parser.finish() if is_last else [])
        return pieces + [ChatPiece(content=f) if isinstance(f, str) else ChatPiece(call=f) for f in found if f]

    def _split(self, text: str, pieces: list[ChatPiece], *, is_last: bool) -> str:
        """Take the reasoning out of what is held and `text`, and return the rest."""
        if not self._may_open and not self._in_reasoning:
            return text
        self._held += text
        if self._may_open:
            start = self._held.lstrip()
            if start.startswith(_OPEN):
                self._held = start[len(_OPEN) :]
                self._in_reasoning, self._may_open = True, False
            elif _OPEN.startswith(start) and not is_last:
                return ""
            else:
                self._may_open = False
                rest, self._held = self._held, ""
                return rest
        before, mark, rest = self._held.partition(_CLOSE)
        if mark:
            self._in_reasoning, self._held, self._is_fresh = False, "", True
        else:
            held = 0 if is_last else overlap(before, _CLOSE)
            self._held = before[len(before) - held :]
            before = before[: len(before) - held]
        if self._is_reasoning_fresh:
            before = before.lstrip("\n")
            self._is_reasoning_fresh = not before
        if before:
            pieces.append(ChatPiece(reasoning=before))
        return rest
