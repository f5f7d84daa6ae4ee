"""How long sequences wait, prefill and decode: the times are kept on the Sequence and counted as they are known."""

from __future__ import annotations

from collections.abc import Iterable

from ascendd.engine.sched.output import SchedulerOutput, TokenEvent
from ascendd.ipc.messages import FinishReason
from ascendd.telemetry.metrics import MetricStore


def note_step(output: SchedulerOutput, now_s: float, metrics: MetricStore) -> None:
    """Count what `output` computes, and the wait of each sequence whose first step it is; `now_s` is its begin."""
    metrics.observe("ascendd_engine_step_tokens", sum(chunk.num_tokens for chunk in output.chunks))
    for chunk in output.chunks:
        sequence = chunk.sequence
        if sequence.first_step_s is None:
            sequence.first_step_s = now_s
            metrics.observe("ascendd_engine_queue_seconds", now_s - sequence.arrived_s)


def note_tokens(events: Iterable[TokenEvent], now_s: float, metrics: MetricStore) -> None:
    """Count the prefill of sequences with a first token and the decode of those that ended at `now_s`."""
    for event in events:
        sequence = event.sequence
        if sequence.first_token_s is None and sequence.first_step_s is not None:
            sequence.first_token_s = now_s
            metrics.observe("ascendd_engine_prefill_seconds", now_s - sequence.first_step_s)
        if event.finish is not FinishReason.RUNNING and sequence.first_token_s is not None:
            metrics.observe("ascendd_engine_decode_seconds", now_s - sequence.first_token_s)
