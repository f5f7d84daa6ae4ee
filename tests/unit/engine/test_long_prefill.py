"""The long_prefill rule: long prompts do not starve short ones, and are not starved by them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.sched.long_prefill import first_share, passing
from ascendd.engine.sched.output import ModelRunnerOutput
from ascendd.engine.sched.scheduler import Scheduler
from ascendd.engine.sequence import Sequence


def make(num_blocks: int = 2000, budget: int = 512, **kwargs: int) -> Scheduler:
    kv = KVCacheManager(num_blocks, 16)
    return Scheduler(kv, max_num_seqs=64, max_num_batched_tokens=budget, **kwargs)


def steps_until(scheduler: Scheduler, sequence: Sequence, limit: int = 1000) -> int:
    """Step until `sequence` has its first token; return the number of steps."""
    for num in range(1, limit + 1):
        output = scheduler.schedule()
        scheduler.update_from_output(output, ModelRunnerOutput([7] * len(output.sampling_chunks)))
        if sequence.num_output_tokens:
            return num
    raise AssertionError(f"no token after {limit} steps")


def chunks_of(scheduler: Scheduler) -> dict[int, int]:
    """Run one step and return the tokens of each sequence in it."""
    output = scheduler.schedule()
    scheduler.update_from_output(output, ModelRunnerOutput([7] * len(output.sampling_chunks)))
    return {chunk.sequence.seq_id: chunk.num_tokens for chunk in output.chunks}


@pytest.mark.parametrize("budget", [64, 128, 512])
@pytest.mark.parametrize("num_long", [1, 2, 8])
def test_a_short_prompt_passes_long_ones(make_sequence, budget: int, num_long: int) -> None:
    """With any number of 4,000-token prompts before it, a 20-token prompt has its first token in the next step."""
    scheduler = make(num_blocks=2500, budget=budget)
    for seq_id in range(num_long):
        scheduler.add(make_sequence(seq_id, num_prompt=4000))
    chunks_of(scheduler)
    short = make_sequence(99, num_prompt=20)
    scheduler.add(short)

    assert steps_until(scheduler, short) == 1


def test_a_long_prompt_keeps_half_of_each_step(make_sequence) -> None:
    """Short prompts that never stop coming slow a 4,000-token prompt down by a factor of two, no more."""
    scheduler = make(num_blocks=4000)
    long = make_sequence(0, num_prompt=4000)
    scheduler.add(long)
    num_steps = 0
    while not long.num_output_tokens:
        for index in range(20):
            scheduler.add(make_sequence(1000 + num_steps * 20 + index, num_prompt=50, max_tokens=1))
        chunks_of(scheduler)
        num_steps += 1

    assert num_steps == -(-4000 // 256)


def test_what_short_prompts_leave_goes_back_to_the_long_one(make_sequence) -> None:
    """The budget is spent to the last token."""
    scheduler = make()
    scheduler.add(make_sequence(0, num_prompt=4000))
    chunks_of(scheduler)
    scheduler.add(make_sequence(1, num_prompt=20))

    assert chunks_of(scheduler) == {0: 492, 1: 20}


def test_a_longer_prompt_does_not_pass(make_sequence) -> None:
    """Of two equal prompts the first ends as early as alone."""
    scheduler = make()
    for seq_id in (0, 1):
        scheduler.add(make_sequence(seq_id, num_prompt=1000))

    assert [chunks_of(scheduler) for _ in range(3)] == [{0: 512}, {0: 488, 1: 24}, {0: 1, 1: 511}]


def test_a_better_priority_is_not_passed(make_sequence) -> None:
    """A short prompt of a worse priority waits for a long one; one of a better priority comes before it."""
    scheduler = make()
    scheduler.add(make_sequence(0, num_prompt=4000, priority=1))
    chunks_of(scheduler)
    scheduler.add(make_sequence(1, num_prompt=20, priority=2))
    scheduler.add(make_sequence(2, num_prompt=300, priority=0))

    assert chunks_of(scheduler) == {2: 300, 0: 212}


def test_nobody_passes_what_waits_for_memory(make_sequence) -> None:
    """While the first of all does not fit the pool, no newer prompt takes blocks from under it."""
    scheduler = make(num_blocks=300, budget=512)
    scheduler.add(make_sequence(0, num_prompt=2000, max_tokens=40))
    while chunks_of(scheduler) != {0: 1}:
        pass
    scheduler.add(make_sequence(1, num_prompt=4000))
    scheduler.add(make_sequence(2, num_prompt=20))

    assert chunks_of(scheduler) == {0: 1}
    assert scheduler.num_waiting == 2


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    budget=st.integers(8, 64),
    own=st.integers(2, 60),
    before=st.lists(st.integers(2, 600), max_size=4),
    num_steps=st.integers(0, 5),
)
@example(budget=8, own=2, before=[3, 7, 5], num_steps=0)
@example(budget=8, own=2, before=[10, 10, 8, 8, 8, 8], num_steps=1)
@example(budget=8, own=16, before=[30, 19, 19], num_steps=5)
def test_the_wait_does_not_depend_on_longer_prompts(
    make_sequence, budget: int, own: int, before: list[int], num_steps: int
) -> None:
    """The first token comes within the bound that long_prefill states, whatever longer prompts came before."""
    scheduler = Scheduler(
        KVCacheManager(160, 16, enable_prefix_caching=False), max_num_seqs=8, max_num_batched_tokens=budget
    )
    earlier = [make_sequence(seq_id, num_prompt=num, max_tokens=1) for seq_id, num in enumerate(before)]
    for other in earlier:
        scheduler.add(other)
    for _ in range(num_steps):
        chunks_of(scheduler)
    sequence = make_sequence(99, num_prompt=own)
    scheduler.add(sequence)
    lacking = [other.num_uncomputed_tokens for other in earlier if not other.num_output_tokens]
    shorter = sum(num for num in lacking if num <= own)

    assert steps_until(scheduler, sequence) <= -(-(2 * own + shorter) // (budget // 2)) + 1


def test_the_share_of_one_token_goes_in_turns() -> None:
    """A step of one prompt token serves the long prompt and the short ones alternately; others are halved."""
    assert [first_share(1, step) for step in range(4)] == [0, 1, 0, 1]
    assert [first_share(512, step) for step in range(2)] == [256, 256]


def test_the_shortest_passes_first(make_sequence) -> None:
    """Order of service is by tokens that are missing, then by arrival; equals of the first do not pass."""
    first, *others = (
        make_sequence(seq_id, num_prompt=n, order=seq_id) for seq_id, n in enumerate((90, 30, 10, 90, 30))
    )

    assert [sequence.seq_id for sequence in passing(first, others)] == [2, 1, 4]
