"""A log file on a disk that is full for as long as a drill says."""

from __future__ import annotations

import time

from ascendd.ipc.messages import InjectFault
from ascendd.telemetry.drill_log import DrillLog


def test_a_full_disk_costs_lines_which_are_counted(tmp_path):
    """While it is full nothing is written; the first line afterwards comes behind the count."""
    log = DrillLog(tmp_path / "log", 1000, 1)
    log.write(b"before")
    log.take(InjectFault("full-disk", 0.05))
    log.write(b"lost")
    log.write(b"lost, too")
    assert log.num_dropped == 2

    time.sleep(0.06)
    log.write(b"after")
    log.close()
    lines = (tmp_path / "log").read_text().splitlines()

    assert (lines[0], lines[-1], len(lines)) == ("before", "after", 3)
    assert '"count":2' in lines[1]


def test_a_slow_disk_holds_the_writer(tmp_path):
    """The write returns when the disk answers again, and the line is there."""
    log = DrillLog(tmp_path / "log", 1000, 1)
    log.take(InjectFault("slow-disk", 0.2))
    began = time.monotonic()
    log.write(b"late")
    log.close()

    assert time.monotonic() - began >= 0.2
    assert (tmp_path / "log").read_text() == "late\n"
