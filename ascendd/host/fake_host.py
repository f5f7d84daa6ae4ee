"""
A fake host: a folder that stands for a whole machine, for tests and drills. Never taken for a real one.

The folder holds the machine's files at their usual paths, and a mark, `.fake-host`: a JSON object with what files
cannot say. Without the mark a folder is refused, and every report of a fake host says FAKE HOST.

    {"environ": {"ASCEND_HOME_PATH": ...},              the environment of a service or shell there
     "denied": {"/dev/davinci3": "Permission denied"},   what cannot be opened or read, and the reason
     "disks": {"/dev/shm": [total_bytes, free_bytes]},   file systems, by mount point
     "facts": {...}}                                     anything else that a probe asks for by name
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

from ascendd.errors import UsageError

MARK = ".fake-host"


@dataclass(frozen=True)
class FakeHost:
    """What the mark of a fake host says. `environ` is None where it says nothing of the environment."""

    root: str
    environ: Optional[Dict[str, str]] = None
    denied: Mapping[str, str] = field(default_factory=dict)
    disks: Mapping[str, Tuple[int, int]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_fake_host(root: str) -> Optional[FakeHost]:
    """Return the fake host at `root`, or None for `/` and for a folder without the mark. Raises UsageError."""
    if root in ("", "/"):
        return None
    try:
        text = (Path(root) / MARK).read_text(encoding="utf-8")
    except OSError:
        return None
    try:
        said = json.loads(text or "{}")
        disks = {path: (int(total), int(free)) for path, (total, free) in said.get("disks", {}).items()}
        denied, facts, environ = dict(said.get("denied", {})), dict(said.get("facts", {})), said.get("environ")
        return FakeHost(root, None if environ is None else dict(environ), denied, disks, facts)
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"{root}/{MARK} is not the JSON object that a fake host needs: {error}") from error


def require_fake_host(root: str) -> str:
    """Return `root` where it is `/` or a marked fake host. Raises UsageError for any other folder."""
    if root not in ("", "/") and read_fake_host(root) is None:
        raise UsageError(
            f"{root} is no fake host: it has no file {MARK}",
            remedy=f"Write the root of a fake host, or create {root}/{MARK} where this folder is meant to be one.",
        )
    return root or "/"
