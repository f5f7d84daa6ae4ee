"""The checks that are made again while an instance serves. No torch; each check in its own process."""

from __future__ import annotations

import os
from typing import Any, List, Mapping, Optional

from ascendd.preflight.check import CheckResult
from ascendd.preflight.context import CheckRequest
from ascendd.preflight.discover import find_checks
from ascendd.preflight.runner import run_checks

# Outside of a unit it would take the instance itself for a process that belongs to none.
_OF_A_UNIT = ("device-holders",)


def run_live(
    config: Any, instance: str, environ: Optional[Mapping[str, str]] = None, root: str = "/"
) -> List[CheckResult]:
    """Run the live checks for an InstanceConfig inside its service; return their results. Blocks for seconds."""
    import msgspec

    variables = dict(os.environ if environ is None else environ)
    request = CheckRequest(
        instance=instance,
        config_json=msgspec.json.encode(config).decode(),
        inside_service=True,
        root=root,
        environ=variables,
    )
    in_unit = "INVOCATION_ID" in variables
    return run_checks(
        [check for check in find_checks() if check.live and (in_unit or check.id not in _OF_A_UNIT)], request
    )
