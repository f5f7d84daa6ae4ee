"""The log writer as a process: four writers and one pipe, under volume and beside a logrotate."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ascendd.config.load import convert
from ascendd.errors import PeerClosed
from ascendd.ipc.channel import BlockingChannel
from ascendd.ipc.messages import Configure, ControlMessage, Hello

pytestmark = pytest.mark.system
NUM_WRITERS = 4
LINE_BYTES = 100
LIMIT_BYTES = 1_000_000
PATIENCE_S = 120.0
# At each number on standard input, writes so many more numbered lines of 100 bytes, each in one call as a log line is.
_WRITER = """
import os, sys
number = 0
for count in sys.stdin:
    for number in range(number, number + int(count)):
        os.write(1, f"{sys.argv[1]} {number:06d} ".ljust(99, "x").encode() + b"\\n")
    number += 1
"""


class Writers:
    """A `_logwriter` process with `log` as its configuration, and four processes that write to its pipe."""

    def __init__(self, log: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        self._control: BlockingChannel[ControlMessage] = BlockingChannel(ours, ControlMessage)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ascendd", "_logwriter", "--control-fd", str(theirs.fileno()), "--data-fd", str(reader)],
            pass_fds=(theirs.fileno(), reader),
        )  # fmt: skip
        theirs.close()
        os.close(reader)
        while not isinstance(self._control.recv(PATIENCE_S), Hello):
            pass
        self._control.send(Configure(msgspec.json.encode(convert({"model": {"path": "/m"}, "log": log}))))
        self._heard = threading.Thread(target=self._hear)
        self._heard.start()
        self._writers = [
            subprocess.Popen([sys.executable, "-c", _WRITER, f"w{n}"], stdin=subprocess.PIPE, stdout=writer)
            for n in range(NUM_WRITERS)
        ]
        os.close(writer)

    def _hear(self) -> None:
        try:
            while True:
                self._control.recv(None)
        except PeerClosed:
            pass

    def write(self, count: int) -> None:
        """Have each of the four write `count` more lines."""
        for writer in self._writers:
            assert writer.stdin is not None
            writer.stdin.write(b"%d\n" % count)
            writer.stdin.flush()

    def finish(self) -> list[int]:
        """Let all write what they were told to, and return the exit statuses of the five processes."""
        for writer in self._writers:
            assert writer.stdin is not None
            writer.stdin.close()
        return [*(writer.wait(PATIENCE_S) for writer in self._writers), self.process.wait(PATIENCE_S)]

    def close(self) -> None:
        """End what still runs."""
        for process in (*self._writers, self.process):
            process.kill()
            process.wait(PATIENCE_S)
            if process.stdin is not None:
                process.stdin.close()
        self._heard.join(PATIENCE_S)
        self._control.close()


@pytest.fixture
def start_writers(tmp_path: Path) -> Iterator[Callable[..., Writers]]:
    """Give a function that starts everything, logging to a.log."""
    made: list[Writers] = []

    def start(**log: Any) -> Writers:
        made.append(Writers({"file": str(tmp_path / "a.log"), "compress": False, **log}))
        return made[-1]

    yield start
    for writers in made:
        writers.close()


def numbers_in(*files: Path) -> dict[str, list[int]]:
    """Return the numbers of each writer's lines in their order; a torn line fails the test."""
    numbers: dict[str, list[int]] = {}
    for line in b"".join(file.read_bytes() for file in files).splitlines():
        assert len(line) == LINE_BYTES - 1, line
        name, number, filler = line.decode().split(" ")
        assert set(filler) == {"x"}, line
        numbers.setdefault(name, []).append(int(number))
    return numbers


def all_of(*numbers: int) -> dict[str, list[int]]:
    """Return what `numbers_in` gives where no line is missing: those from the first to before the second number."""
    return {f"w{writer}": list(range(*numbers)) for writer in range(NUM_WRITERS)}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_b96_four_processes_and_fifty_megabytes(start_writers: Callable[..., Writers], tmp_path: Path) -> None:
    """B96: 50 MB of numbered lines of four processes, limit 1 MB: none lost, torn or out of order; each file near the limit."""
    lines_each = 125_000
    writers = start_writers(max_bytes=LIMIT_BYTES, backups=100)

    writers.write(lines_each)
    statuses = writers.finish()
    rotated = sorted(tmp_path.glob("a.log.*"), key=lambda path: -int(path.suffix[1:]))
    sizes = [path.stat().st_size for path in rotated]

    assert statuses == [0] * (NUM_WRITERS + 1)
    assert numbers_in(*rotated, tmp_path / "a.log") == all_of(0, lines_each)
    assert len(sizes) == NUM_WRITERS * lines_each * LINE_BYTES // LIMIT_BYTES - 1
    assert all(LIMIT_BYTES - LINE_BYTES <= size <= LIMIT_BYTES for size in sizes), sizes


def test_b96_old_files_are_bounded(start_writers: Callable[..., Writers], tmp_path: Path) -> None:
    """B96: whatever is written, limit x (count + 1) is the most that lies there, and it is the newest."""
    writers = start_writers(max_bytes=100_000, backups=3)

    writers.write(5000)
    statuses = writers.finish()
    files = [*(tmp_path / f"a.log.{number}" for number in (3, 2, 1)), tmp_path / "a.log"]
    kept = numbers_in(*files)

    assert statuses == [0] * (NUM_WRITERS + 1)
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert sum(file.stat().st_size for file in files) <= 4 * 100_000
    # Whoever finished early has no line among the newest.
    assert max(numbers[-1] for numbers in kept.values()) == 4999
    assert all(numbers == list(range(numbers[0], numbers[0] + len(numbers))) for numbers in kept.values())


def test_b97_external_rotation(
    start_writers: Callable[..., Writers], eventually: Callable[..., Any], tmp_path: Path
) -> None:
    """
    B97: after a move and SIGHUP all four processes write to the new file, and no line is lost between the two.

    Emptied in place (copytruncate) it goes on at its beginning: no hole is in front of the next line.
    """
    path, moved, copied = tmp_path / "a.log", tmp_path / "a.log-1", tmp_path / "a.log-2"
    writers = start_writers(max_bytes=50 * LIMIT_BYTES, backups=1)

    def holds(num_lines: int) -> Callable[[], bool]:
        return lambda: path.exists() and path.stat().st_size == num_lines * LINE_BYTES

    writers.write(500)
    eventually(holds(NUM_WRITERS * 500), PATIENCE_S)
    path.rename(moved)
    writers.process.send_signal(signal.SIGHUP)
    # The file of a signal that is on its way is the old one, as with every daemon: the next lines wait for it.
    eventually(lambda: not _has_open(writers.process.pid, moved), PATIENCE_S)
    writers.write(300)
    eventually(holds(NUM_WRITERS * 300), PATIENCE_S)
    shutil.copy(path, copied)
    os.truncate(path, 0)
    writers.write(200)
    statuses = writers.finish()
    found = path.stat()

    assert statuses == [0] * (NUM_WRITERS + 1)
    assert numbers_in(moved) == all_of(0, 500)
    assert numbers_in(copied) == all_of(500, 800)
    assert numbers_in(path) == all_of(800, 1000)
    assert found.st_size == NUM_WRITERS * 200 * LINE_BYTES
    assert found.st_blocks * 512 >= found.st_size


def _has_open(pid: int, path: Path) -> bool:
    names = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(os.readlink(fd))
        except FileNotFoundError:
            continue
    return str(path) in names
