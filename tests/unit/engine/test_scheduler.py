"""The scheduler, rule by rule. test_scheduler_load.py has it under any load."""

from __future__ import annotations

import pytest

from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.kv.prefix_hash import extend_hashes
from ascendd.engine.sched.scheduler import Scheduler
from ascendd.engine.sequence import SequenceStatus
from ascendd.ipc.messages import FinishReason


def make(
    num_blocks: int = 40,
    block_size: int = 4,
    *,
    max_num_seqs: int = 8,
    budget: int = 16,
    prefix: bool = True,
    **kwargs: int,
):
    kv = KVCacheManager(num_blocks, block_size, enable_prefix_caching=prefix)
    return Scheduler(kv, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, **kwargs), kv


def run(scheduler: Scheduler, runner, max_steps: int = 5000) -> dict[int, list[int]]:
    """Step until nothing is left, checking the accounts after each step; return the tokens of each sequence."""
    tokens: dict[int, list[int]] = {}
    for _ in range(max_steps):
        if not scheduler.has_work:
            return tokens
        output = scheduler.schedule()
        for event in scheduler.update_from_output(output, runner.execute(output)):
            tokens.setdefault(event.sequence.seq_id, []).append(event.token_id)
        scheduler.check_integrity()
    raise AssertionError(f"no end after {max_steps} steps")


def test_decodes_come_before_prompts_and_share_one_budget(make_sequence, scripted_runner) -> None:
    """A running sequence gets its token in the same step in which a new prompt gets the rest of the budget."""
    scheduler, _ = make(budget=8)
    runner = scripted_runner(4)
    scheduler.add(make_sequence(1, num_prompt=4))
    output = scheduler.schedule()
    scheduler.update_from_output(output, runner.execute(output))
    scheduler.add(make_sequence(2, num_prompt=20))
    output = scheduler.schedule()

    assert [(chunk.sequence.seq_id, chunk.num_tokens) for chunk in output.chunks] == [(1, 1), (2, 7)]
    assert [chunk.samples for chunk in output.chunks] == [True, False]


def test_prompt_chunks_shrink_while_somebody_decodes(make_sequence, scripted_runner) -> None:
    """decode_prefill_tokens bounds the pause between two tokens of a stream."""
    scheduler, _ = make(budget=16, decode_prefill_tokens=4)
    runner = scripted_runner(4)
    scheduler.add(make_sequence(1, num_prompt=4))
    output = scheduler.schedule()
    scheduler.update_from_output(output, runner.execute(output))
    scheduler.add(make_sequence(2, num_prompt=20))

    assert [chunk.num_tokens for chunk in scheduler.schedule().chunks] == [1, 4]


def test_the_second_of_two_equal_prompts_reuses_full_blocks(make_sequence, scripted_runner) -> None:
    """Blocks published by a finished step are shared; the last token is always computed."""
    scheduler, kv = make()
    runner = scripted_runner(4)
    prompt = list(range(12))
    scheduler.add(make_sequence(1, prompt=prompt))
    first = run(scheduler, runner)[1]
    scheduler.add(make_sequence(2, prompt=prompt))
    output = scheduler.schedule()

    assert output.chunks[0].start == 8
    [event] = scheduler.update_from_output(output, runner.execute(output))
    assert event.num_cached_tokens == 8
    assert [event.token_id, *run(scheduler, runner)[2]] == first
    assert kv.num_prefix_hits == 8


def test_no_block_is_published_before_its_step_succeeded(make_sequence) -> None:
    """A step that fails leaves nothing that another sequence could read."""
    scheduler, kv = make()
    scheduler.add(make_sequence(1, prompt=list(range(12))))
    scheduler.schedule()

    assert kv.match_prefix(make_sequence(2, prompt=list(range(12)))) == []


def test_the_newest_is_preempted_and_the_oldest_goes_on(make_sequence, scripted_runner) -> None:
    """Two sequences that together outgrow the pool both end, with the tokens they would have had alone."""
    scheduler, kv = make(num_blocks=10, block_size=4, budget=32)
    runner = scripted_runner(4)
    sequences = [make_sequence(seq_id, num_prompt=8, max_tokens=20) for seq_id in (1, 2)]
    for sequence in sequences:
        scheduler.add(sequence)
    tokens = run(scheduler, runner)

    assert scheduler.num_preemptions > 0
    assert sequences[0].num_preemptions == 0
    for sequence in sequences:
        assert tokens[sequence.seq_id] == scripted_runner.expected(sequence.token_ids[:8], 20)
    assert kv.pool.num_free_blocks == 10


def test_long_prompts_larger_than_the_pool_together_finish_in_bounded_steps(make_sequence, scripted_runner) -> None:
    """Admission asks for the whole prompt, so chunks of several prompts never lock each other out (case B46)."""
    scheduler, _ = make(num_blocks=12, block_size=4, budget=8)
    for seq_id in (1, 2, 3):
        scheduler.add(make_sequence(seq_id, num_prompt=30, max_tokens=8))
    tokens = run(scheduler, scripted_runner(4), max_steps=200)

    assert sorted(tokens) == [1, 2, 3]
    assert all(len(ids) == 8 for ids in tokens.values())


def test_the_lowest_priority_is_preempted_before_the_newest(make_sequence, scripted_runner) -> None:
    """An older sequence of a worse priority gives way to a newer one of a better priority."""
    scheduler, _ = make(num_blocks=10, block_size=4, budget=32)
    runner = scripted_runner(4)
    sequences = [make_sequence(seq_id, num_prompt=8, max_tokens=20, priority=2 - seq_id) for seq_id in (0, 1, 2)]
    for sequence in sequences:
        scheduler.add(sequence)
    tokens = run(scheduler, runner)

    assert [sequence.num_preemptions > 0 for sequence in sequences] == [True, True, False]
    assert list(tokens)[-1] in (0, 1)
    for sequence in sequences:
        assert tokens[sequence.seq_id] == scripted_runner.expected(sequence.token_ids[:8], 20)


def test_lower_priority_value_is_served_first(make_sequence) -> None:
    """The queue is ordered by priority, then by arrival."""
    scheduler, _ = make(max_num_seqs=1)
    for seq_id, priority in ((1, 5), (2, 0), (3, 0)):
        scheduler.add(make_sequence(seq_id, priority=priority))

    assert scheduler.schedule().chunks[0].sequence.seq_id == 2


def test_a_deadline_ends_a_sequence_wherever_it_is(make_sequence, scripted_runner) -> None:
    """Running and waiting sequences alike give their blocks back when their time is over."""
    scheduler, kv = make(max_num_seqs=1)
    scheduler.add(make_sequence(1, deadline_s=10.0, max_tokens=50))
    scheduler.add(make_sequence(2, deadline_s=10.0))
    scheduler.add(make_sequence(3))
    output = scheduler.schedule()
    scheduler.update_from_output(output, scripted_runner(4).execute(output))

    assert [sequence.seq_id for sequence in scheduler.expired(9.9)] == []
    assert [sequence.seq_id for sequence in scheduler.expired(10.0)] == [1, 2]
    assert kv.pool.num_used_blocks == 0
    scheduler.check_integrity()


def test_unknown_and_finished_ids_are_ignored_by_abort(make_sequence, scripted_runner) -> None:
    """A late abort of an ended sequence changes nothing (case B57)."""
    scheduler, _ = make()
    scheduler.add(make_sequence(1, max_tokens=1))
    run(scheduler, scripted_runner(4))

    assert scheduler.abort(1) is None
    assert scheduler.abort(99) is None
    scheduler.check_integrity()


def test_an_abort_while_a_step_is_under_way_drops_its_token(make_sequence, scripted_runner) -> None:
    """What a step produced for a sequence that is gone reaches nobody."""
    scheduler, kv = make()
    runner = scripted_runner(4)
    scheduler.add(make_sequence(1))
    scheduler.add(make_sequence(2))
    output = scheduler.schedule()
    result = runner.execute(output)
    scheduler.abort(1)

    assert [event.sequence.seq_id for event in scheduler.update_from_output(output, result)] == [2]
    assert kv.pool.num_used_blocks == 1


@pytest.mark.parametrize("num_prompt", [3, 8, 9])
def test_a_sequence_that_becomes_long_is_computed_again(make_sequence, scripted_runner, num_prompt: int) -> None:
    """Past its switch length it starts over with other block hashes; no token is lost, nothing counts as preempted."""
    scheduler, _ = make()
    sequence = make_sequence(0, num_prompt=num_prompt, max_tokens=12, rope_switch_length=8)
    prompt = list(sequence.token_ids)
    scheduler.add(sequence)
    tokens = run(scheduler, scripted_runner(4))

    assert tokens[0] == scripted_runner.expected(prompt, 12)
    assert sequence.num_preemptions == (0 if num_prompt > 8 else 1)
    assert scheduler.num_preemptions == 0
    twin = make_sequence(1, num_prompt=num_prompt, rope_switch_length=None)
    twin.token_ids = list(sequence.token_ids)
    assert sequence.block_hashes[0] != extend_hashes(twin, 4)[0]


def test_a_finished_sequence_says_so(make_sequence, scripted_runner) -> None:
    """Status and reason are final once the last token is out."""
    scheduler, _ = make()
    sequence = make_sequence(1, max_tokens=2)
    scheduler.add(sequence)
    run(scheduler, scripted_runner(4))

    assert sequence.status is SequenceStatus.FINISHED
    assert sequence.finish_reason is FinishReason.LENGTH


def test_a_budget_smaller_than_the_batch_is_refused() -> None:
    """A full batch must be able to decode in one step."""
    with pytest.raises(AssertionError, match="could not decode"):
        make(max_num_seqs=8, budget=4)


def test_limits_change_between_steps_and_stay_within_what_was_built(make_sequence, scripted_runner) -> None:
    """A lower limit admits nobody above it and sends nobody back; a higher one is cut to the capacity."""
    scheduler, _ = make(max_num_seqs=4)
    for seq_id in range(6):
        scheduler.add(make_sequence(seq_id, max_tokens=50))
    runner = scripted_runner(4)
    output = scheduler.schedule()
    scheduler.update_from_output(output, runner.execute(output))

    scheduler.set_limits(2, 7)
    output = scheduler.schedule()
    scheduler.update_from_output(output, runner.execute(output))

    assert scheduler.num_running == 4
    assert (scheduler.max_num_seqs, scheduler.decode_prefill_tokens) == (2, 7)
    scheduler.abort(0)
    scheduler.abort(1)
    scheduler.schedule()
    assert scheduler.num_running == 2
    scheduler.set_limits(99, 10**9)
    assert (scheduler.max_num_seqs, scheduler.decode_prefill_tokens) == (4, scheduler.budget.max_tokens)
