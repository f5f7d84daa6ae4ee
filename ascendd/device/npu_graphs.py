"""Captures decode steps on an NPU: torch.npu.NPUGraph, all graphs in one memory pool."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from ascendd.device.base import CapturedGraph
from ascendd.device.npu_faults import CAPTURE_CODES, vendor_code_of
from ascendd.errors import GraphCaptureFailed

# torch_npu passes over the code 207000 (feature not supported) of the runtime, and then asserts that a capture is on.
_NEVER_BEGAN = "CAPTURE_STATUS_ACTIVE"


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
    """See device.base.GraphBackend; `end_pool` tells the allocator of a device to use a graph's pool no more."""

    def __init__(self, index: int, end_pool: Callable[[int, Any], None]) -> None:
        self._end_pool = end_pool
        self._npu: Any = torch.npu  # type: ignore[attr-defined]
        self._index = index
        self._pool: Any = None
        self._graphs: list[Any] = []

    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[CapturedGraph, torch.Tensor]:
        graph = self._npu.NPUGraph()
        if self._pool is None:
            self._pool = self._npu.graph_pool_handle()
        stream = self._npu.current_stream()
        try:
            with self._npu.graph(graph, pool=self._pool, auto_dispatch_capture=True):
                result = work()
            self._npu.synchronize(self._index)
        except RuntimeError as error:
            self._leave(graph, stream)
            if _NEVER_BEGAN in str(error):
                raise GraphCaptureFailed(
                    "the runtime took the order to capture and captures nothing, as one that does not know the feature",
                    remedy="Upgrade the driver and CANN, or set engine.enforce_eager: true.",
                    cannot_capture=True,
                ) from error
            # Leaving the capture may fail, too, and hides what went wrong inside.
            for told in (error.__context__, error):
                row = None if told is None else vendor_code_of(str(told))
                if row is not None and row.code in CAPTURE_CODES:
                    reason = f"{row.name} ({row.code}): {row.meaning} {str(told).strip().splitlines()[0][:200]}"
                    raise GraphCaptureFailed(reason, remedy=row.remedy or None, cannot_capture=True) from error
            raise
        self._graphs.append(graph)
        return NpuGraph(graph), result

    def _leave(self, graph: Any, stream: Any) -> None:
        """
        Undo what a capture that failed to begin or to end leaves behind in torch_npu.

        Its context then stays on the capture's stream, with its pool and with the mode that records operators: eager
        steps that follow would wait for ever for events that nobody records.
        """
        mode = graph.graph_dispatch_mode
        if mode in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
            mode.__exit__(None, None, None)
        self._npu.set_stream(stream)
        # A pool that was not begun, or was ended, is no error here.
        with contextlib.suppress(RuntimeError):
            self._end_pool(self._index, self._pool)

    def close(self) -> None:
        for graph in self._graphs:
            graph.reset()
        self._graphs.clear()
        self._pool = None
        self._npu.empty_cache()
