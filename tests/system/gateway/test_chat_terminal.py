"""`ascendd chat` as people use it: a terminal, lines, commands, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import ScriptedInstance  # type: ignore[import-not-found]

pytestmark = pytest.mark.system
PATIENCE_S = 60.0
# Makes standard input the controlling terminal, so that Ctrl-C is a signal, and becomes `ascendd ARGS`.
_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "ascendd", *sys.argv[1:]])
"""


class Terminal:
    """A process at the other end of a pseudo terminal; `expect` reads on from where it stopped."""

    def __init__(self, *args: str) -> None:
        self._end, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *args],
            stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env={**os.environ, "TERM": "dumb"},
        )  # fmt: skip
        os.close(theirs)
        self._unread = ""

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self._end, text.encode())

    def expect(self, pattern: str) -> str:
        """Return what came up to and with `pattern`; fails the test when it does not come."""
        deadline = time.monotonic() + PATIENCE_S
        while (match := re.search(pattern, self._unread, re.DOTALL)) is None:
            ready, _, _ = select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{pattern!r} did not come; there is {self._unread!r}"
            try:
                data = os.read(self._end, 4096)
            except OSError:  # the other end is closed
                data = b""
            assert data, f"the process ended before {pattern!r}; there is {self._unread!r}"
            self._unread += data.decode(errors="replace")
        found, self._unread = self._unread[: match.end()], self._unread[match.end() :]
        return found

    def close(self) -> None:
        """End the process where it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)
        os.close(self._end)


@pytest.fixture
def server(scripted: Callable[[str], ScriptedInstance]) -> ScriptedInstance:
    """It answers `piece 0piece 1piece 2`."""
    return scripted("big")


@pytest.fixture
def terminal(server: ScriptedInstance) -> Iterator[Terminal]:
    """A chat with the server, at its first prompt."""
    made = Terminal("chat", "--url", server.url, "--model", "big")
    made.expect(r"big at http.*> ")
    yield made
    made.close()


def test_a_conversation(terminal: Terminal, server: ScriptedInstance, tmp_path: Path) -> None:
    """Answers come as they stream, earlier turns go along, commands change what is sent, and Ctrl-D leaves with 0."""
    terminal.type("hello\n")
    terminal.expect(r"piece 0piece 1piece 2\s+> ")
    terminal.type("/temperature 0.5\n")
    terminal.expect(r"set\s+> ")
    terminal.type("and more\n")
    terminal.expect(r"piece 2\s+> ")
    terminal.type("/undo\n")
    terminal.expect(r"taken back\s+> ")
    terminal.type("/nonsense\n")
    terminal.expect(r"/nonsense is no command; /help lists them\s+> ")
    terminal.type(f"/save {tmp_path}/talk.json\n")
    terminal.expect(r"written to .*> ")
    terminal.type("\x04")
    status = terminal.process.wait(PATIENCE_S)
    sent = [[message["content"] for message in body["messages"]] for body in server.bodies]

    assert status == 0
    assert sent == [["hello"], ["hello", "piece 0piece 1piece 2", "and more"]]
    assert "temperature" not in server.bodies[0]
    assert server.bodies[1]["temperature"] == 0.5
    saved = json.loads((tmp_path / "talk.json").read_text())
    assert [message["content"] for message in saved["messages"]] == ["hello", "piece 0piece 1piece 2"]


def test_ctrl_c_stops_an_answer(terminal: Terminal, server: ScriptedInstance, eventually: Callable[..., None]) -> None:
    """The stream is broken off, the chat goes on, and the server notices that its client left."""
    server.script.gate = gate = threading.Semaphore(1)
    server.script.pieces = 1000
    terminal.type("tell me everything\n")
    terminal.expect(r"piece 0")
    terminal.type("\x03")
    terminal.expect(r"> ")
    gate.release(2000)
    eventually(lambda: server.num_broken == 1, "a broken stream")
    server.script.gate, server.script.pieces = None, 3
    terminal.type("again\n")
    terminal.expect(r"piece 2\s+> ")
    terminal.type("/exit\n")

    assert terminal.process.wait(PATIENCE_S) == 0
