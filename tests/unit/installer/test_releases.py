"""Releases side by side: the links move in one step, instances follow one by one, and all go back when one does not come."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ascendd.installer.host import Host
from ascendd.installer.releases import Releases, show

from ascendd.errors import HostError, UsageError

SYSTEMCTL = """#!/bin/sh
echo "$*" >> {log}
case "$1" in
list-units) cat {units} ;;
restart) release=$(readlink {current}); echo "$2 runs $release" >> {log}; [ "$2 $release" != "$(cat {bad})" ] ;;
esac
"""


class FakeReleases:
    """A root with releases and a systemctl that notes what it is asked."""

    def __init__(self, folder: Path, *units: str) -> None:
        self.root, self.log, self.bad = folder / "root", folder / "log", folder / "bad"
        self.folder = self.root / "opt/ascendd"
        (self.root / "run/systemd/system").mkdir(parents=True)
        self.bad.write_text("")
        self.log.write_text("")
        listed = folder / "units"
        listed.write_text("".join(f"{unit} loaded active running ascendd instance\n" for unit in units))
        tool = folder / "bin/systemctl"
        tool.parent.mkdir()
        tool.write_text(SYSTEMCTL.format(log=self.log, units=listed, current=self.folder / "current", bad=self.bad))
        tool.chmod(0o755)
        self.lines: list[str] = []
        host = Host(str(self.root), {"PATH": f"{tool.parent}:/usr/bin:/bin"})
        host.say = self.lines.append
        self.releases = Releases(host)

    def add(self, version: str, *, finished: bool = True) -> None:
        """Put a release beside the others."""
        path = self.folder / version
        path.mkdir(parents=True)
        if finished:
            (path / "release.json").write_text(json.dumps({"version": version, "python": "/usr/bin/python3.11"}))

    def restarts(self) -> list[str]:
        """What ran with which release, in order."""
        return [line for line in self.log.read_text().splitlines() if " runs " in line]


@pytest.fixture
def fake(tmp_path: Path) -> FakeReleases:
    """Two releases, the first one current, and two running instances."""
    made = FakeReleases(tmp_path, "ascendd@a.service", "ascendd@b.service")
    made.add("1.0")
    made.add("2.0")
    (made.folder / "current").symlink_to("1.0")
    return made


def test_instances_follow_one_after_another(fake: FakeReleases) -> None:
    """The link moves first, then each instance is restarted, and the release before is remembered."""
    fake.releases.use("2.0")

    assert fake.restarts() == ["ascendd@a.service runs 2.0", "ascendd@b.service runs 2.0"]
    assert (fake.releases.linked("current"), fake.releases.linked("previous")) == ("2.0", "1.0")


def test_one_that_does_not_come_back_takes_all_back(fake: FakeReleases) -> None:
    """When the second instance fails, both return to the release that they had, and the error names the instance."""
    fake.bad.write_text("ascendd@b.service 2.0\n")

    with pytest.raises(
        HostError, match=r"ascendd@b.service does not start with release 2.0, so release 1.0 is current"
    ):
        fake.releases.use("2.0")

    assert fake.restarts() == [
        "ascendd@a.service runs 2.0", "ascendd@b.service runs 2.0",
        "ascendd@a.service runs 1.0", "ascendd@b.service runs 1.0",
    ]  # fmt: skip
    assert (fake.releases.linked("current"), fake.releases.linked("previous")) == ("1.0", None)


def test_rollback_and_back_again(fake: FakeReleases) -> None:
    """A rollback swaps the two releases, so a second one undoes it."""
    fake.releases.use("2.0")

    assert fake.releases.roll_back() == "1.0"
    assert fake.releases.roll_back() == "2.0"
    assert show(fake.releases)[1][:2] == ("2.0", "current")


def test_what_is_not_finished_is_no_release(fake: FakeReleases) -> None:
    """A folder without its record, which is written last, is neither listed nor used."""
    fake.add("3.0", finished=False)

    assert [release.version for release in fake.releases.all()] == ["1.0", "2.0"]
    with pytest.raises(UsageError, match=r"release 3.0 is not installed; installed: 1.0, 2.0"):
        fake.releases.use("3.0")


def test_the_same_release_restarts_nothing(fake: FakeReleases) -> None:
    """Configuring the same package again leaves running instances alone."""
    fake.releases.use("1.0")

    assert fake.restarts() == []


def test_there_is_nothing_to_go_back_to(fake: FakeReleases) -> None:
    """Without an earlier release a rollback says so and changes nothing."""
    with pytest.raises(UsageError, match="no earlier release"):
        fake.releases.roll_back()

    assert fake.releases.linked("current") == "1.0"


def test_prune_keeps_two(fake: FakeReleases) -> None:
    """Only the current and the previous release stay."""
    fake.add("3.0")
    fake.releases.use("3.0")

    assert fake.releases.prune() == ["2.0"]
    assert [release.version for release in fake.releases.all()] == ["1.0", "3.0"]


def test_services_beside_the_instances_follow_them(tmp_path: Path) -> None:
    """A gateway is restarted after the instances that it routes to."""
    fake = FakeReleases(tmp_path, "ascendd-gateway.service", "ascendd@b.service", "ascendd@a.service")
    fake.add("1.0")

    assert fake.releases.running_units() == ["ascendd@a.service", "ascendd@b.service", "ascendd-gateway.service"]
