"""One byte budget for logs, rotated logs and the vendor's folders."""

from __future__ import annotations

import os
from pathlib import Path

from ascendd.supervisor.npu_environment import npu_environment
from ascendd.telemetry.log_budget import LogBudget, vendor_log_folders

NOW_S = 2_000_000.0
BLOCK = 4096


def make(path: Path, age_s: float, blocks: int = 1) -> Path:
    """Write a file of that many blocks, last changed that long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * BLOCK * blocks)
    os.sync()
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    return path


def test_the_oldest_go_first_whoever_wrote_them(tmp_path):
    """Rotated logs and the vendor's logs are one heap: the oldest goes, the log file itself never."""
    log = make(tmp_path / "logs/a.log", 9000)
    newer, older = make(tmp_path / "logs/a.log.1.gz", 500), make(tmp_path / "logs/a.log.2.gz", 3000)
    plog = make(tmp_path / "ascend/debug/plog/plog-1.log", 4000)
    foreign = make(tmp_path / "logs/a.log.conf", 99_000)
    budget = LogBudget(2 * BLOCK, log, [tmp_path / "ascend"])

    swept = budget.sweep(NOW_S)

    assert (swept.num_removed, swept.over) == (2, False)
    assert swept.total_bytes <= 2 * BLOCK
    assert [path.exists() for path in (log, newer, older, plog, foreign)] == [True, True, False, False, True]


def test_a_file_in_use_stays_and_the_excess_is_told(tmp_path):
    """A file that was written to just now is not removed under its writer; the sweep says that it is too much."""
    plog = make(tmp_path / "plog-1.log", 5, blocks=3)

    swept = LogBudget(BLOCK, None, [tmp_path]).sweep(NOW_S)

    assert plog.exists()
    assert (swept.num_removed, swept.over) == (0, True)


def test_a_link_is_not_followed(tmp_path):
    """What a link points to belongs to somebody else."""
    other = make(tmp_path / "other/file", 9000)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/link").symlink_to(other)
    (tmp_path / "logs/folder").symlink_to(other.parent)

    swept = LogBudget(0, None, [tmp_path / "logs"]).sweep(NOW_S)

    assert other.exists()
    assert swept.total_bytes == 0


def test_only_the_instances_own_vendor_folder_is_swept():
    """It is the one that the engine is started with; the user's common folder is nobody's to empty."""
    environ = {"LOGS_DIRECTORY": "/var/log/ascendd", "HOME": "/h"}

    assert vendor_log_folders(environ, "demo") == [
        Path(npu_environment(environ, devices=[0], instance="demo")["ASCEND_PROCESS_LOG_PATH"])
    ]
    assert vendor_log_folders({"HOME": "/h"}, "demo") == []
