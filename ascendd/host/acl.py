"""The ACL runtime, tried in a child with a time limit: load, open a device, take memory, copy both ways, give back."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from ascendd.errors import ProbeParseError, ProbeTimeout, ProbeUnavailable
from ascendd.host.command import CommandOutcome, run_command
from ascendd.host.files import HostFiles
from ascendd.host.libraries import find_library, loader_environ

LIBRARY = "libascendcl.so"
COUNT_TIMEOUT_S = 30.0
ROUND_TRIP_TIMEOUT_S = 60.0
ROUND_TRIP_BYTES = 2 * 2**20
_CHILD = Path(__file__).resolve().with_name("acl_child.py")


@dataclass(frozen=True)
class AclOutcome:
    """`failed_step` is None after a whole sequence; -1 as code stands for a failure that has no ACL code."""

    library: str
    count: Optional[int] = None
    soc_name: str = ""
    free_bytes: int = 0
    total_bytes: int = 0
    failed_step: Optional[str] = None
    code: int = 0
    text: str = ""


def count_devices(files: HostFiles, environ: Mapping[str, str], timeout_s: float = COUNT_TIMEOUT_S) -> AclOutcome:
    """Count devices without opening one. ASCEND_RT_VISIBLE_DEVICES is taken out, because it would hide some."""
    visible = {key: value for key, value in environ.items() if key != "ASCEND_RT_VISIBLE_DEVICES"}
    return _probe(files, visible, {"count_only": True, "device": 0, "num_bytes": 0}, timeout_s)


def round_trip(
    files: HostFiles, environ: Mapping[str, str], device: int, timeout_s: float = ROUND_TRIP_TIMEOUT_S
) -> AclOutcome:
    """Try logical `device`. Raises ProbeUnavailable (no library), ProbeTimeout (names the call) or ProbeParseError."""
    return _probe(files, environ, {"count_only": False, "device": device, "num_bytes": ROUND_TRIP_BYTES}, timeout_s)


def _probe(files: HostFiles, environ: Mapping[str, str], request: Dict[str, Any], timeout_s: float) -> AclOutcome:
    search = find_library(LIBRARY, files, environ)
    if search.found is None:
        raise ProbeUnavailable(
            f"{LIBRARY} is not on the library path" + (f"; a copy is at {search.elsewhere}" if search.elsewhere else "")
        )
    text = json.dumps({**request, "library": files.real(search.found)})
    # -I -S: neither the service's PYTHON* variables nor its packages have a part in this.
    argv = [sys.executable, "-I", "-S", str(_CHILD)]
    try:
        outcome = run_command(argv, timeout_s, loader_environ(files, environ), stdin=text)
    except ProbeTimeout as late:
        step = next(
            (line["step"] for line in reversed(_lines(str(late.facts.get("stdout", "")))) if "step" in line), "start"
        )
        raise ProbeTimeout(
            f"ACL did not come back from {step} within {timeout_s:g} s", step=step, timeout_s=timeout_s
        ) from late
    return _outcome(search.found, outcome)


def _outcome(library: str, outcome: CommandOutcome) -> AclOutcome:
    lines = _lines(outcome.stdout)
    last = lines[-1] if lines else {}
    if "result" in last:
        return AclOutcome(library, **last["result"])
    if "failed" in last:
        return AclOutcome(library, failed_step=last["failed"], code=int(last["code"]), text=last["text"])
    if outcome.status >= 128 and "step" in last:  # the library crashed the child
        return AclOutcome(
            library,
            failed_step=last["step"],
            code=-1,
            text=f"the call ended its process with signal {outcome.status - 128}",
        )
    raise ProbeParseError(
        f"the ACL child said nothing that can be read (exit status {outcome.status}): {outcome.stderr[-300:]}"
    )


def _lines(text: str) -> List[Dict[str, Any]]:
    """Decode the lines that are ours; vendor libraries print to standard output too."""
    lines = []
    for line in text.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict) and message.keys() & {"step", "result", "failed"}:
            lines.append(message)
    return lines
