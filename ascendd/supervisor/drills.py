"""
Drills: faults on order in a running instance, to see that it recovers. Refused unless recovery.drills is true.

    kill-engine, kill-api, kill-rank    SIGKILL to that process
    hang, oom, device-lost              the next step of the engine hangs, has no device memory, loses its device
    leak                                the engine grows for a while; its trend is judged by seconds in place of hours
    full-disk, slow-disk                the disk of log.file takes nothing, or does not answer, for a while

What is done about them is what is done about the real ones: nothing below knows that it is a drill.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from ascendd.errors import PermissionMissing, UsageError
from ascendd.host.proc import descendants
from ascendd.ipc import messages as msg
from ascendd.ipc.messages import Role
from ascendd.supervisor.phase import Phase
from ascendd.supervisor.runtime import Runtime

KILLS = {"kill-engine": Role.ENGINE, "kill-api": Role.API, "kill-rank": Role.ENGINE}
FAULTS = {
    "hang": Role.ENGINE,
    "oom": Role.ENGINE,
    "device-lost": Role.ENGINE,
    "leak": Role.ENGINE,
    "full-disk": Role.LOGWRITER,
    "slow-disk": Role.LOGWRITER,
}
MAX_SECONDS = 600.0


def start_drill(run: Runtime, kind: str, seconds: float) -> dict[str, Any]:
    """
    Begin drill `kind`; those that last do so for `seconds`. Returns the process that was hit.

    Raises PermissionMissing unless recovery.drills is true, UsageError for a kind that this instance does not have.
    """
    if not run.config.recovery.drills:
        raise PermissionMissing(
            "this instance takes no drills: recovery.drills is false in its file",
            remedy="Write `recovery: {drills: true}` into its file and restart it, never where users depend on it.",
        )
    role = KILLS.get(kind) or FAULTS.get(kind)
    if role is None:
        raise UsageError(f"there is no drill {kind[:40]!r}", remedy=f"Use one of {', '.join((*KILLS, *FAULTS))}.")
    if not 0 < seconds <= MAX_SECONDS:
        raise UsageError(f"a drill of {seconds:g} s is not possible", remedy=f"Use more than 0 and {MAX_SECONDS:g} s.")
    if run.phase is not Phase.SERVING:
        raise UsageError(f"the instance is {run.phase.value}; a drill begins while it serves", remedy="Wait for it.")
    process = run.table.get(role)
    if process is None:
        remedy = "Set log.file: the log writer is what such a disk hits." if role is Role.LOGWRITER else "Wait for it."
        raise UsageError(f"this instance has no {role.value} process now", remedy=remedy)
    pid = process.pid
    if kind == "kill-rank":
        ranks = descendants(pid, "_worker")
        if not ranks:
            raise UsageError(
                "this instance has one rank, which is the engine itself", remedy="Use kill-engine in its place."
            )
        pid = ranks[-1]
    run.log.warning("supervisor.drill", kind=kind, child=role.value, pid=pid, seconds=seconds)
    if kind in KILLS:
        os.kill(pid, signal.SIGKILL)
    else:
        if kind == "leak":
            run.board.hasten(role, seconds)
        process.send(msg.InjectFault(kind, seconds))
    return {"kind": kind, "role": role.value, "pid": pid, "seconds": seconds, "expected": _expected(run, kind)}


def _expected(run: Runtime, kind: str) -> str:
    """Return by what and when it should be noticed."""
    if kind == "hang":
        return f"a step beyond health.step_deadline_s ({run.config.health.step_deadline_s:g} s)"
    return {
        "oom": "the engine's own answer to a step without memory",
        "device-lost": "the engine's error",
        "leak": "the slope of its memory",
        "full-disk": "lines that the log writer had to drop",
        "slow-disk": "a log writer without heartbeat",
    }.get(kind, "the end of the process")
