"""Advice: what block size, KV cache and context length suit the requests that an instance has had. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ascendd.config.quantity import format_bytes
from ascendd.ipc.messages import Sample
from ascendd.telemetry.metrics import SPECS
from ascendd.tuning.observation import percentile

_PROMPT = "ascendd_request_prompt_tokens"
_ANSWER = "ascendd_request_generation_tokens"
# Fewer requests say nothing of the next ones.
MIN_REQUESTS = 100
# Half a block of each sequence is empty on average; this share of its tokens is worth fewer and larger blocks.
_MAX_EMPTY_SHARE = 0.05
# Room above the longest request that was seen.
_HEADROOM = 1.25
_CONTEXT_STEP = 256
_USUAL_PERCENTILE = 0.95


@dataclass(frozen=True)
class InForce:
    """
    What an instance runs with: tokens in a block, blocks, most tokens of a sequence, most sequences of a batch.

    `block_sizes` are those that its device takes; `bytes_per_token` is of one device, 0 where nobody knows it.
    """

    block_size: int
    num_blocks: int
    max_model_len: int
    max_num_seqs: int
    block_sizes: tuple[int, ...]
    bytes_per_token: int = 0


@dataclass(frozen=True)
class Advice:
    """One key of the instance file: what it is, what suits what was seen, and why. Equal values mean: leave it."""

    key: str
    now: int
    advised: int
    reason: str


@dataclass(frozen=True)
class _Lengths:
    mean: float
    usual: float
    longest: float
    is_open: bool  # whether one was above the last bound, so that the longest is not known


def num_requests(samples: Iterable[Sample]) -> int:
    """Return how many requests `samples` know the lengths of."""
    return next((sum(sample.buckets) for sample in samples if sample.name == _PROMPT), 0)


def advise(samples: Iterable[Sample], now: InForce) -> list[Advice]:
    """Return advice for each key, from the lengths in `samples` (running totals); none for too few requests."""
    by_name = {sample.name: sample for sample in samples if not sample.labels}
    if num_requests(by_name.values()) < MIN_REQUESTS:
        return []
    prompt, answer = _lengths(by_name[_PROMPT]), _lengths(by_name[_ANSWER])
    preempted = by_name.get("ascendd_engine_preemptions_total")
    block_size = _block_size(prompt.mean + answer.mean, now)
    return [
        block_size,
        _num_blocks(prompt, answer, now, block_size.advised, 0 if preempted is None else int(preempted.value)),
        _context(prompt, answer, now),
    ]


def _block_size(mean_tokens: float, now: InForce) -> Advice:
    fitting = [size for size in now.block_sizes if size / 2 <= _MAX_EMPTY_SHARE * mean_tokens]
    advised = max(fitting, default=min(now.block_sizes))
    empty = now.block_size / 2 / (mean_tokens + now.block_size / 2)
    reason = (
        f"requests have {mean_tokens:.0f} tokens on average, so {empty:.1%} of the slots in use are empty with blocks "
        f"of {now.block_size}; the largest block below {_MAX_EMPTY_SHARE:.0%} is best"
    )
    return Advice("engine.block_size", now.block_size, advised, reason)


def _num_blocks(prompt: _Lengths, answer: _Lengths, now: InForce, block_size: int, preempted: int) -> Advice:
    usual = prompt.usual + answer.usual
    needed = now.max_num_seqs * math.ceil(usual / block_size)
    # One sequence of full length must always fit, whatever is usual.
    needed = max(needed, math.ceil(now.max_model_len / block_size))
    reason = f"{now.max_num_seqs} sequences of {usual:.0f} tokens (p95 of prompts and of answers)"
    if now.bytes_per_token:
        reason += f" take {format_bytes(needed * block_size * now.bytes_per_token)} of each device"
    reason += f"; {preempted} sequences were put back for want of blocks so far"
    return Advice("engine.max_num_blocks", now.num_blocks, needed, reason)


def _context(prompt: _Lengths, answer: _Lengths, now: InForce) -> Advice:
    longest = prompt.longest + answer.longest
    if prompt.is_open or answer.is_open or longest >= now.max_model_len:
        reason = "requests come near the end of the context; a shorter one would refuse them"
        return Advice("model.max_model_len", now.max_model_len, now.max_model_len, reason)
    wish = math.ceil(longest * _HEADROOM / _CONTEXT_STEP) * _CONTEXT_STEP
    reason = f"no request had more than {longest:.0f} tokens; with a quarter more, {wish} is enough"
    return Advice("model.max_model_len", now.max_model_len, min(now.max_model_len, wish), reason)


def _lengths(sample: Sample) -> _Lengths:
    bounds = SPECS[sample.name].buckets
    count = sum(sample.buckets)
    filled = [bound for bound, number in zip(bounds, sample.buckets, strict=False) if number]
    return _Lengths(
        sample.value / count,
        percentile(sample.buckets, bounds, _USUAL_PERCENTILE) or 0.0,
        filled[-1] if filled else 0.0,
        bool(sample.buckets[-1]),
    )
