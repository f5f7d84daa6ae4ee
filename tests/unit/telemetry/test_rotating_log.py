"""One rotated file: by size, by age, compressed, on full disks, beside a logrotate."""

from __future__ import annotations

import errno
import gzip
import json
import os

import pytest

from ascendd.errors import PermissionMissing
from ascendd.telemetry import rotating_log
from ascendd.telemetry.rotating_log import RotatingLog, check_log_file


def test_the_file_is_rotated_by_size(tmp_path):
    """B96: no file grows beyond the limit, and as many old ones as asked for are kept, newest first."""
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


def test_rotated_files_are_compressed(tmp_path):
    """Old files become FILE.N.gz with the same lines, in order, as many as asked for."""
    target = RotatingLog(tmp_path / "a.log", max_bytes=10, backups=2, compress=True)

    for number in range(8):
        target.write(b"line%d" % number)
        target.settle()
    target.close()

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.log", "a.log.1.gz", "a.log.2.gz"]
    assert gzip.decompress((tmp_path / "a.log.1.gz").read_bytes()) == b"line6\n"
    assert gzip.decompress((tmp_path / "a.log.2.gz").read_bytes()) == b"line5\n"


def test_a_file_that_cannot_be_compressed_stays_plain(tmp_path, monkeypatch):
    """A disk too full for the compressed copy costs nothing that was written, and leaves no half of one."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(rotating_log.shutil, "copyfileobj", refuse)
    target = RotatingLog(tmp_path / "a.log", max_bytes=6, backups=2, compress=True)

    for word in (b"first", b"other", b"third"):
        target.write(word)
        target.settle()
    target.close()

    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"a.log": "third\n", "a.log.1": "other\n", "a.log.2": "first\n"}


def test_the_file_is_rotated_by_age(tmp_path):
    """A file whose first line is older than max_age_s is rotated though it is small, also after a restart."""
    now_s = [1_000_000.0]
    path = tmp_path / "a.log"
    path.write_text(json.dumps({"timestamp": "1970-01-12T13:46:40Z", "event": "old"}) + "\n")
    target = RotatingLog(path, max_bytes=1000, backups=3, max_age_s=60, clock=lambda: now_s[0])

    target.write(b"young enough")
    now_s[0] += 61
    target.write(b"next")
    target.close()

    assert path.read_text() == "next\n"
    assert (tmp_path / "a.log.1").read_text().splitlines()[-1] == "young enough"


@pytest.mark.parametrize("external", ["move", "remove"])
def test_an_external_logrotate_is_followed(tmp_path, monkeypatch, external):
    """B97: a file that was moved or removed without a signal is made again; what was moved keeps its lines."""
    monkeypatch.setattr(rotating_log, "_LOOK_S", 0.0)
    path = tmp_path / "a.log"
    target = RotatingLog(path, max_bytes=1000, backups=1)
    target.write(b"old")

    if external == "move":
        path.rename(tmp_path / "moved")
    else:
        path.unlink()
    target.write(b"new")
    target.close()

    assert path.read_text() == "new\n"


def test_a_file_emptied_in_place_counts_from_zero(tmp_path, monkeypatch):
    """B97: after logrotate's copytruncate the size starts anew, so nothing is rotated too early."""
    monkeypatch.setattr(rotating_log, "_LOOK_S", 0.0)
    path = tmp_path / "a.log"
    target = RotatingLog(path, max_bytes=10, backups=1)
    target.write(b"12345678")

    os.truncate(path, 0)
    target.write(b"abc")
    target.close()

    assert [file.name for file in tmp_path.iterdir()] == ["a.log"]
    assert path.read_text() == "abc\n"


def test_a_missing_folder_is_named_and_not_made(tmp_path):
    """A slip of the pen in log.file is told with the folder and makes no folder tree."""
    with pytest.raises(PermissionMissing, match=r"the folder .*/typo/logs does not exist") as caught:
        check_log_file(tmp_path / "typo" / "logs" / "a.log")

    assert caught.value.code == "ASD-H03"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    """The error names the file and what to do about its folder."""
    with pytest.raises(PermissionMissing, match="cannot be written: Is a directory"):
        RotatingLog(tmp_path, max_bytes=10, backups=1)


def test_the_log_is_never_for_everybody_to_read(tmp_path):
    """Made by the look at it before the start, too: whatever the umask, nobody but owner and group reads it."""
    before = os.umask(0)
    try:
        check_log_file(tmp_path / "a.log")
    finally:
        os.umask(before)

    assert (tmp_path / "a.log").stat().st_mode & 0o777 == 0o640
