"""Limits of the process: open files, locked memory and threads are enough for many connections and pinned memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Mapping, Optional, Tuple

from ascendd.errors import ProbeParseError
from ascendd.host.files import HostFiles
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

OPEN_FILES, TASKS, HOST = "ASD-G50", "ASD-G52", "ASD-H01"
# A connection each for what is served and what waits, the model's files, the links between processes.
MINIMUM_OPEN_FILES = 4096
# Below this not even one engine with its libraries comes up.
LOWEST_OPEN_FILES = 512
# The runtime pins host memory for copies; the kernel's own default is 8 MiB.
MINIMUM_LOCKED_BYTES = 64 << 20
# A runtime starts some hundred threads for each chip.
MINIMUM_TASKS = 1024
_ROW = re.compile(r"^Max (open files|locked memory|processes)\s+(\S+)\s+(\S+)", re.MULTILINE)
_PROPERTIES = {"open files": "LimitNOFILE", "locked memory": "LimitMEMLOCK", "processes": "LimitNPROC"}


@dataclass(frozen=True)
class Limits:
    """What a process may take, None for no limit; `of` says whose limits they are."""

    open_files: Optional[int]
    locked_bytes: Optional[int]
    tasks: Optional[int]
    of: str


class Ulimits(HostCheck):
    """The service may open, lock and start what it needs."""

    id = "ulimits"
    title = "Limits of the process"

    def run(self, context: CheckContext) -> CheckResult:
        """Read the unit's limits, else those that this shell can raise its own to."""
        service = context.service()
        if service.properties:
            return judge(of_unit(service.properties, f"ascendd@{context.request.instance}"), context.target.is_npu)
        return judge(of_process(context.files, soft=context.request.inside_service), context.target.is_npu)


def of_unit(properties: Mapping[str, str], unit: str) -> Limits:
    """Return the limits that systemd sets."""
    values = {name: _number(properties.get(key, "infinity")) for name, key in _PROPERTIES.items()}
    tasks = [value for value in (values["processes"], _number(properties.get("TasksMax", "infinity"))) if value]
    return Limits(values["open files"], values["locked memory"], min(tasks, default=None), unit)


def of_process(files: HostFiles, *, soft: bool) -> Limits:
    """
    Return the limits of this process: the soft ones that hold, or the hard ones that it could raise them to.

    Raises ProbeUnavailable or ProbeParseError where the kernel's table does not tell all of them.
    """
    rows = _ROW.finditer(files.read_text("/proc/self/limits"))
    values = {match[1]: _number(match[2 if soft else 3]) for match in rows}
    lacking = [name for name in _PROPERTIES if name not in values]
    if lacking:
        raise ProbeParseError(
            f"/proc/self/limits has no line of {lacking[0]}",
            remedy="Look whether /proc is mounted as the kernel gives it.",
        )
    of = "this service" if soft else "this shell"
    return Limits(values.get("open files"), values.get("locked memory"), values.get("processes"), of)


def judge(limits: Limits, on_npu: bool) -> CheckResult:
    """Decide by what a busy instance takes."""
    evidence = {
        "open_files": limits.open_files,
        "locked_memory_bytes": limits.locked_bytes,
        "tasks": limits.tasks,
        "limits_of": limits.of,
    }
    findings: List[Finding] = []
    if limits.open_files is not None and limits.open_files < MINIMUM_OPEN_FILES:
        verdict = Verdict.FAIL if limits.open_files < LOWEST_OPEN_FILES else Verdict.WARN
        said = f"{limits.of} may open {limits.open_files} files; {MINIMUM_OPEN_FILES} are asked for"
        text = "Set LimitNOFILE=65536 in the unit (`systemctl edit ascendd@`), or `ulimit -n 65536` in a shell."
        findings.append(_finding(verdict, said, text, OPEN_FILES))
    if on_npu and limits.locked_bytes is not None and limits.locked_bytes < MINIMUM_LOCKED_BYTES:
        said = f"{limits.of} may lock {limits.locked_bytes >> 10} KiB of memory, which the runtime pins for copies"
        text = "Set LimitMEMLOCK=infinity in the unit, or `ulimit -l unlimited` in a shell."
        findings.append(_finding(Verdict.WARN, said, text, HOST))
    if limits.tasks is not None and limits.tasks < MINIMUM_TASKS:
        said = f"{limits.of} may have {limits.tasks} processes and threads; {MINIMUM_TASKS} are asked for"
        text = "Set TasksMax=infinity and LimitNPROC=infinity in the unit."
        findings.append(_finding(Verdict.WARN, said, text, TASKS))
    told = f"{_spoken(limits.open_files)} open files, {_spoken(limits.tasks)} processes and threads for {limits.of}"
    return conclude(findings, told, evidence)


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdigit() else None


def _spoken(limit: Optional[int]) -> str:
    return "any number of" if limit is None else str(limit)


def _finding(verdict: Verdict, said: str, text: str, code: str) -> Finding:
    commands: Tuple[str, ...] = ("systemctl show ascendd@NAME -p LimitNOFILE -p LimitMEMLOCK -p TasksMax", "ulimit -a")
    return Finding(verdict, said, Remedy(code, text, commands))
