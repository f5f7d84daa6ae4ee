"""
GraphRunner: decode steps captured once for a few batch sizes and replayed, so that the host launches one thing a step.

A step of n rows runs in the smallest captured bucket of at least n. Its other rows are padding: a token that attends to
slot 0 of the null block, which no sequence owns, and is written there, each to a slot of its own. Everything a graph
reads lies in tensors made once; the lengths, which operators take on the host, are handed to each replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ascendd.device.base import AttentionContext, CapturedGraph, GraphBackend, SequenceTable
from ascendd.engine.layers.forward_context import ForwardContext
from ascendd.engine.layers.rotary import RotaryTable
from ascendd.engine.runner.capture_accord import CaptureAccord
from ascendd.engine.runner.input_batch import StepInputs
from ascendd.errors import AscenddError, DeviceOutOfMemory, GraphCaptureFailed
from ascendd.telemetry import log

# Dense where a batch is small and each padded row costs a large share; every further graph takes streams and memory.
_SMALL_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
_BUCKET_STEP = 32
_MAX_BUCKET = 256
# A graph is captured with lengths of 1 and proven with these. Operators of both are the same, so little may differ.
_PROOF_LENGTH = 2
_MAX_DEVIATION = 0.02

Forward = Callable[[torch.Tensor, ForwardContext], torch.Tensor]


def decode_buckets(max_num_seqs: int) -> list[int]:
    """Return the batch sizes to capture, ascending: none above 256 rows, where launches no longer bound a step."""
    largest = min(max_num_seqs, _MAX_BUCKET)
    steps = range(_SMALL_BUCKETS[-1] + _BUCKET_STEP, largest, _BUCKET_STEP)
    return sorted({*(size for size in _SMALL_BUCKETS if size < largest), *steps, largest})


def fewer_buckets(buckets: Sequence[int], fault: AscenddError) -> list[int]:
    """
    Return the buckets to try after `fault`: the smaller half where memory ran out, every second where streams did.

    Empty when there is nothing left to leave out, and where the fault says that nothing can be captured.
    """
    if fault.facts.get("cannot_capture"):
        return []
    if isinstance(fault, DeviceOutOfMemory):
        return list(buckets[: len(buckets) // 2])
    return list(buckets[1::2])


@dataclass(slots=True)
class _Bucket:
    graph: CapturedGraph
    table: SequenceTable
    logits: torch.Tensor


class GraphRunner:
    """
    Owns the inputs that all graphs share and the graphs of one rank; through `accord` all ranks have the same buckets.

    `max_blocks` is the width of the block table: the blocks of the longest sequence; `num_blocks` are those of the
    cache, the null block included. `is_latent` says that kernels want the row of each sequence in the table
    (device.base.AttentionForm.DECODE_TABLE).
    """

    def __init__(
        self,
        forward: Forward,
        rotary: RotaryTable,
        kv_caches: list[torch.Tensor],
        backend: GraphBackend,
        accord: CaptureAccord,
        *,
        max_blocks: int,
        block_size: int,
        num_blocks: int,
        device: str,
        is_latent: bool,
    ) -> None:
        self._forward = forward
        self._rotary = rotary
        self._kv_caches = kv_caches
        self._backend = backend
        self._accord = accord
        self._max_blocks = max_blocks
        self._block_size = block_size
        self._num_slots = num_blocks * block_size
        self._device = device
        self._is_latent = is_latent
        self._buckets: dict[int, _Bucket] = {}
        self._logger = log.get_logger("graphs")

    @property
    def buckets(self) -> list[int]:
        """The captured batch sizes, ascending."""
        return sorted(self._buckets)

    def capture(self, buckets: Sequence[int]) -> None:
        """
        Capture `buckets`, or as many as every rank's device has room for, down to none; each retreat is a warning.

        Raises the device's typed fault where a failure is not one of capturing.
        """
        wanted = sorted(buckets)
        while wanted:
            fault = self._try(wanted)
            if fault is None:
                self._logger.info("graphs.captured", buckets=self.buckets)
                return
            self._drop()
            left = fewer_buckets(wanted, fault)
            failed = GraphCaptureFailed(fault.message, remedy=fault.remedy)
            self._logger.warning(
                "graphs.capture_failed",
                code=failed.code,
                reason=failed.message,
                remedy=failed.remedy,
                num_buckets=len(wanted),
                next_num_buckets=len(left),
                then="eager" if not left else "fewer graphs",
            )
            wanted = left

    def takes(self, inputs: StepInputs) -> bool:
        """Whether a step is a decode of as many rows as some graph has; inputs as they come from InputBatch."""
        return inputs.is_decode_only and bool(self._buckets) and inputs.token_ids.shape[0] <= max(self._buckets)

    def replay(self, inputs: StepInputs) -> torch.Tensor:
        """Run a step that `takes` accepted; return logits [rows, vocab], which the next replay overwrites."""
        num_rows = inputs.token_ids.shape[0]
        size = min(size for size in self._buckets if size >= num_rows)
        bucket, table = self._buckets[size], inputs.attention.table
        assert table is not None, "a decode step on such a device comes with a table"
        self._fill(self._token_ids, inputs.token_ids, size)
        self._fill(self._rotary_rows, inputs.rotary_rows, size)
        self._slot_mapping[:num_rows].copy_(inputs.attention.slot_mapping)
        self._slot_mapping[num_rows:size].copy_(self._null_slots[: size - num_rows])
        self._block_table[:size].zero_()
        self._block_table[:num_rows, : table.block_table.shape[1]].copy_(table.block_table)
        lengths = table.kv_lengths + [1] * (size - num_rows)
        bucket.table.kv_lengths[:] = lengths
        bucket.graph.replay(lengths)
        return bucket.logits[:num_rows]

    def _try(self, buckets: Sequence[int]) -> AscenddError | None:
        """Capture all of `buckets`, the largest first, so that the others find room in its memory."""
        fault = self._accord.attempt(lambda: self._make_inputs(buckets[-1]))
        for size in reversed(buckets):
            fault = fault or self._capture_one(size)
        return fault

    def _capture_one(self, size: int) -> AscenddError | None:
        """Capture and prove the graph of `size` rows on every rank, or return why one of them cannot."""
        rows = self._arange[:size]
        table = SequenceTable(
            list(range(1, size + 1)), [1] * size, self._block_table[:size], rows if self._is_latent else None
        )
        attention = AttentionContext(self._slot_mapping[:size], table=table)

        def step() -> torch.Tensor:
            cos, sin = self._rotary.rows(self._rotary_rows[:size])
            context = ForwardContext(cos, sin, self._kv_caches, attention, rows)
            return self._forward(self._token_ids[:size], context)

        def capture() -> None:
            graph, logits = self._backend.capture(step)
            self._buckets[size] = _Bucket(graph, table, logits)

        deviation = 0.0

        def measure() -> None:
            nonlocal deviation
            deviation = self._deviation(self._buckets[size], size, step)

        # Operators that prepare themselves on their first call must not do so inside a capture: one eager step first.
        return (
            self._accord.attempt_with_peers(step)
            or self._accord.attempt(capture)
            or self._accord.attempt_with_peers(measure)
            or self._accord.attempt(lambda: _judge(deviation, size))
        )

    def _deviation(self, bucket: _Bucket, size: int, step: Callable[[], torch.Tensor]) -> float:
        """
        Replay with lengths that the capture did not have; return the deviation from the same step run eagerly.

        A runtime that does not hold a graph back until its new lengths are there (ExternalEvent of torch_npu needs
        aclrtValueWait) gives wrong tokens without any error.
        """
        lengths = [_PROOF_LENGTH] * size
        self._token_ids[:size].copy_(self._arange[:size])  # rows that differ, or more of them would change nothing
        bucket.table.kv_lengths[:] = lengths
        bucket.graph.replay(lengths)  # first, since it may be what gives kernels their lengths
        replayed = bucket.logits.clone()
        expected = step().float()
        self._token_ids[:size].zero_()
        return float((replayed - expected).abs().max() / expected.abs().max().clamp_min(1e-6))

    def _make_inputs(self, size: int) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=self._device)

        # Zeros are padding: token 0 at position 0.
        self._token_ids, self._rotary_rows = zeros(size), zeros(size)
        self._block_table = zeros(size, self._max_blocks, dtype=torch.int32)
        self._arange = torch.arange(size).to(self._device)
        # The operator that writes the cache wants no slot twice. A graph is captured before anybody owns a block.
        self._null_slots = self._arange % self._block_size
        self._slot_mapping = self._arange % self._num_slots

    @staticmethod
    def _fill(static: torch.Tensor, rows: torch.Tensor, size: int) -> None:
        static[: rows.shape[0]].copy_(rows)
        static[rows.shape[0] : size].zero_()

    def _drop(self) -> None:
        self._buckets.clear()
        self._backend.close()


def _judge(deviation: float, size: int) -> None:
    """Raise GraphCaptureFailed, which leaves no graph, where a replay did not compute the step."""
    if not deviation <= _MAX_DEVIATION:
        raise GraphCaptureFailed(
            f"a replayed step of {size} rows deviates by {deviation:.1%} from the same step without a graph "
            f"(at most {_MAX_DEVIATION:.0%}): graphs do not take new lengths here",
            remedy="Upgrade CANN and the driver to versions that belong to this torch_npu, or set "
            "engine.enforce_eager: true.",
            cannot_capture=True,
        )
