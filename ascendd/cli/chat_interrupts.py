"""Ctrl-C while a chat runs: a wish that is never lost, whatever the main thread is about to wait in."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from typing import Any

# After how long a signal that the main thread has not looked at is made seen.
_LOOK_S = 0.1


class Interrupts:
    """
    Ctrl-C while a chat runs: at the prompt it clears the line, at any other time it is a wish to stop the answer.

    An exception is raised at the prompt alone: wherever else a signal comes, it finds the conversation whole.

    The editor of lines looks for signals and then waits for a key; a signal between the two would be seen with the next
    key only. So each signal leaves a byte in a pipe, whoever handles one takes them all out, and while one is in there
    a thread interrupts the wait by a second signal that means nothing else.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._at_prompt = False
        self._before: dict[int, Any] = {}
        self._is_over = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Interrupts:
        # What runs in the background of a script has interrupts turned off; that stays so.
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            return self
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGURG):
            self._before[number] = signal.signal(number, self._on_signal)
        self._thread = threading.Thread(target=self._have_seen, args=(threading.get_ident(),), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        self._is_over = True
        os.write(self._writer, b"\0")
        self._thread.join()
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._reader)
        os.close(self._writer)

    def line(self, prompt: str) -> str:
        """Return one line from the terminal; a wish from before is forgotten. Raises EOFError, KeyboardInterrupt."""
        self.is_asked = False
        self._at_prompt = True
        try:
            return input(prompt)
        finally:
            self._at_prompt = False

    def _on_signal(self, number: int, _frame: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        if number != signal.SIGINT:
            return
        if self._at_prompt:
            self._at_prompt = False
            raise KeyboardInterrupt
        self.is_asked = True

    def _have_seen(self, main_thread: int) -> None:
        while True:
            select.select([self._reader], [], [])
            if self._is_over:
                return
            threading.Event().wait(_LOOK_S)
            if select.select([self._reader], [], [], 0)[0] and not self._is_over:
                signal.pthread_kill(main_thread, signal.SIGURG)
