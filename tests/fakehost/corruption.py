"""
Every fact that the checks read of a fake host, and that fact spoilt: junk, nothing, half of it, bytes that are no text,
shut to this user, a folder in its place. A fact is a file, a folder that is listed, or an answer of a tool.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examination import examine, replayer
from fake_machine import FakeMachine

from ascendd.host.command import CommandOutcome
from ascendd.host.files import HostFiles
from ascendd.preflight.check import CheckResult
from ascendd.preflight.context import CheckContext
from ascendd.preflight.discover import find_checks

KINDS = ("junk", "empty", "truncated", "binary", "denied", "folder")
_JUNK = b"the quick brown fox\n"
_BINARY = bytes(range(256)) * 4
Note = tuple[str, str]


@dataclass(frozen=True, order=True)
class Fact:
    """`file PATH`, `list FOLDER` or `tool NAME ARGUMENTS`, as the host sees it."""

    sort: str
    name: str

    def __str__(self) -> str:
        return f"{self.sort} {self.name}"

    def place(self, machine: FakeMachine) -> Path:
        """Where it lies in the folder of the fake host."""
        if self.sort == "tool":
            tool, _, arguments = self.name.partition(" ")
            return machine.root / ".answers" / tool / (arguments or "_")
        return machine.root / self.name.lstrip("/")

    def kinds(self) -> tuple[str, ...]:
        """In which ways it can be spoilt."""
        return ("denied",) if self.sort == "list" else KINDS


class _NotingFiles(HostFiles):
    """The files of a fake host; each that is read, and each folder that is listed, is put down in `notes`."""

    def __init__(self, root: str, notes: list[Note]) -> None:
        super().__init__(root)
        self._notes = notes

    def read_text(self, path: str) -> str:
        self._notes.append(("file", path))
        return super().read_text(path)

    def list_dir(self, path: str, pattern: str = "*") -> tuple[str, ...]:
        self._notes.append(("list", path))
        return super().list_dir(path, pattern)


def facts_read(machine: FakeMachine, request: Mapping[str, object]) -> dict[Fact, set[str]]:
    """Return every fact that is there, with the ids of the checks that read it."""
    notes: dict[str, list[Note]] = defaultdict(list)
    replay = replayer(machine)

    def watch(context: CheckContext, check_id: str) -> None:
        def run(argv: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> CommandOutcome:
            notes[check_id].append(("tool", " ".join([Path(argv[0]).name, *argv[1:]])))
            return replay(argv, timeout_s, environ)

        context.files = _NotingFiles(str(machine.root), notes[check_id])
        context.run = run

    examine(machine, watch=watch, **request)
    files = HostFiles(str(machine.root))
    readers: dict[Fact, set[str]] = defaultdict(set)
    for check_id, read in notes.items():
        for sort, name in read:
            # A file can have several names; what counts is the file.
            fact = Fact(sort, name if sort == "tool" else files.resolve(name))
            if fact.place(machine).exists():
                readers[fact].add(check_id)
    return readers


@contextlib.contextmanager
def spoilt(machine: FakeMachine, fact: Fact, kind: str) -> Iterator[None]:
    """Have `fact` spoilt inside of the block."""
    if fact.sort == "list" or (kind == "denied" and fact.sort == "file"):
        machine.deny(fact.name)
        try:
            yield
        finally:
            del machine.denied[fact.name]
            machine.mark()
        return
    place = fact.place(machine)
    kept, status = place.with_name(place.name + ".kept"), Path(f"{place}.status")
    place.rename(kept)
    try:
        if kind == "folder" and fact.sort == "file":
            place.mkdir()
        elif kind in ("denied", "folder"):  # of a tool: refused, and one that cannot be started
            place.write_text("Permission denied\n" if kind == "denied" else "")
            status.write_text("13" if kind == "denied" else "126")
        else:
            content = kept.read_bytes()
            half = content[: len(content) // 2]
            place.write_bytes({"junk": _JUNK, "empty": b"", "truncated": half, "binary": _BINARY}[kind])
        yield
    finally:
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        status.unlink(missing_ok=True)
        kept.rename(place)


def answers_about(
    machine: FakeMachine, fact: Fact, kind: str, readers: set[str], request: Mapping[str, object]
) -> dict[str, CheckResult]:
    """Return what `readers` say where `fact` is spoilt so."""
    with spoilt(machine, fact, kind):
        results = examine(machine, only=_with_needed(readers), **request)
    return {name: result for name, result in results.items() if name in readers}


def _with_needed(check_ids: set[str]) -> set[str]:
    """Return these checks and all that they require, however far."""
    requires = {check.id: check.requires for check in find_checks()}
    wanted: set[str] = set()
    left = list(check_ids)
    while left:
        one = left.pop()
        if one not in wanted:
            wanted.add(one)
            left += requires[one]
    return wanted
