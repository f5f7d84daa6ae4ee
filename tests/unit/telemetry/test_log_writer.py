"""Lines from a pipe into a rotated file."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.errors import PermissionMissing
from ascendd.telemetry.log_writer import LineSplitter, RotatingLog


@given(st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line), max_size=10), st.integers(1, 7))
def test_lines_come_out_whole_however_they_were_cut(lines, size):
    """Whatever the sizes of the reads, the lines are those that were written, in order."""
    splitter = LineSplitter()
    data = b"".join(line + b"\n" for line in lines)

    out = [line for start in range(0, len(data), size) for line in splitter.feed(data[start : start + size])]

    assert out == lines
    assert splitter.rest() == []


def test_the_last_words_without_a_line_end_are_kept():
    """What a process wrote just before it died is not lost for want of a line end."""
    splitter = LineSplitter()

    assert splitter.feed(b"whole\npart") == [b"whole"]
    assert splitter.rest() == [b"part"]


def test_a_line_without_end_is_cut():
    """A writer that never ends its line takes no more memory than the limit."""
    splitter = LineSplitter(max_line_bytes=4)

    assert splitter.feed(b"abcdefghij") == [b"abcd", b"efgh"]


def test_the_file_is_rotated_by_size(tmp_path):
    """No file grows beyond the limit, and as many old ones as asked for are kept, newest first."""
    target = RotatingLog(tmp_path / "a.log", max_bytes=10, backups=2)

    for number in range(8):
        target.write(b"line%d" % number)
    target.close()

    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "a.log": "line7\n",
        "a.log.1": "line6\n",
        "a.log.2": "line5\n",
    }


def test_an_existing_file_is_continued(tmp_path):
    """After a restart the file goes on where it was, and its old size counts."""
    (tmp_path / "a.log").write_text("12345678\n")
    target = RotatingLog(tmp_path / "a.log", max_bytes=15, backups=1)

    target.write(b"new")
    target.write(b"newer")
    target.close()

    assert (tmp_path / "a.log.1").read_text() == "12345678\nnew\n"
    assert (tmp_path / "a.log").read_text() == "newer\n"


def test_without_backups_the_file_starts_anew(tmp_path):
    """backups: 0 keeps the size bound, too."""
    target = RotatingLog(tmp_path / "a.log", max_bytes=10, backups=0)

    for word in (b"first", b"second", b"third"):
        target.write(word)
    target.close()

    assert [path.read_text() for path in tmp_path.iterdir()] == ["third\n"]


def test_a_full_disk_drops_whole_lines_and_tells(tmp_path, monkeypatch):
    """While the disk is full lines are dropped, never cut; the first that fits comes after the count of the lost."""
    target = RotatingLog(tmp_path / "a.log", max_bytes=1000, backups=1)
    real_write, is_full = os.write, [False]

    def write(fd, data):
        if not is_full[0]:
            return real_write(fd, data)
        if len(data) < 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, data[:3])

    monkeypatch.setattr(os, "write", write)
    target.write(b"before")
    is_full[0] = True
    target.write(b"lost")
    target.write(b"x")
    is_full[0] = False
    target.write(b"after")
    target.close()

    lines = (tmp_path / "a.log").read_text().splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("before", "after", 3)
    assert '"count":2' in lines[1]


def test_a_file_moved_away_is_made_again(tmp_path):
    """After `reopen` lines go to a file of the configured name, not to the one that was moved."""
    target = RotatingLog(tmp_path / "a.log", max_bytes=1000, backups=1)
    target.write(b"old")

    (tmp_path / "a.log").rename(tmp_path / "moved")
    target.reopen()
    target.write(b"new")
    target.close()

    assert (tmp_path / "moved").read_text() == "old\n"
    assert (tmp_path / "a.log").read_text() == "new\n"


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    """The error names the file and what to do about its folder."""
    (tmp_path / "folder").mkdir()

    with pytest.raises(PermissionMissing, match="folder cannot be opened: Is a directory"):
        RotatingLog(tmp_path / "folder", max_bytes=10, backups=1)
