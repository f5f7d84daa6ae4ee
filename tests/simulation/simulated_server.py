"""
A server on a simulated clock, for tuning: clients that ask one request after another, and steps that take longer the
more they compute.

A step of `batch` decodes and `prompt` prefill tokens takes fixed_s + batch * decode_s + prompt * prefill_s, the shape
that an accelerator bound by memory first and by compute later has.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ascendd.tuning.observation import Observation
from ascendd.tuning.policy import Limits, Policy

OBSERVE_S = 5.0


@dataclass
class Cost:
    """Seconds of a step."""

    fixed_s: float = 0.020
    decode_s: float = 0.0008
    prefill_s: float = 0.00005


@dataclass
class Request:
    """One request: what it asks, and when its tokens came."""

    arrived_s: float
    prompt: int
    answer: int
    computed: int = 0
    token_times: list[float] = field(default_factory=list)

    def meets(self, first_token_s: float, inter_token_s: float) -> bool:
        """Whether the first token and the mean gap came within the goals."""
        gaps = len(self.token_times) - 1
        mean_s = (self.token_times[-1] - self.token_times[0]) / gaps if gaps else 0.0
        return self.token_times[0] - self.arrived_s <= first_token_s and mean_s <= inter_token_s


@dataclass
class Run:
    """What came of a run: requests that ended, and (second, max_num_seqs) of each change with its reason."""

    done: list[Request]
    changes: list[tuple[float, Limits, str]]
    seconds: float

    def goodput(self, first_token_s: float, inter_token_s: float) -> float:
        """Requests a second that met both goals."""
        return sum(request.meets(first_token_s, inter_token_s) for request in self.done) / self.seconds


def run(
    clients: Callable[[float], int],
    seconds: float,
    limits: Limits,
    policy: Policy | None = None,
    cost: Cost | None = None,
    prompt: int = 300,
    answer: int = 60,
) -> Run:
    """Serve `clients(now_s)` clients, each with one request at a time, for `seconds`."""
    cost = cost or Cost()
    now_s, observe_at_s = 0.0, OBSERVE_S
    waiting: deque[Request] = deque()
    running: list[Request] = []
    done: list[Request] = []
    changes: list[tuple[float, Limits, str]] = []
    seen_gaps: list[float] = []
    seen_firsts: list[float] = []
    lengths = itertools.cycle((0.5, 1.0, 1.5, 0.75, 1.25))
    while now_s < seconds:
        for _ in range(clients(now_s) - len(waiting) - len(running)):
            share = next(lengths)
            waiting.append(Request(now_s, int(prompt * share), int(answer * share)))
        while waiting and len(running) < limits.max_num_seqs:
            running.append(waiting.popleft())
        prefill_left = limits.prefill_tokens
        step_prefill, decodes, sampled = 0, 0, []
        for request in running:
            lacking = request.prompt - request.computed
            if lacking <= 0:
                decodes += 1
                sampled.append(request)
                continue
            granted = min(lacking, prefill_left)
            prefill_left -= granted
            step_prefill += granted
            request.computed += granted
            if granted == lacking:
                sampled.append(request)
        now_s += cost.fixed_s + decodes * cost.decode_s + step_prefill * cost.prefill_s
        for request in sampled:
            if request.token_times:
                seen_gaps.append(now_s - request.token_times[-1])
            else:
                seen_firsts.append(now_s - request.arrived_s)
            request.token_times.append(now_s)
            if len(request.token_times) >= request.answer:
                running.remove(request)
                done.append(request)
        if policy is not None and now_s >= observe_at_s:
            observe_at_s += OBSERVE_S
            seen = Observation(now_s, len(waiting), len(running), 0.3, 0, _p95(seen_firsts), _mean(seen_gaps))
            seen_firsts, seen_gaps = [], []
            decision = policy.decide(limits, seen)
            if decision is not None:
                limits = decision.limits
                changes.append((now_s, limits, decision.reason))
    return Run(done, changes, now_s)


def step_load(now_s: float) -> int:
    """1 client for 100 s, 32 until 500 s, 2 after that."""
    return 1 if now_s < 100 else 32 if now_s < 500 else 2


def _p95(values: list[float]) -> float | None:
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else None


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
