"""Which deaths the kernel's own count of out-of-memory kills explains, on recorded files of both cgroup versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ascendd.host.files import HostFiles
from ascendd.host.oom_kills import OomKills

EVENTS = "low 0\nhigh 0\nmax 213\noom 9\noom_kill {count}\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill {count}\n"
UNIT = "/ascendd.slice/ascendd@demo.service"
V2 = ("0::" + UNIT + "\n", "/sys/fs/cgroup" + UNIT + "/memory.events", EVENTS)
V1 = (
    "9:name=systemd:/x\n4:memory:" + UNIT + "\n0::/\n",
    "/sys/fs/cgroup/memory" + UNIT + "/memory.oom_control",
    CONTROL,
)


def write(root: Path, path: str, text: str) -> None:
    """Put a file of the host below `root`."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("groups", "path", "content"), [V2, V1], ids=["v2", "v1"])
def test_each_kill_explains_one_death(tmp_path: Path, groups: str, path: str, content: str) -> None:
    """What was counted before the start explains nothing; two kills explain two deaths and not a third."""
    write(tmp_path, "/proc/self/cgroup", groups)
    write(tmp_path, path, content.format(count=4))
    kills = OomKills(HostFiles(str(tmp_path)))
    before = kills.explain()
    write(tmp_path, path, content.format(count=6))

    assert kills.path == path
    assert before is False
    assert [kills.explain() for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("groups", "content"),
    [(None, None), ("0::/\n", None), ("0::/elsewhere\n", None), ("0::" + UNIT + "\n", "low 0\noom 1\n")],
    ids=["no-proc", "root", "other-namespace", "old-kernel"],
)
def test_a_host_without_the_count_explains_nothing(tmp_path: Path, groups: str | None, content: str | None) -> None:
    """Then it is neither said that the kernel did it nor that it did not."""
    if groups is not None:
        write(tmp_path, "/proc/self/cgroup", groups)
    if content is not None:
        write(tmp_path, V2[1], content)
    kills = OomKills(HostFiles(str(tmp_path)))

    assert kills.path is None
    assert kills.explain() is None
