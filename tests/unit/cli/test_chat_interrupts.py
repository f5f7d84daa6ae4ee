"""Ctrl-C of a chat: a wish outside the prompt, a key at it."""

from __future__ import annotations

import os
import pty
import signal
import termios
from collections.abc import Iterator

import pytest

from ascendd.cli.chat_interrupts import Interrupts


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C has its usual handler, also where whoever started the tests turned it off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard input is a terminal of the test's own; the file descriptor of its end."""
    ours, theirs = pty.openpty()
    with open(theirs, encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield theirs
    os.close(ours)


def _interrupt_key(terminal: int) -> bytes:
    return bytes(termios.tcgetattr(terminal)[6][termios.VINTR])


@pytest.mark.usefixtures("ctrl_c")
def test_a_signal_is_a_wish_that_the_next_prompt_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises nothing, neither before a prompt nor in one, and does not stop the answer to the line after it."""

    def interrupted(_prompt: str) -> str:
        os.kill(os.getpid(), signal.SIGINT)
        return "line"

    monkeypatch.setattr("builtins.input", interrupted)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        asked = interrupts.is_asked
        line = interrupts.line("> ")

        assert (asked, line, interrupts.is_asked) == (True, "line", False)


def test_at_the_prompt_the_terminal_sends_no_signal(terminal: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is a key like others while a line is typed, and interrupts again after it, also where the line ended."""
    during: list[bytes] = []

    def end_of_file(_prompt: str) -> str:
        during.append(_interrupt_key(terminal))
        raise EOFError

    monkeypatch.setattr("builtins.input", end_of_file)
    with pytest.raises(EOFError):
        Interrupts().line("> ")

    assert (during, _interrupt_key(terminal)) == ([b"\0"], b"\x03")


@pytest.mark.usefixtures("ctrl_c")
def test_everything_is_as_before_at_the_end() -> None:
    """The handler is that from before, and a signal that was turned off stays so."""
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        os.kill(os.getpid(), signal.SIGINT)
    after = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts():
        ignored = signal.getsignal(signal.SIGINT)

    assert (after, ignored) == (before, signal.SIG_IGN)
