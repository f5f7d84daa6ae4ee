"""What a runner had to do without, and how it runs: for metrics, the log and `ascendd status`. No torch."""

from __future__ import annotations

from dataclasses import dataclass


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
