"""Shell against unit: with --as-service, what the vendor's variables say here and what they say in the service."""

from __future__ import annotations

from typing import Dict, List, Mapping, Tuple

from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude, conclude_with
from ascendd.preflight.context import CheckContext

ENVIRONMENT_DIFFERS = "ASD-G32"
VENDOR_PREFIXES = ("ASCEND_", "ATB_", "HCCL_", "TASK_QUEUE_", "PYTORCH_NPU_", "TOOLCHAIN_", "LCCL_", "LCAL_")
PATH_LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH")
# What the daemon sets itself for its processes, from the instance's file.
_OF_THE_DAEMON = ("ASCEND_RT_VISIBLE_DEVICES",)


class ShellEnvironment(HostCheck):
    """What works in the operator's shell works in the service, too."""

    id = "shell-environment"
    title = "Shell against unit"

    def run(self, context: CheckContext) -> CheckResult:
        """Compare this process's environment with what systemd gives the unit."""
        if not context.request.as_service:
            return CheckResult(Verdict.SKIPPED, "only with --as-service INSTANCE")
        service = context.service()
        if not service.properties:
            note = "; ".join(service.notes) or "systemd was not asked"
            return conclude_with(_finding(Verdict.ERROR, note, "Name an installed instance."), {})
        return judge(context.environ, service.variables, service.origin)


def judge(shell: Mapping[str, str], unit: Mapping[str, str], origin: str) -> CheckResult:
    """Decide; a difference is a warning: which of the two is right is for service-environment to say."""
    only_shell: Dict[str, str] = {}
    differs: Dict[str, Tuple[str, str]] = {}
    for name in sorted({*shell, *unit}):
        if not (name.startswith(VENDOR_PREFIXES) or name in PATH_LISTS) or name in _OF_THE_DAEMON:
            continue
        here, there = shell.get(name), unit.get(name)
        if here is not None and there is None:
            only_shell[name] = here
        elif here is not None and there is not None and _differ(name, here, there):
            differs[name] = (here, there)
    evidence = {
        "only_in_shell": only_shell,
        "only_in_unit": sorted(name for name in unit if name.startswith(VENDOR_PREFIXES) and name not in shell),
        "differs": {name: {"shell": here, "unit": there} for name, (here, there) in differs.items()},
    }
    findings: List[Finding] = []
    if only_shell:
        text = "Put them into /etc/ascendd/cann.env, which the unit reads, and restart the instance."
        findings.append(_finding(Verdict.WARN, f"set in this shell and not in the unit: {', '.join(only_shell)}", text))
    for name, (here, there) in differs.items():
        said = f"{name} is {_cut(there)} in the unit and {_cut(here)} in this shell"
        missing = missing_paths(here, there) if name in PATH_LISTS else None
        if missing:
            said = f"{name} lacks in the unit what this shell has: {_cut(':'.join(missing))}"
        text = "Bring /etc/ascendd/cann.env in line with what set_env.sh exports, and restart the instance."
        findings.append(_finding(Verdict.WARN, said, text))
    return conclude(findings, f"the vendor's variables are the same in this shell and in {origin}", evidence)


def missing_paths(shell: str, unit: str) -> Tuple[str, ...]:
    """Return the folders of a list of the shell that the unit's lacks."""
    there = set(unit.split(":"))
    return tuple(path for path in dict.fromkeys(shell.split(":")) if path and path not in there)


def _differ(name: str, shell: str, unit: str) -> bool:
    """Tell whether the values differ in a way that can matter: more folders in the unit do not."""
    return bool(missing_paths(shell, unit)) if name in PATH_LISTS else shell != unit


def _cut(text: str, room: int = 80) -> str:
    return text if len(text) <= room else f"{text[: room - 3]}..."


def _finding(verdict: Verdict, said: str, text: str, code: str = ENVIRONMENT_DIFFERS) -> Finding:
    commands: Tuple[str, ...] = ("systemctl show ascendd@NAME -p Environment -p EnvironmentFiles",)
    return Finding(verdict, said, Remedy(code, text, commands))
