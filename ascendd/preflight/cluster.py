"""What checks of an instance over several hosts have in common."""

from __future__ import annotations

from typing import Any, Optional

from ascendd.preflight.check import CheckResult, Verdict
from ascendd.preflight.context import CheckContext

ONE_HOST = CheckResult(Verdict.SKIPPED, "no instance named that serves over several hosts")


def cluster_of(context: CheckContext) -> Optional[Any]:
    """Return the ClusterSection of the instance, None where it has none."""
    return None if context.config is None else context.config.cluster
