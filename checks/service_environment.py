"""Service environment: what CANN's set_env.sh exports must be in the unit's environment, not in somebody's shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Mapping, Optional, Tuple

from ascendd.host.files import HostFiles
from ascendd.host.service_environment import ServiceEnvironment as Environment
from ascendd.preflight.check import CheckResult, Finding, NpuCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

PROBE_UNAVAILABLE = "ASD-P05"
# Where set_env.sh points; each is looked up at run time by the compiler and the operator library.
REQUIRED_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH")
EXPECTED_VARIABLES = ("ASCEND_TOOLKIT_HOME", "ASCEND_AICPU_PATH", "PYTHONPATH")
PATH_LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH")
SHOWN = (*REQUIRED_VARIABLES, *EXPECTED_VARIABLES, "LD_LIBRARY_PATH", "ASCEND_RT_VISIBLE_DEVICES")
_SOURCE = (
    "Put what set_env.sh of CANN exports into the unit's EnvironmentFile; "
    "sourcing it in a shell does not reach the service."
)


@dataclass(frozen=True)
class Surroundings:
    """The environment, and the paths in it that do not exist (variable, path)."""

    environment: Environment
    absent: Tuple[Tuple[str, str], ...]


class ServiceEnvironment(NpuCheck):
    """The service finds CANN and its operators."""

    id = "service-environment"
    title = "Service environment"

    def run(self, context: CheckContext) -> CheckResult:
        """Read the unit's environment, else this process's, and look up what it points to."""
        environment = context.service()
        return judge(Surroundings(environment, absent_paths(context.files, environment.variables)))


def absent_paths(files: HostFiles, variables: Mapping[str, str]) -> Tuple[Tuple[str, str], ...]:
    """Return (variable, path) for each path in the vendor's variables that is not there."""
    absent = []
    for name in sorted(variables):
        value = variables[name]
        if name in PATH_LISTS:
            paths = [path for path in value.split(":") if path.startswith("/")]
        elif name.startswith("ASCEND_") and value.startswith("/") and not name.endswith("LOG_PATH"):
            paths = value.split(":")
        else:
            continue
        absent += [(name, path) for path in dict.fromkeys(paths) if not files.exists(path)]
    return tuple(absent)


def judge(found: Surroundings) -> CheckResult:
    """Decide: missing variables fail, paths that lead nowhere warn."""
    environment, variables = found.environment, found.environment.variables
    evidence = {
        "origin": environment.origin,
        "variables": {name: variables[name] for name in SHOWN if name in variables},
        "absent": [f"{name}: {path}" for name, path in found.absent],
        "notes": list(environment.notes),
    }
    findings: List[Finding] = [
        _finding(Verdict.WARN, note, "Name an installed instance.") for note in environment.notes
    ]
    for path in environment.missing_files:
        findings.append(
            _finding(
                Verdict.FAIL, f"EnvironmentFile {path} cannot be read", f"Create {path}, or remove it from the unit."
            )
        )
    unset = [name for name in REQUIRED_VARIABLES if not variables.get(name)]
    if unset:
        findings.append(_finding(Verdict.FAIL, f"{' and '.join(unset)} not set in {environment.origin}", _SOURCE))
    unset = [name for name in EXPECTED_VARIABLES if not variables.get(name)]
    if unset:
        findings.append(_finding(Verdict.WARN, f"{', '.join(unset)} not set in {environment.origin}", _SOURCE))
    if found.absent:
        shown = "; ".join(f"{name} names {path}" for name, path in found.absent[:3])
        more = f" and {len(found.absent) - 3} more" if len(found.absent) > 3 else ""
        findings.append(
            _finding(Verdict.WARN, f"paths that do not exist: {shown}{more}", "Remove them, or install what they name.")
        )
    visible = _of_visible_devices(variables.get("ASCEND_RT_VISIBLE_DEVICES"))
    findings += [visible] if visible else []
    return conclude(findings, f"CANN's variables in {environment.origin}", evidence)


def _of_visible_devices(value: Optional[str]) -> Optional[Finding]:
    """Check the form that the runtime demands; it cuts the list at the first id that it does not like."""
    if not value:
        return None
    ids = value.split(",")
    if all(part.isdigit() for part in ids) and [int(part) for part in ids] == sorted({int(part) for part in ids}):
        return None
    said = f"ASCEND_RT_VISIBLE_DEVICES={value!r} is not a rising list of numbers without blanks"
    return _finding(
        Verdict.WARN, said, "Write it as 0,1,2, or leave it to ascendd, which sets it from parallel.devices."
    )


def _finding(verdict: Verdict, said: str, text: str) -> Finding:
    commands = ("systemctl show ascendd@NAME -p Environment -p EnvironmentFiles",)
    return Finding(verdict, said, Remedy(PROBE_UNAVAILABLE, text, commands))
