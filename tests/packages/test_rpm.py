"""The RPM package installed by rpm: its scriptlets make, move and remove releases. The tree is Debian's; no dependency is asked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.systemd, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
NEXT = "99.0.1"
# Within name spaces of its own, so that no mount of it is left however it ends. $1 tree, $2 folder, $3 old, $4 new.
LIFE = """
set -u
mkdir -p "$2"/{upper,work,root} || exit 9
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root" || exit 9
mount -t proc proc "$2/root/proc" || exit 9
say() { echo "== $1"; shift; "$@" 2>&1; echo "status $?"; }
pkg() { rpm --root "$1" --nodeps --nosignature "${@:2}"; }
say install pkg "$2/root" -i "$3"
say version chroot "$2/root" ascendd --version
touch "$2/root/etc/ascendd/instances/kept.yaml"
say upgrade pkg "$2/root" -U "$4"
say list chroot "$2/root" ascendd release list
say rollback chroot "$2/root" ascendd release rollback
say version_after chroot "$2/root" ascendd --version
say erase pkg "$2/root" -e ascendd
say left find "$2/root/opt" "$2/root/usr" "$2/root/etc" -name "*ascendd*" -print
say kept ls "$2/root/etc/ascendd/instances"
"""


@pytest.fixture(scope="module")
def said(folder: Path, bundles: tuple[Path, Path], debian: Path) -> dict[str, tuple[int, str]]:
    """Build two packages, live through their life in the tree, and return status and words of each part."""
    environ = {**os.environ, "PYTHON": sys.executable}
    for bundle in bundles:
        build = [str(ROOT / "packaging/rpm.sh"), str(bundle), str(folder)]
        made = subprocess.run(build, env=environ, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
    (old,) = [path for path in folder.glob("ascendd-*.rpm") if NEXT not in path.name]
    (new,) = folder.glob(f"ascendd-{NEXT}-*.rpm")
    argv: list[Any] = ["unshare", "--mount", "bash", "-c", LIFE, "life", debian, folder / "rpm", old, new]
    done = subprocess.run([str(part) for part in argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.findall(r"^== (\w+)\n(.*?)^status (\d+)$", done.stdout, re.MULTILINE | re.DOTALL)
    return {name: (int(status), words) for name, words, status in parts}


def test_installing_makes_the_release(said: dict[str, tuple[int, str]]) -> None:
    """After the transaction the release is there, made from the wheels of the package, and starts."""
    assert said["install"][0] == 0, said["install"][1]
    assert re.fullmatch(r"ascendd [\d.]+\n", said["version"][1])


def test_an_upgrade_keeps_the_release_before(said: dict[str, tuple[int, str]]) -> None:
    """The old files of the package go, its release stays beside the new one, and one command goes back to it."""
    assert said["upgrade"][0] == 0, said["upgrade"][1]
    assert re.search(rf"^{re.escape(NEXT)} +current", said["list"][1], re.MULTILINE)
    assert re.search(r"^[\d.]+ +previous", said["list"][1], re.MULTILINE)
    assert said["rollback"][0] == 0, said["rollback"][1]
    assert said["version_after"] == said["version"]


def test_removing_leaves_configuration_alone(said: dict[str, tuple[int, str]]) -> None:
    """Releases, units, man pages and completion go; what the operator wrote below /etc/ascendd stays."""
    left = [line.partition("/rpm/root/")[2] for line in said["left"][1].splitlines()]

    assert said["erase"][0] == 0, said["erase"][1]
    assert left == ["etc/ascendd"]
    assert said["kept"] == (0, "kept.yaml\n")
