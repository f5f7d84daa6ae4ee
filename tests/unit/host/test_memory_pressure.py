"""Pressure of memory, read from files as kernels write them."""

from __future__ import annotations

from ascendd.host.files import HostFiles
from ascendd.host.memory_pressure import MemoryPressure, read_pressure

STALL = "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10={full} avg60=0.50 avg300=0.05 total=1\n"


def write(root, files):
    """Write `files`, path to text, below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return HostFiles(str(root))


def test_the_own_group_speaks_before_the_host(tmp_path):
    """Its pressure and its out-of-memory count; memory that is left is the host's."""
    group = "sys/fs/cgroup/ascendd.slice/a.service"
    files = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/ascendd.slice/a.service\n",
            "proc/pressure/memory": STALL.format(full="1.00"),
            "proc/meminfo": "MemTotal: 1000000 kB\nMemAvailable: 400000 kB\n",
            f"{group}/memory.pressure": STALL.format(full="33.25"),
            f"{group}/memory.events": "low 0\nhigh 5\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n",
        },
    )

    assert read_pressure(files) == MemoryPressure(33.25, 2, 409_600_000, 1_024_000_000)


def test_the_host_speaks_where_the_group_does_not(tmp_path):
    """Without a unified hierarchy the host's pressure counts; a kernel without any tells None."""
    old = write(
        tmp_path / "old",
        {
            "proc/self/cgroup": "4:memory:/x\n",
            "proc/pressure/memory": STALL.format(full="1.00"),
            "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 400 kB\n",
        },
    )
    (tmp_path / "none").mkdir()

    assert read_pressure(old) == MemoryPressure(1.0, None, 409_600, 1_024_000)
    assert read_pressure(HostFiles(str(tmp_path / "none"))) == MemoryPressure(None, None, None, None)
