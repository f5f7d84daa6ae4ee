"""The supervisor's end of the log pipe."""

from __future__ import annotations

import os

import pytest

from ascendd.errors import PermissionMissing
from ascendd.supervisor.log_pipe import LossyStream, check_log_file


def test_a_full_pipe_never_stops_the_writer():
    """Lines that do not fit are dropped; the first that fits comes with their count."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stream = LossyStream(writer)
    line = "x" * 4000 + "\n"

    num_written = 0
    while not stream.num_dropped:
        stream.write(line)
        num_written += 1
    stream.write(line)
    dropped = stream.num_dropped
    os.read(reader, 1 << 20)
    stream.write("after\n")
    text = os.read(reader, 1 << 20).decode()
    os.close(reader)
    os.close(writer)

    assert num_written > 1
    assert dropped == 2
    assert text == '{"event":"log.lines_dropped","role":"supervisor","count":2}\nafter\n'


def test_a_log_file_that_cannot_be_written_is_told_before_the_start(tmp_path):
    """The error names the file while it can still be seen on the terminal or in the journal."""
    with pytest.raises(PermissionMissing, match="cannot be written"):
        check_log_file(tmp_path)


def test_the_folder_of_a_log_file_is_made(tmp_path):
    """A missing folder is no reason not to start."""
    check_log_file(tmp_path / "new" / "a.log")

    assert (tmp_path / "new" / "a.log").exists()
