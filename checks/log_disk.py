"""Disk for logs: where the daemon and the vendor's runtime write has room for what rotation keeps, and for a dump."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Sequence

from ascendd.errors import ProbeUnavailable
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

DISK_FULL = "ASD-G49"
# The vendor's runtime writes logs of its own for each process and chip, and does not stop at a full disk.
PLOG_BYTES = 1 << 30
LOWEST_BYTES = 100 << 20


@dataclass(frozen=True)
class Place:
    """A folder that is written to: why, what it may come to take, and what is free. Bytes."""

    path: str
    what: str
    needed_bytes: int
    free_bytes: int
    total_bytes: int


class LogDisk(HostCheck):
    """The logs of the coming days fit."""

    id = "log-disk"
    title = "Disk for logs"
    live = True

    def run(self, context: CheckContext) -> CheckResult:
        """Measure the file systems of each place that is written to."""
        variables = context.service().variables
        wanted: Dict[str, Any] = {"/var/log": ("the daemon's logs", rotation_bytes(context.config))}
        if context.config is not None and context.config.log.file is not None:
            wanted = {str(context.config.log.file).rpartition("/")[0] or "/": wanted["/var/log"]}
        if context.target.is_npu:
            plog = variables.get("ASCEND_PROCESS_LOG_PATH") or f"{variables.get('HOME') or '/root'}/ascend/log"
            wanted.setdefault(plog, ("the runtime's logs (plog)", PLOG_BYTES))
        places = []
        for path, (what, needed) in wanted.items():
            existing = path
            while existing not in ("", "/") and not context.files.is_dir(existing) and context.files.fake is None:
                existing = existing.rpartition("/")[0]
            try:
                total, free = context.files.disk_space(existing or "/")
            except ProbeUnavailable:
                continue
            places.append(Place(path, what, needed, free, total))
        return judge(places)


def rotation_bytes(config: Any) -> int:
    """Return what the daemon's rotated logs come to: `log.max_bytes` for each of `log.backups` and the one in use."""
    if config is None:
        return 6 * 100_000_000
    from ascendd.config.quantity import parse_bytes

    return int(parse_bytes(config.log.max_bytes)) * (int(config.log.backups) + 1)


def judge(places: Sequence[Place]) -> CheckResult:
    """Decide; a disk that is full now fails, one that rotation could fill warns."""
    if not places:
        return CheckResult(Verdict.SKIPPED, "no place of logs can be measured")
    evidence = {place.path: {"free_bytes": place.free_bytes, "needed_bytes": place.needed_bytes} for place in places}
    findings: List[Finding] = []
    for place in places:
        text = f"Free space where {place.path} lies, or lower log.max_bytes and log.backups."
        if place.what.startswith("the runtime"):
            text = "Free space there, remove old plog folders, or point ASCEND_PROCESS_LOG_PATH elsewhere."
        commands = (f"df -h {place.path}", f"du -sh {place.path}")
        if place.free_bytes < LOWEST_BYTES:
            said = f"{place.path} is full: {place.free_bytes >> 20} MiB free for {place.what}"
            findings.append(Finding(Verdict.FAIL, said, Remedy(DISK_FULL, text, commands)))
        elif place.free_bytes < place.needed_bytes:
            said = (
                f"{place.path} has {place.free_bytes >> 20} MiB free; {place.what} may take {place.needed_bytes >> 20}"
            )
            findings.append(Finding(Verdict.WARN, said, Remedy(DISK_FULL, text, commands)))
    told = ", ".join(f"{place.free_bytes / 2**30:.1f} GiB free at {place.path}" for place in places)
    return conclude(findings, told, evidence)
