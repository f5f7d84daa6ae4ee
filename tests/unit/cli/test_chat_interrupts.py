"""Ctrl-C of a chat at the moment that nobody can hit on purpose: after the look for signals, before the wait."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ascendd.cli.chat_interrupts import Interrupts

# Milliseconds; a wait that nothing interrupts.
LONG = 60_000


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    """Interrupts are taken."""
    with Interrupts() as taken:
        yield taken


def _signal_that_no_wait_sees() -> None:
    # Caught by another thread: Python knows of it, and the system call of the main thread goes on.
    threading.Timer(0.05, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT)).start()


def _wait() -> int:
    """Wait as a line editor does, in C; -1 where a signal interrupted it."""
    return ctypes.CDLL(None).poll(None, 0, LONG)


def test_a_signal_that_fell_before_the_wait_is_a_wish(interrupts: Interrupts) -> None:
    """The wait is interrupted without another key, and the wish is there."""
    _signal_that_no_wait_sees()

    assert _wait() == -1
    assert interrupts.is_asked


def test_at_the_prompt_it_clears_the_line(interrupts: Interrupts, monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt comes out of the prompt's own wait; after it a signal is a wish again."""
    monkeypatch.setattr("builtins.input", lambda _prompt: str(_wait()))
    _signal_that_no_wait_sees()

    with pytest.raises(KeyboardInterrupt):
        interrupts.line("> ")
    assert not interrupts.is_asked
    os.kill(os.getpid(), signal.SIGINT)
    assert interrupts.is_asked


def test_everything_is_as_before_at_the_end() -> None:
    """The handlers are those from before, no file is left open, and no thread."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGURG)]
    files, threads = os.listdir("/proc/self/fd"), threading.active_count()

    with Interrupts():
        os.kill(os.getpid(), signal.SIGINT)

    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGURG)] == before
    assert (os.listdir("/proc/self/fd"), threading.active_count()) == (files, threads)
    previous = signal.set_wakeup_fd(-1)
    assert previous == -1
