"""What of an answer is shown: all of it in a terminal, the reasoning dimmed; in a pipe the bare answer."""

from __future__ import annotations

import os
from typing import TextIO

from ascendd.cli.chat_link import ChatPiece

# Control characters but tab and line feed, each shown as a question mark: what a model writes must not move the cursor
# or colour the operator's terminal.
_PRINTABLE = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)], "?")
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class Screen:
    """Writes one answer to `out` as its pieces come; `answer` and `reasoning` are what came so far."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._is_terminal = out.isatty()
        # no-color.org, and a terminal without attributes.
        self._has_colour = self._is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.answer = ""
        self.reasoning = ""

    def show(self, piece: ChatPiece) -> None:
        """Write what of the piece is shown here."""
        if piece.reasoning:
            if self._is_terminal:
                self._write_reasoning(piece.reasoning)
            self.reasoning += piece.reasoning
        if piece.content:
            if self._is_terminal and self.reasoning and not self.answer:
                self._out.write("\n\n" if not self.reasoning.endswith("\n") else "\n")
            self._out.write(piece.content.translate(_PRINTABLE) if self._is_terminal else piece.content)
            self.answer += piece.content
        self._out.flush()

    def end(self) -> None:
        """End the line."""
        last = self.answer or (self.reasoning if self._is_terminal else "")
        if not last.endswith("\n"):
            self._out.write("\n")
        self._out.flush()

    def _write_reasoning(self, text: str) -> None:
        shown = text.translate(_PRINTABLE)
        head = "" if self.reasoning else "(reasoning) "
        # Each piece ends plain: whatever comes next, an error too, is not dimmed.
        self._out.write(f"{_DIM}{head}{shown}{_PLAIN}" if self._has_colour else head + shown)
