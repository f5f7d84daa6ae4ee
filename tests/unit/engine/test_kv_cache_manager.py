"""KVCacheManager: who may share a prefix, and what usage, hit rate and fragmentation say."""

from __future__ import annotations

import random

import pytest

from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.kv.prefix_hash import ROOT, extend_hashes, root_hash
from ascendd.engine.sched.scheduler import Scheduler


def serve(scheduler: Scheduler, runner, *sequences) -> None:
    """Run `sequences` to their end."""
    for sequence in sequences:
        scheduler.add(sequence)
    while scheduler.has_work:
        output = scheduler.schedule()
        scheduler.update_from_output(output, runner.execute(output))


@pytest.mark.parametrize(
    ("first", "second", "cached"), [(b"", b"", 8), (b"a", b"a", 8), (b"a", b"", 0), (b"a", b"b", 0)]
)
def test_a_prefix_is_shared_only_under_one_cache_key(
    make_sequence, scripted_runner, first: bytes, second: bytes, cached: int
) -> None:
    """An adapter's or tenant's blocks are found again under its own key, and by nobody else (case B43)."""
    kv = KVCacheManager(16, 4)
    scheduler, runner = Scheduler(kv, max_num_seqs=4, max_num_batched_tokens=32), scripted_runner(4)
    prompt = list(range(12))
    serve(scheduler, runner, make_sequence(1, prompt=prompt, cache_key=first))
    again = make_sequence(2, prompt=prompt, cache_key=second)
    serve(scheduler, runner, again)

    assert again.num_cached_tokens == cached
    assert kv.num_prefix_hits == cached


def test_the_cache_key_is_in_every_hash_of_the_chain(make_sequence) -> None:
    """Keys of any length differ in every block, those with a long common beginning and trailing zeros too."""
    keys = [b"", b"a", b"a\0", b"x" * 100, b"x" * 101]
    chains = [extend_hashes(make_sequence(1, num_prompt=8, cache_key=key), 4) for key in keys]

    assert root_hash(b"") == ROOT
    assert len({block_hash for chain in chains for block_hash in chain}) == 2 * len(keys)


def test_fragmentation_is_the_share_of_slots_without_a_token(make_sequence, scripted_runner) -> None:
    """9 tokens in 3 blocks of 4 leave 3 of 12 slots empty; the next token leaves 2."""
    kv = KVCacheManager(16, 4)
    scheduler, runner = Scheduler(kv, max_num_seqs=4, max_num_batched_tokens=32), scripted_runner(4)
    scheduler.add(make_sequence(1, num_prompt=9))

    assert scheduler.kv_fragmentation == 0.0
    for empty in (3, 2, 1):
        output = scheduler.schedule()
        scheduler.update_from_output(output, runner.execute(output))
        assert scheduler.kv_fragmentation == pytest.approx(empty / 12)


def test_fragmentation_agrees_with_a_count_of_the_slots(make_sequence, scripted_runner) -> None:
    """Under shared prefixes and preemption the cheap sum equals the count over all held blocks."""
    rng = random.Random(5)
    kv = KVCacheManager(24, 4)
    scheduler, runner = Scheduler(kv, max_num_seqs=6, max_num_batched_tokens=16), scripted_runner(4)
    shared = [3] * 9
    for seq_id in range(20):
        prompt = shared[: rng.randint(1, 9)] + [rng.randint(1, 2) for _ in range(rng.randint(0, 12))]
        scheduler.add(make_sequence(seq_id, prompt=prompt, max_tokens=rng.randint(1, 20)))
    ratios = []
    while scheduler.has_work:
        output = scheduler.schedule()
        scheduler.update_from_output(output, runner.execute(output))
        filled: dict[int, int] = {}
        for sequence in scheduler._running:
            for index, block_id in enumerate(sequence.block_ids):
                filled[block_id] = min(4, max(0, sequence.num_tokens - 1 - 4 * index))
        empty = sum(4 - count for count in filled.values())
        ratios.append(scheduler.kv_fragmentation)
        assert ratios[-1] == pytest.approx(empty / (4 * len(filled)) if filled else 0.0)

    assert scheduler.num_preemptions > 0
    assert kv.num_prefix_hits > 0
    assert max(ratios) > 0.1


def test_hit_rate_is_hits_by_queries(make_sequence, scripted_runner) -> None:
    """Nothing looked up is 0; the second of two equal prompts of 12 finds 8 of its tokens."""
    kv = KVCacheManager(16, 4)
    scheduler, runner = Scheduler(kv, max_num_seqs=1, max_num_batched_tokens=32), scripted_runner(4)

    assert kv.prefix_hit_rate == 0.0
    serve(scheduler, runner, *(make_sequence(seq_id, prompt=list(range(12))) for seq_id in (1, 2)))
    assert kv.prefix_hit_rate == pytest.approx(8 / 24)
