"""Lines from a pipe."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ascendd.telemetry.log_writer import LineSplitter


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
