"""The supervisor's end of the log pipe."""

from __future__ import annotations

import os

from ascendd.supervisor.log_pipe import LossyStream


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
