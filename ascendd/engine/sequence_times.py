"""How long sequences wait, prefill and decode: the times are kept on the Sequence and counted as they are known."""

from __future__ import annotations

from ascendd.engine.sched.output import DrawnTokens, SchedulerOutput
from ascendd.telemetry.metrics import MetricStore


def note_step(output: SchedulerOutput, now_s: float, metrics: MetricStore) -> None:
    """Count what `output` computes, and the wait of each sequence whose first step it is; `now_s` is its begin."""
    metrics.observe("ascendd_engine_step_tokens", output.num_tokens)
    for chunk in output.chunks:
        sequence = chunk.sequence
        if sequence.first_step_s is None:
            sequence.first_step_s = now_s
            metrics.observe("ascendd_engine_queue_seconds", now_s - sequence.arrived_s)


def note_tokens(tokens: DrawnTokens, now_s: float, metrics: MetricStore) -> None:
    """Count the prefill of sequences with a first token and the decode of those that ended at `now_s`."""
    for sequence in tokens.sequences:
        if sequence.first_token_s is None and sequence.first_step_s is not None:
            sequence.first_token_s = now_s
            metrics.observe("ascendd_engine_prefill_seconds", now_s - sequence.first_step_s)
    if not any(tokens.finish):
        return
    for sequence, finish in zip(tokens.sequences, tokens.finish, strict=True):
        if finish and sequence.first_token_s is not None:
            metrics.observe("ascendd_engine_decode_seconds", now_s - sequence.first_token_s)
