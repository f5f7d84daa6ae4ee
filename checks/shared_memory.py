"""Shared memory: /dev/shm is there and has room for what the ranks of one host hand each other."""

from __future__ import annotations

from typing import List, Optional, Tuple

from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

SHM_SMALL = "ASD-G51"
PATH = "/dev/shm"  # noqa: S108 - the mount itself, nothing is written
# A container gets 64 MiB by default, which several ranks fill.
MINIMUM_BYTES = 1 << 30
LOWEST_FREE_BYTES = 64 << 20


class SharedMemory(HostCheck):
    """Ranks can share memory."""

    id = "shared-memory"
    title = "Shared memory"
    live = True

    def run(self, context: CheckContext) -> CheckResult:
        """Measure the file system."""
        if not context.files.is_dir(PATH) and context.files.fake is None:
            return judge(None, context.is_container)
        return judge(context.files.disk_space(PATH), context.is_container)


def judge(space: Optional[Tuple[int, int]], is_container: bool) -> CheckResult:
    """Decide by total and free bytes; None where it is not mounted."""
    text = "Start the container with --shm-size=8g, or --ipc=host." if is_container else (
        "Remove what earlier runs left in /dev/shm, or mount it larger: mount -o remount,size=50% /dev/shm."
    )  # fmt: skip
    if space is None:
        return conclude_with(_finding(Verdict.FAIL, f"{PATH} is not there", "Mount it: a tmpfs at /dev/shm."), {})
    total, free = space
    evidence = {"total_bytes": total, "free_bytes": free}
    findings: List[Finding] = []
    if free < LOWEST_FREE_BYTES:
        said = f"{PATH} is full: {free >> 20} MiB free of {total >> 20} MiB"
        findings.append(_finding(Verdict.FAIL, said, text))
    elif total < MINIMUM_BYTES:
        said = f"{PATH} has {total >> 20} MiB; {MINIMUM_BYTES >> 20} MiB are asked for where several ranks run"
        findings.append(_finding(Verdict.WARN, said, text))
    return conclude(findings, f"{free / 2**30:.1f} GiB free in {PATH}", evidence)


def _finding(verdict: Verdict, said: str, text: str) -> Finding:
    return Finding(verdict, said, Remedy(SHM_SMALL, text, ("df -h /dev/shm", "ls -l /dev/shm")))
