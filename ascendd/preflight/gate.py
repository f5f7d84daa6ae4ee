"""The gate of a start: the fast checks, before the daemon loads anything. No torch; each check in its own process."""

from __future__ import annotations

import os
from typing import AbstractSet, Any, Dict, List, Mapping, Optional

from ascendd.errors import ConfigInvalid, PreflightFailed
from ascendd.preflight.check import CheckResult, Verdict
from ascendd.preflight.context import CheckRequest
from ascendd.preflight.discover import find_checks
from ascendd.preflight.runner import run_checks

# What decides within seconds whether this instance can serve. A restart changes no versions, but a reboot after an
# upgrade does, so the CANN version is looked at every time.
GATE_CHECKS = (
    "npu-presence",
    "site-policy",
    "cann-version",
    "python-stack",
    "service-environment",
    "vendor-libraries",
    "model-artefact",
    "host-memory",
    "leftover-processes",
)


def run_gate(
    config: Any,
    environ: Optional[Mapping[str, str]] = None,
    root: str = "/",
    but: AbstractSet[str] = frozenset(),
) -> List[CheckResult]:
    """
    Run the fast checks for an InstanceConfig inside the service, all `but` those with these ids; return their results.

    Raises PreflightFailed (fact `results`: plain data of all) when one FAILs, ConfigInvalid when the cause is a value
    in the file. WARN and ERROR do not stop a start:
    what could not be measured is for the doctor to say. Blocks for seconds: call it from a thread.
    """
    import msgspec

    request = CheckRequest(
        config_json=msgspec.json.encode(config).decode(),
        inside_service=True,
        root=root,
        environ=dict(os.environ if environ is None else environ),
    )
    results = run_checks([check for check in find_checks() if check.id in GATE_CHECKS and check.id not in but], request)
    failed = [result for result in results if result.verdict is Verdict.FAIL]
    if failed:
        # Two checks may meet the same fault: it is told once, with both their names.
        names: Dict[str, List[str]] = {}
        for result in failed:
            names.setdefault(result.summary, []).append(result.check_id)
        remedies = list(dict.fromkeys(result.remedy.text for result in failed if result.remedy is not None))
        wrong = [result for result in failed if result.remedy is not None and result.remedy.runbook.startswith("ASD-C")]
        if wrong:
            # What the file asks for is wrong on any host, so it is told as a fault of the file.
            raise ConfigInvalid("; ".join(dict.fromkeys(result.summary for result in wrong)), remedy=" ".join(remedies))
        raise PreflightFailed(
            "; ".join(f"{', '.join(checks)}: {summary}" for summary, checks in names.items()),
            remedy=" ".join(remedies) or None,
            results=[result.to_json() for result in results],
        )
    return results
