"""Boot the machine of tests/systemd-lab with a driver in it, and read the facts that the driver saw."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tests/systemd-lab"
# Its exit status where no machine can be booted, as against what a driver ends with.
NOT_BOOTED = 125


def boot(out: Path, driver: Sequence[str | Path], shown: Sequence[Path], *flags: str) -> dict[str, Any]:
    """
    Run `driver FACTS` in a booted machine and return what it wrote to FACTS, a file below `out`.

    Skips where no machine can be booted; no line of allowed_skips.txt names that, so in CI it fails the run.
    The machine has a /tmp of its own: `out` is bound into it, and of the folders `shown` those that lie below /tmp.
    `flags` are further ones of the lab.
    """
    if os.getuid() != 0 or shutil.which("systemd-nspawn") is None:
        pytest.skip("booting a machine needs root and systemd-nspawn (Debian: systemd-container)")
    hidden = [folder for folder in shown if folder.is_relative_to("/tmp")]
    binds = [part for folder in (out, *hidden) for part in ("--bind", folder)]
    command = [LAB, *flags, *binds, "--", *driver, out / "facts.json"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode == NOT_BOOTED:
        pytest.skip(f"no machine could be booted here: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((out / "facts.json").read_text())
    assert "broken" not in found, found["broken"]
    return found


def environment_folders() -> tuple[Path, Path]:
    """Return the checkout and the virtual environment, which a driver of this Python needs to see."""
    return ROOT, Path(sys.prefix)
