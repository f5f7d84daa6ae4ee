"""Tuning: asks the chosen policy every few seconds and sends the engine what it decides."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ascendd.config.schema import InstanceConfig
from ascendd.ipc.messages import Role, Sample, SetLimits
from ascendd.supervisor.phase import Phase
from ascendd.supervisor.runtime import Runtime
from ascendd.tuning.advice import MIN_REQUESTS, Advice, InForce, advise, num_requests
from ascendd.tuning.latency_policy import LatencyPolicy
from ascendd.tuning.observation import Observer
from ascendd.tuning.policy import Bounds, Limits, Policy
from ascendd.tuning.queue_policy import QueuePolicy

_DEFAULT_MIN_NUM_SEQS = 32
BLOCK_SIZES = (16, 32, 64, 128)
# Prompt tokens beside decodes are never fewer: below, a long prompt would not come to its end.
_MIN_PREFILL_TOKENS = 32
# An order is in force with the engine's next figures; one that is not after this is given up for a new decision.
_ORDER_PATIENCE_S = 30.0


def make_policy(config: InstanceConfig, max_prefill_tokens: int) -> Policy:
    """Return the policy that `tuning` names, for an engine whose step has up to `max_prefill_tokens`."""
    tuning, most = config.tuning, config.engine.max_num_seqs
    least = min(_DEFAULT_MIN_NUM_SEQS, most) if tuning.min_num_seqs is None else tuning.min_num_seqs
    bounds = Bounds(least, most, min(_MIN_PREFILL_TOKENS, max_prefill_tokens), max_prefill_tokens)
    if tuning.policy == "queue":
        return QueuePolicy(bounds, raise_above=tuning.raise_above, lower_below=tuning.lower_below)
    return LatencyPolicy(
        bounds, first_token_goal_s=tuning.first_token_goal_s, inter_token_goal_s=tuning.inter_token_goal_s
    )


class Tuning:
    """
    The loop of one instance. What is in force is read from the engine's own figures, so that a restarted engine, which
    has the limits of its configuration again, is tuned from there.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._run = runtime
        self._observer = Observer()
        self._policy: Policy | None = None
        self._due_s = 0.0
        # The last order and when it was given, while the engine's figures do not show it yet.
        self._order: tuple[Limits, float] | None = None

    def on_tick(self, now_s: float) -> None:
        """Observe and decide where an interval is over and the instance serves; `now_s` is monotonic."""
        run = self._run
        if not run.config.tuning.enabled or run.phase is not Phase.SERVING or now_s < self._due_s:
            return
        self._due_s = now_s + run.config.tuning.interval_s
        samples = run.board.totals()
        limits = _in_force(samples)
        if limits is None or self._is_pending(limits, now_s):
            return
        if self._policy is None:
            self._policy = make_policy(run.config, _gauge(samples, "ascendd_engine_step_token_limit"))
        decision = self._policy.decide(limits, self._observer.observe(samples, now_s))
        if decision is None:
            return
        chosen = decision.limits
        run.table.send(Role.ENGINE, SetLimits(chosen.max_num_seqs, chosen.prefill_tokens))
        self._order = (chosen, now_s)
        more = (chosen.max_num_seqs, chosen.prefill_tokens) > (limits.max_num_seqs, limits.prefill_tokens)
        run.board.count_tuning("up" if more else "down", chosen, decision.reason)
        run.log.info(
            "tuning.changed",
            max_num_seqs=chosen.max_num_seqs,
            prefill_tokens=chosen.prefill_tokens,
            reason=decision.reason,
        )

    def _is_pending(self, limits: Limits, now_s: float) -> bool:
        """Whether the last order is still on its way: the same decision again would change and count nothing."""
        if self._order is not None and (limits == self._order[0] or now_s - self._order[1] >= _ORDER_PATIENCE_S):
            self._order = None
        return self._order is not None


def tuning_report(runtime: Runtime) -> dict[str, Any]:
    """Return what `ascendd tune` shows: the limits, the changes with their reasons, and advice from lengths seen."""
    samples, facts, tuning = runtime.board.totals(), runtime.engine_facts, runtime.config.tuning
    advice: list[Advice] = []
    if facts.get("num_blocks") and facts.get("block_size"):
        advice = advise(samples, _setting(runtime))
    return {
        "enabled": tuning.enabled,
        "policy": tuning.policy,
        "interval_s": tuning.interval_s,
        "max_num_seqs": _gauge(samples, "ascendd_engine_sequence_limit"),
        "prefill_tokens": _gauge(samples, "ascendd_engine_prefill_token_limit"),
        "changes": list(runtime.board.tuning_changes),
        "num_requests": num_requests(samples),
        "min_requests": MIN_REQUESTS,
        "advice": [asdict(one) for one in advice],
    }


def _setting(runtime: Runtime) -> InForce:
    facts = runtime.engine_facts
    block_size = int(facts["block_size"])
    # Kernels of an NPU take blocks of one size; on a CPU all are as fast.
    sizes = BLOCK_SIZES if facts.get("device") == "cpu" else (block_size,)
    return InForce(
        block_size,
        int(facts["num_blocks"]),
        int(facts["max_model_len"]),
        runtime.config.engine.max_num_seqs,
        sizes,
        int(facts.get("kv_bytes_per_token", 0)),
    )


def _in_force(samples: list[Sample]) -> Limits | None:
    limits = Limits(
        _gauge(samples, "ascendd_engine_sequence_limit"), _gauge(samples, "ascendd_engine_prefill_token_limit")
    )
    return limits if limits.max_num_seqs and limits.prefill_tokens else None


def _gauge(samples: list[Sample], name: str) -> int:
    return next((int(sample.value) for sample in samples if sample.name == name), 0)
