"""What a runner had to do without, and how it runs: for metrics, the log and `ascendd status`. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ascendd.device.base import KernelVerdict
from ascendd.errors import KernelReplaced
from ascendd.telemetry import log


@dataclass(slots=True)
class RunnerReport:
    """
    `replaced_kernels` are fused kernels for which the reference stands in; `num_graph_buckets` batch sizes whose decode
    step is captured; `num_replays` steps so far that were the replay of a graph.
    """

    replaced_kernels: tuple[str, ...] = ()
    num_graph_buckets: int = 0
    num_replays: int = 0

    @property
    def facts(self) -> dict[str, str | int]:
        """What is worth a line at start; empty where there is nothing to tell."""
        facts: dict[str, str | int] = {}
        if self.replaced_kernels:
            facts["replaced_kernels"] = ", ".join(self.replaced_kernels)
        if self.num_graph_buckets:
            facts["graph_buckets"] = self.num_graph_buckets
        return facts


def tell_replaced(verdicts: Sequence[KernelVerdict]) -> None:
    """Log which kernels were proven, and warn of those for which the reference stands in."""
    logger = log.get_logger("engine")
    for verdict in verdicts:
        if not verdict.passed:
            replaced = KernelReplaced(f"kernel {verdict.kernel} is replaced by the reference: {verdict.detail}")
            logger.warning(
                "engine.kernel_replaced",
                kernel=verdict.kernel,
                code=replaced.code,
                detail=verdict.detail,
                remedy=replaced.remedy,
            )
    if verdicts:
        logger.info("engine.kernels_proven", kernels=[verdict.kernel for verdict in verdicts if verdict.passed])
