"""`ascendd chat` as people use it: a terminal, lines, commands, Ctrl-C and Ctrl-D."""

from __future__ import annotations

import json
import os
import pty
import random
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from ascendd.cli.chat_link import ChatLink, ChatPiece

if TYPE_CHECKING:
    from .conftest import ScriptedInstance  # type: ignore[import-not-found]

pytestmark = pytest.mark.system
PATIENCE_S = 90.0
# Makes standard input the controlling terminal, so that Ctrl-C is a signal, also where whoever started the tests turned
# that off, and becomes `ascendd ARGS`.
_ON_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
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


def _ask_again_and_leave(terminal: Terminal, server: ScriptedInstance) -> list[str]:
    """Ask `again`, read the whole answer, leave, and return what the last request said."""
    server.play()
    terminal.type("again\n")
    terminal.expect(r"piece 2\s+> ")
    terminal.type("/exit\n")
    assert terminal.process.wait(PATIENCE_S) == 0
    return [message["content"] for message in server.bodies[-1]["messages"]]


def test_ctrl_c_stops_an_answer(terminal: Terminal, server: ScriptedInstance, eventually: Callable[..., None]) -> None:
    """The stream is broken off, what came of it is kept, the chat goes on, and the server notices that its client left."""
    gate = threading.Semaphore(1)
    server.play(gate=gate, pieces=1000)
    terminal.type("tell me everything\n")
    terminal.expect(r"piece 0")
    terminal.type("\x03")
    terminal.expect(r"\(stopped\)\s+> ")
    gate.release(2000)
    eventually(lambda: server.num_broken == 1, "a broken stream")

    assert _ask_again_and_leave(terminal, server) == ["tell me everything", "piece 0", "again"]


def test_ctrl_c_before_the_first_token(
    terminal: Terminal, server: ScriptedInstance, eventually: Callable[..., None]
) -> None:
    """A question that has no answer yet is dropped: the next one is sent without it."""
    gate = threading.Semaphore(0)
    server.play(gate=gate, pieces=1000)
    terminal.type("anybody there\n")
    eventually(lambda: len(server.bodies) == 1, "a question")
    terminal.type("\x03")
    terminal.expect(r"\(stopped\)\s+> ")
    gate.release(2000)
    eventually(lambda: server.num_broken == 1, "a broken stream")

    assert _ask_again_and_leave(terminal, server) == ["again"]


def test_ctrl_c_at_the_prompt_clears_the_line(terminal: Terminal, server: ScriptedInstance) -> None:
    """Neither at half a line nor at an empty one it ends the chat, and what was typed is not sent."""
    terminal.type("half a quest")
    terminal.expect("half a quest")
    terminal.type("\x03")
    terminal.expect(r"> ")
    terminal.type("\x03")
    terminal.expect(r"> ")

    assert _ask_again_and_leave(terminal, server) == ["again"]


def test_ctrl_c_at_any_moment_of_the_prompt(terminal: Terminal, server: ScriptedInstance) -> None:
    """However its moment falls from a prompt's first character to the wait for a key, no further key is needed."""
    moments = random.Random(8)
    for _ in range(60):
        # Not a wait for anything: the moment is what is tried.
        time.sleep(moments.random() * 0.001)
        terminal.type("\x03")
        terminal.expect(r"> ")

    assert _ask_again_and_leave(terminal, server) == ["again"]


def test_ctrl_c_at_any_moment_of_an_answer(terminal: Terminal, server: ScriptedInstance) -> None:
    """However its moment falls from the line's end to a stream that stands still, Ctrl-C leads back to the prompt."""
    moments, gates = random.Random(8), [threading.Semaphore(5) for _ in range(40)]
    for gate in gates:
        server.play(gate=gate, pieces=1000)
        terminal.type("tell\n")
        terminal.expect("tell\r\n")
        # Not a wait for anything: the moment is what is tried.
        time.sleep(moments.random() * 0.01)
        terminal.type("\x03")
        terminal.expect(r"> ")
    for gate in gates:
        gate.release(2000)
    terminal.type("/new\n")
    terminal.expect(r"forgotten\s+> ")

    assert _ask_again_and_leave(terminal, server) == ["again"]


def test_a_wish_to_stop_needs_no_signal(server: ScriptedInstance) -> None:
    """A stream from which nothing comes is left all the same, so an interrupt that no system call saw is not lost."""
    gate = threading.Semaphore(1)
    server.play(gate=gate, pieces=1000)
    is_asked = threading.Event()
    pieces = ChatLink(urlsplit(server.url), None).stream({"model": "big", "stream": True}, is_asked.is_set)

    assert next(pieces) == ChatPiece("piece 0")
    is_asked.set()
    assert list(pieces) == []
    gate.release(2000)


def test_a_model_does_not_drive_the_terminal(terminal: Terminal, server: ScriptedInstance) -> None:
    """Control characters of an answer are shown as question marks; in the conversation they stay."""
    server.play(texts=["red \x1b[31m", "bell\x07\ttab\n", "\x9b2J"])
    terminal.type("paint\n")
    shown = terminal.expect(r"2J\s+> ")
    sent = _ask_again_and_leave(terminal, server)

    assert "red ?[31mbell?" in shown
    assert "\x1b[31m" not in shown
    assert sent == ["paint", "red \x1b[31mbell\x07\ttab\n\x9b2J", "again"]


def test_reasoning_is_shown_and_not_sent_back(terminal: Terminal, server: ScriptedInstance) -> None:
    """A terminal shows it before the answer, marked; the conversation has the answer alone."""
    server.play(reasoning=("let me ", "see\x1b[2J"), texts=["it is 4"])
    terminal.type("2 + 2\n")
    shown = terminal.expect(r"4\s+> ")
    sent = _ask_again_and_leave(terminal, server)

    assert re.search(r"\(reasoning\) let me see\?\[2J\s+it is 4", shown)
    assert sent == ["2 + 2", "it is 4", "again"]


def test_an_answer_of_reasoning_alone_is_told(terminal: Terminal, server: ScriptedInstance) -> None:
    """Where the tokens end within the reasoning there is no answer to keep, and the operator is told why."""
    server.play(reasoning=("and so on",), texts=[""])
    terminal.type("2 + 2\n")
    terminal.expect(r"and so on\s+\(the answer ended within its reasoning; allow it more tokens\)\s+> ")

    assert _ask_again_and_leave(terminal, server) == ["again"]


def test_a_pipe_gets_the_answer_without_reasoning(server: ScriptedInstance) -> None:
    """What a script reads is the answer alone."""
    server.play(reasoning=("let me see",), texts=["it is 4"])
    command = [sys.executable, "-m", "ascendd", "chat", "--url", server.url, "--model", "big"]

    done = subprocess.run(command, input="2 + 2", capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "it is 4\n", "")
