"""Captures decode steps on an NPU: torch.npu.NPUGraph, all graphs in one memory pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ascendd.device.base import CapturedGraph
from ascendd.device.npu_faults import CAPTURE_CODES, vendor_code_of
from ascendd.errors import GraphCaptureFailed


class NpuGraph:
    """
    One captured step.

    The fused attention takes lengths on the host, so a replay alone would attend over the lengths of the capture:
    torch_npu records such calls (auto_dispatch_capture) and `update` gives them the new lengths.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def replay(self, kv_lengths: list[int]) -> None:
        """See device.base.CapturedGraph."""
        self._graph.replay()
        # After the replay: the graph waits at each recorded call until its update has come.
        self._graph.update(cpu_update_input=[{"actual_seq_lengths_kv": kv_lengths}])


class NpuGraphs:
    """See device.base.GraphBackend."""

    def __init__(self, index: int) -> None:
        self._npu: Any = torch.npu  # type: ignore[attr-defined]
        self._index = index
        self._pool: Any = None
        self._graphs: list[Any] = []

    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[CapturedGraph, torch.Tensor]:
        graph = self._npu.NPUGraph()
        if self._pool is None:
            self._pool = self._npu.graph_pool_handle()
        try:
            with self._npu.graph(graph, pool=self._pool, auto_dispatch_capture=True):
                result = work()
            self._npu.synchronize(self._index)
        except RuntimeError as error:
            # Leaving the capture may fail, too, and hides what went wrong inside.
            for told in (error.__context__, error):
                row = None if told is None else vendor_code_of(str(told))
                if row is not None and row.code in CAPTURE_CODES:
                    reason = f"{row.name} ({row.code}): {row.meaning} {str(told).strip().splitlines()[0][:200]}"
                    raise GraphCaptureFailed(reason, remedy=row.remedy or None, cannot_capture=True) from error
            raise
        self._graphs.append(graph)
        return NpuGraph(graph), result

    def close(self) -> None:
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._pool = None
        self._npu.empty_cache()
