"""The stream: lines across blocks, compressed input, times and ranks, bounded memory, and any bytes at all."""

from __future__ import annotations

import gzip
import subprocess
import sys
import zlib
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.diagnose.catalogue import load_catalogue
from ascendd.diagnose.scanner import scan
from ascendd.diagnose.source import BLOCK_BYTES, Source, file_sources, unpacked
from ascendd.diagnose.stamp import first_time, rank_of, readable
from ascendd.diagnose.verdict import conclude

CATALOGUE = load_catalogue()
STATIC_TLS = "ImportError: libgomp.so.1: cannot allocate memory in static TLS block"
# Pieces that make up logs, so that random logs are near to real ones.
PIECES = st.sampled_from(
    [
        STATIC_TLS, "\n", "\n\n", "\r\n", "error code is ", "507033", "507899", " EL0004", "EE9999: Inner Error!", "\x1b[31m",
        "NPU out of memory. Tried to allocate 3.40 GiB (NPU 0; 60.96 GiB total capacity; ", "58.90 GiB already allocated; ",
        "| 7 Ascend910 | OK ... | 31877/ 65536 |", "No running processes found in NPU 7", "rank[3]", "2026-99-99-25:61:61.1.2 ",
        "2026-03-01-04:05:06.007.008 ", "Feb 30 04:05:06 ", "13-41 99:00:00 ", "EI0006", "undefined symbol: _ZN3atb1", "\x00", "{", "}",
        "error ASD-E07: gave up", "Errno 98] bind on address ('0.0.0.0', 8000): address already in use", "not implemented for DT_{1}, should be in dtype support list [",
    ]
)  # fmt: skip


def report_of(*blocks: bytes):
    return conclude(CATALOGUE, [scan(CATALOGUE, Source("log", blocks))])


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_lines_may_be_cut_anywhere(size):
    """Where the blocks end changes nothing."""
    data = f"one\ntwo\n{STATIC_TLS}\nthree".encode()

    report = report_of(*(data[start : start + size] for start in range(0, len(data), size)))

    assert report.cause.diagnosis.id == "py.static_tls"
    assert report.cause.evidence[0].line == 3
    assert report.scans[0].num_lines == 4


def test_a_line_without_end_is_cut():
    """A megabyte without a newline is read in bounded pieces, and what it holds is found."""
    report = report_of(*[b"x" * 65_536] * 16, STATIC_TLS.encode())

    assert report.cause.diagnosis.id == "py.static_tls"
    assert len(report.cause.evidence[0].text) <= 300


@pytest.mark.parametrize("members", [1, 2])
def test_gzip_is_read_whatever_its_name(tmp_path, members):
    """A compressed log, of several members too, is known by its first bytes."""
    path = tmp_path / "plog.log"
    path.write_bytes(b"".join(gzip.compress(f"line\n{STATIC_TLS}\n".encode()) for _ in range(members)))

    (source,) = file_sources([str(path)])

    assert b"".join(source.blocks).count(b"static TLS") == members


def test_broken_gzip_is_read_as_far_as_it_goes():
    """A cut archive gives what could be unpacked."""
    data = gzip.compress(b"".join(b"%d %s\n" % (n, STATIC_TLS.encode()) for n in range(2_000)))

    report = report_of(*unpacked([data[: len(data) // 2]]))

    assert report.cause.diagnosis.id == "py.static_tls"


def test_compression_bomb_comes_in_small_blocks():
    """64 MB of zeros never stand in memory at once."""
    bomb = zlib.compressobj(wbits=31)
    data = b"".join(bomb.compress(b"\0" * 2**20) for _ in range(64)) + bomb.flush()

    sizes = [len(block) for block in unpacked([data])]

    assert sum(sizes) == 64 * 2**20
    assert max(sizes) <= BLOCK_BYTES


def test_folder_means_all_its_files(tmp_path):
    """A plog folder is read whole, in the order of names; an unreadable name is an error of its own."""
    (tmp_path / "run").mkdir()
    for name in ("run/b.log", "a.log"):
        (tmp_path / name).write_text("x\n")

    sources = list(file_sources([str(tmp_path), str(tmp_path / "gone")]))

    assert [source.name.rsplit("/", 1)[-1] for source in sources[:2]] == ["a.log", "b.log"]
    assert "does not exist" in sources[2].message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-01T04:05:06.250000Z x", datetime(2026, 3, 1, 4, 5, 6, 250_000, timezone.utc).timestamp()),
        ("2026-03-01T04:05:06.250000+0800 host", datetime(2026, 2, 28, 20, 5, 6, 250_000, timezone.utc).timestamp()),
        (
            "[ERROR] HCCL(9,python):2026-03-01-04:05:06.007.008 [a.cc:1]",
            datetime(2026, 3, 1, 4, 5, 6, 7008).timestamp(),
        ),
        ("2026-03-01 04:05:06,250 INFO", datetime(2026, 3, 1, 4, 5, 6, 250_000).timestamp()),
        ("2026-13-01 04:05:06", None),
        ("no time at all", None),
    ],
)
def test_time_stamps_are_read(text, expected):
    """The forms of the daemon, the journal, CANN and Python; an impossible date is none."""
    assert first_time(text) == expected


@pytest.mark.parametrize("text", ["Mar 01 04:05:06 host x", "INFO 03-01 04:05:06 [a.py:1]"])
def test_stamp_without_year_lies_in_the_last_year(text):
    """Syslog and short forms lack the year: the latest that is not in the future."""
    moment = datetime.fromtimestamp(first_time(text))

    assert (moment.month, moment.day, moment.hour) == (3, 1, 4)
    assert -2 <= (datetime.now() - moment).days <= 366


@pytest.mark.parametrize(
    ("text", "rank"),
    [("(PID:1, Device:0, RankID:3)", 0), ("rank[5] timeout", 5), ("(Worker_TP2 pid=9)", 2), ("x", None)],
)
def test_rank_is_read(text, rank):
    """Ranks of CANN, HCCL and workers."""
    assert rank_of(text) == rank


def test_secrets_and_colours_are_not_shown():
    """Evidence carries neither keys nor escape codes."""
    text = readable("\x1b[31mAuthorization: Bearer sk-123 api_key='abc' \x07end\x1b[0m")

    assert "sk-123" not in text
    assert "abc" not in text
    assert text.isprintable()


@given(st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=60), st.integers(0, 400), st.integers(1, 50))
def test_no_log_crashes_the_diagnoser(pieces, cut, size):
    """Any mixture of pieces, cut anywhere, gives a report whose evidence lies within the log."""
    data = "".join(pieces).encode("utf-8", "replace")[cut:]

    report = report_of(*(data[start : start + size] for start in range(0, len(data), size)))

    found = [*([report.cause] if report.cause else []), *report.others]
    assert all(item.line <= report.scans[0].num_lines for one in found for item in one.evidence)
    assert all("{" not in one.cause or "{" in item.text for one in found for item in one.evidence)
    report.to_json()


@given(st.binary(max_size=3000))
def test_any_bytes_are_a_log(data):
    """Bytes that are no text at all give a report."""
    assert report_of(*unpacked([data])).scans[0].num_bytes >= 0


MEMORY_SCRIPT = """
import pathlib, sys
from ascendd.diagnose.catalogue import load_catalogue
from ascendd.diagnose.scanner import scan
from ascendd.diagnose.source import Source, stream_blocks
from ascendd.diagnose.verdict import conclude
catalogue = load_catalogue()
report = conclude(catalogue, [scan(catalogue, Source("-", stream_blocks(sys.stdin.buffer)))])
status = pathlib.Path("/proc/self/status").read_text()
print(report.cause.diagnosis.id, report.scans[0].num_bytes, status.split("VmHWM:")[1].split()[0])
"""


def measure(num_bytes: int, healthy) -> tuple[str, int, int]:
    """Stream a log of at least `num_bytes` through a fresh interpreter; return id, bytes read and peak KiB."""
    chunk = ("\n".join(healthy(3).lines(5000)) + f"\n{STATIC_TLS}\n").encode()
    process = subprocess.Popen([sys.executable, "-c", MEMORY_SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    for _ in range(-(-num_bytes // len(chunk))):
        process.stdin.write(chunk)
    out, _ = process.communicate(timeout=600)
    name, size, peak = out.decode().split()
    return name, int(size), int(peak)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_200_megabytes_need_no_more_than_60(healthy):
    """A stream of 200 MB full of lines to look at stays below 60 MB of resident memory."""
    name, size, peak_kib = measure(200_000_000, healthy)

    print(f"{size / 1e6:.0f} MB read, peak {peak_kib / 1024:.1f} MiB")
    assert name == "py.static_tls"
    assert size >= 200_000_000
    assert peak_kib * 1024 < 60_000_000


def test_memory_does_not_grow_with_the_log(healthy):
    """The same bound at 6 MB, quick enough for every run."""
    _, size, peak_kib = measure(6_000_000, healthy)

    assert size >= 6_000_000
    assert peak_kib * 1024 < 60_000_000
