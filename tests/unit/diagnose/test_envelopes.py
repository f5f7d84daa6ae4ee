"""A log in another form says the same: line ends, encodings, NULs, colours, gzip, entries of the journal and of Docker."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_score import log_cases, named, print_score

from ascendd.diagnose.catalogue import load_catalogue
from ascendd.diagnose.envelope import MAX_ENTRY_BYTES, without_envelope
from ascendd.diagnose.scanner import scan
from ascendd.diagnose.source import Source, file_sources
from ascendd.diagnose.verdict import conclude

RED, PLAIN = "\x1b[31m", "\x1b[0m"


def journal(text: str, message: Callable[[str], object] = str) -> bytes:
    """Return `text` as `journalctl -o json` prints it."""
    entries = [
        {"__REALTIME_TIMESTAMP": f"{1772340000000000 + i * 1000}", "_PID": "4242", "SYSLOG_IDENTIFIER": "ascendd",
         "_HOSTNAME": "npu1", "MESSAGE": message(line)}
        for i, line in enumerate(text.splitlines())
    ]  # fmt: skip
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def docker(text: str) -> bytes:
    """Return `text` as Docker's json-file keeps it."""
    entries = [{"log": line + "\n", "stream": "stderr", "time": "2026-03-03T10:00:00.1Z"} for line in text.splitlines()]
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def coloured(line: str) -> str:
    """Return a line as a program writes it that takes the journal for a terminal."""
    return f"{RED}{line}{PLAIN}"


def noise(seed: int) -> bytes:
    """Bytes that are no text."""
    return random.Random(seed).randbytes(300_000)


def in_a_long_line(text: str) -> bytes:
    """Return `text` with its first line in the middle of one of 300 KB."""
    first, _, rest = text.partition("\n")
    return b"x" * 100_000 + b" " + first.encode() + b" " + b"y" * 200_000 + b"\n" + rest.encode()


FORMS: dict[str, Callable[[str], bytes]] = {
    "line ends of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "no final newline": lambda text: text.rstrip("\n").encode(),
    "UTF-16, low byte first": lambda text: b"\xff\xfe" + text.encode("utf-16-le"),
    "UTF-16, high byte first": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "UTF-8 with a mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "a hole of NULs": lambda text: b"\0" * 5000 + text.encode(),
    "gzip": lambda text: gzip.compress(text.encode()),
    "gzip that was cut": lambda text: gzip.compress(text.encode() + b"\n" + noise(1))[:-100],
    "journal as JSON": journal,
    "journal as JSON, coloured": lambda text: journal(text, lambda line: list(coloured(line).encode())),
    "Docker": docker,
    "colours": lambda text: "\n".join(map(coloured, text.splitlines())).encode(),
    "a long line": in_a_long_line,
    "binary around it": lambda text: noise(2) + b"\n" + text.encode() + b"\n" + noise(3),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_fault_is_named_in_every_form(faults: list[dict[str, str]], tmp_path: Path, form: str) -> None:
    """What a case says as plain text it says in this form, read from a file."""
    catalogue, rows = load_catalogue(), []
    path = tmp_path / "rank0.log"
    for case_id, text, code, _ in log_cases(faults):
        path.write_bytes(FORMS[form](text))
        (source,) = file_sources([str(path)])
        assert isinstance(source, Source)
        rows.append((case_id, code, named(conclude(catalogue, [scan(catalogue, source)]))))

    score = print_score(form, rows)

    assert score["right"] == len(rows) >= 55


@pytest.mark.parametrize("form", ["journal as JSON", "journal as JSON, coloured", "Docker", "UTF-16, low byte first"])
def test_a_healthy_log_in_another_form_names_nothing(healthy, form: str) -> None:
    """Taking a form off makes no cause."""
    catalogue = load_catalogue()
    data = FORMS[form]("\n".join(healthy(1001).lines(2000)))

    report = conclude(catalogue, [scan(catalogue, Source("a.log", without_envelope([data])))])

    assert named(report) is None


def test_an_entry_becomes_a_line_of_the_journal_with_its_time() -> None:
    """Time, host, name and process stand before the message; a row of a table keeps its place; others go through."""
    entries = journal("engine: died\n| 0 910B3 |") + b'{"half": \n' + b"{" + b"x" * 10 + b"\n"

    (text,) = without_envelope([entries])

    assert text.splitlines() == [
        b"2026-03-01T04:40:00.000000Z npu1 ascendd[4242]: engine: died", b"| 0 910B3 |", b'{"half": ', b"{xxxxxxxxxx",
    ]  # fmt: skip


@pytest.mark.parametrize("size", [1, 7, 65_536])
def test_where_a_block_ends_does_not_matter(size: int) -> None:
    """Bytes of an entry, or of a letter, that come apart are put together again."""
    for data in (journal("错误 one\ntwo"), b"\xff\xfe" + "错误 one\ntwo".encode("utf-16-le"), b"plain\nlines"):
        whole = b"".join(without_envelope([data]))

        assert b"".join(without_envelope(data[at : at + size] for at in range(0, len(data), size))) == whole


def test_the_daemon_s_own_json_lines_are_no_entries() -> None:
    """They are searched as they are."""
    line = b'{"timestamp": "2026-03-03T10:00:00Z", "level": "error", "event": "engine.died"}\n'

    assert b"".join(without_envelope([line])) == line


def test_an_entry_without_an_end_is_not_kept() -> None:
    """A stream that never ends its line is handed on in pieces."""
    pieces = (b"z" * 65_536 for _ in range(64))
    first = journal("one")

    longest = max(map(len, without_envelope([first, *pieces])))

    assert longest <= MAX_ENTRY_BYTES + 65_536 + len(first)
