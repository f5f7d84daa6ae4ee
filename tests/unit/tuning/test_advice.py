"""Advice for an instance file from the lengths of requests."""

from __future__ import annotations

import bisect

import pytest

from ascendd.cli.tune import advice as advice_lines
from ascendd.cli.tune import explanation
from ascendd.ipc.messages import Sample
from ascendd.telemetry.metrics import SPECS
from ascendd.tuning.advice import InForce, advise, num_requests

NOW = InForce(16, 1000, 32768, 64, (16, 32, 64, 128), bytes_per_token=1024)


def histogram(name, values):
    """Return the sample that observing `values` makes."""
    bounds = SPECS[name].buckets
    counts = [0] * (len(bounds) + 1)
    for value in values:
        counts[bisect.bisect_left(bounds, value)] += 1
    return Sample(name, float(sum(values)), (), tuple(counts))


def seen(prompts, answers):
    """Return the samples of requests with these lengths."""
    return [
        histogram("ascendd_request_prompt_tokens", prompts),
        histogram("ascendd_request_generation_tokens", answers),
        Sample("ascendd_engine_preemptions_total", 7.0),
    ]


def advised(samples, now=NOW):
    """Return the advised values by key."""
    return {one.key: one.advised for one in advise(samples, now)}


def test_few_requests_give_no_advice():
    """99 requests are not enough to know what is usual; 100 are."""
    assert advise(seen([100] * 99, [50] * 99), NOW) == []
    assert len(advise(seen([100] * 100, [50] * 100), NOW)) == 3
    assert num_requests(seen([100] * 99, [50] * 99)) == 99


@pytest.mark.parametrize(("prompt", "answer", "size"), [(60, 60, 16), (200, 200, 32), (1000, 300, 128)])
def test_longer_requests_take_larger_blocks(prompt, answer, size):
    """The largest block of which half is at most 5 % of a mean request; the smallest where none is."""
    assert advised(seen([prompt] * 200, [answer] * 200))["engine.block_size"] == size


def test_only_blocks_that_the_device_takes_are_advised():
    """A device with one block size keeps it, however short requests are."""
    now = InForce(128, 1000, 32768, 64, (128,))

    assert advised(seen([10] * 200, [10] * 200), now)["engine.block_size"] == 128


def test_the_cache_holds_a_full_batch_of_usual_requests():
    """64 sequences of p95 length, 975 + 485 tokens within their buckets: 23 blocks of 64 each; the reason has the memory."""
    samples = seen([1000] * 200, [500] * 200)

    (row,) = [one for one in advise(samples, InForce(64, 1000, 4096, 64, (64,), 1024)) if "blocks" in one.key]
    assert row.advised == 64 * 23
    assert "92.00 MiB of each device" in row.reason
    assert "7 sequences were put back" in row.reason


def test_one_sequence_of_full_length_always_fits():
    """With short requests the cache still holds max_model_len tokens."""
    assert advised(seen([10] * 200, [10] * 200))["engine.max_num_blocks"] == 32768 // 16


def test_the_context_is_the_longest_request_and_a_quarter():
    """Longest bucket 1000 + 500: 1,875 tokens, in steps of 256; never more than now."""
    samples = seen([100] * 199 + [900], [50] * 199 + [400])

    assert advised(samples)["model.max_model_len"] == 2048
    assert advised(samples, InForce(16, 1000, 2000, 64, (16,)))["model.max_model_len"] == 2000


def test_a_context_that_is_used_stays():
    """Requests near the end of the context, or longer than any bound, keep it."""
    assert advised(seen([20000] * 200, [9000] * 200), InForce(16, 1, 30000, 1, (16,)))["model.max_model_len"] == 30000
    assert advised(seen([600_000] * 200, [10] * 200))["model.max_model_len"] == 32768


FACTS = {
    "enabled": True, "policy": "queue", "interval_s": 5.0, "max_num_seqs": 72, "prefill_tokens": 512,
    "changes": [{"unix_s": 1e9, "max_num_seqs": 72, "prefill_tokens": 512, "reason": "30 sequences wait"}],
    "num_requests": 12, "min_requests": 100, "advice": [],
}  # fmt: skip


def test_an_explanation_has_each_change_with_its_time_and_reason():
    """What people read: the policy, the limits now, then a line a change."""
    assert explanation(FACTS) == [
        "self-tuning by the policy queue, every 5 s; now up to 72 sequences and 512 prompt tokens a step",
        "  2001-09-09 01:46:40 UTC  30 sequences wait",
    ]
    assert "self-tuning is off" in explanation(FACTS | {"enabled": False})[0]
    assert "no change so far" in explanation(FACTS | {"changes": []})[1]


def test_advice_says_what_stays_and_what_changes():
    """A key whose value suits stays; without advice the number of requests that lack is told."""
    rows = [
        {"key": "engine.block_size", "now": 16, "advised": 16, "reason": "a"},
        {"key": "model.max_model_len", "now": 32768, "advised": 2048, "reason": "b"},
    ]
    lines = advice_lines(FACTS | {"advice": rows, "num_requests": 300})

    assert "engine.block_size      16 stays" in lines[1]
    assert "model.max_model_len    32768 -> 2048" in lines[3]
    assert advice_lines(FACTS) == ["no advice: 12 requests have ended, and 100 are needed to know what is usual"]
