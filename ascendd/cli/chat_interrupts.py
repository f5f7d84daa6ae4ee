"""Ctrl-C while a chat runs: a key at the prompt, a wish at any other time, and never an exception."""

from __future__ import annotations

import contextlib
import signal
import sys
import termios
from collections.abc import Iterator
from typing import Any

_CTRL_C = b"\x03"
# What POSIX calls _POSIX_VDISABLE on Linux: no key has the function.
_NO_KEY = b"\x00"
_CONTROL_CHARACTERS = 6


class Interrupts:
    """
    Ctrl-C while a chat runs: at the prompt it clears the line, at any other time it is a wish to stop the answer.

    At the prompt the terminal sends no signal for it. An exception that a signal's handler raises may fall into any of
    the interpreter's own steps of reading a line, and a signal that falls between the line editor's look for one and
    its wait goes unseen until the next key; a key has no such moments. Elsewhere the wish is a fact that is asked for.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        # What runs in the background of a script has interrupts turned off; that stays so.
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def line(self, prompt: str) -> str:
        """Return a line from the terminal, "" where Ctrl-C cleared it; forget an earlier wish. Raises EOFError."""
        with _ctrl_c_as_key():
            line = input(prompt)
            # What comes from now on is a wish about the answer to this line.
            self.is_asked = False
            return line

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.is_asked = True


@contextlib.contextmanager
def _ctrl_c_as_key() -> Iterator[None]:
    """Have Ctrl-C clear the line that is typed: by the line editor where there is one, else by the terminal itself."""
    try:
        before = termios.tcgetattr(sys.stdin)
    except (OSError, ValueError, termios.error):  # no terminal: nobody types there
        yield
        return
    has_editor = _bind_in_editor()
    changed = termios.tcgetattr(sys.stdin)
    changed[_CONTROL_CHARACTERS][termios.VINTR] = _NO_KEY
    if not has_editor:
        changed[_CONTROL_CHARACTERS][termios.VKILL] = _CTRL_C
    # At once, so that nothing that was typed ahead is thrown away.
    termios.tcsetattr(sys.stdin, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)


def _bind_in_editor() -> bool:
    """Return whether lines are edited by GNU readline, in which Ctrl-C then drops the line and begins a new one."""
    try:
        import readline
    except ImportError:
        return False
    if "libedit" in (readline.__doc__ or "") or not sys.stdout.isatty():
        return False
    readline.parse_and_bind(r'"\C-x\C-k": kill-whole-line')
    readline.parse_and_bind(r'"\C-c": "\C-x\C-k\C-m"')
    return True
