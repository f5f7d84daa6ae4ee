"""max_loras as a rule of the scheduler: never more adapters at once, and nobody waits for ever."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.sched.adapter_limit import MAX_OVERTAKES
from ascendd.engine.sched.scheduler import Scheduler


def make(max_adapters: int, *, num_blocks: int = 60, max_num_seqs: int = 8, budget: int = 32) -> Scheduler:
    kv = KVCacheManager(num_blocks, 4)
    return Scheduler(kv, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, max_adapters=max_adapters)


def adapters_of(output) -> set[int]:
    return {chunk.sequence.adapter_id for chunk in output.chunks} - {0}


def test_a_further_adapter_is_passed_over(make_sequence) -> None:
    """With one place the second adapter waits, while the base model and the first adapter behind it go on."""
    scheduler = make(1)
    for seq_id, adapter_id in ((1, 5), (2, 6), (3, 0), (4, 5)):
        scheduler.add(make_sequence(seq_id, adapter_id=adapter_id, prompt=[seq_id] * 4))

    assert {chunk.sequence.seq_id for chunk in scheduler.schedule().chunks} == {1, 3, 4}


def test_who_is_passed_over_gets_its_turn(make_sequence, scripted_runner) -> None:
    """A stream of one adapter's requests overtakes another adapter's a bounded number of times."""
    scheduler, runner = make(1, max_num_seqs=2), scripted_runner(4)
    scheduler.add(make_sequence(0, adapter_id=5, prompt=[1] * 4))
    late = make_sequence(1, adapter_id=6, prompt=[2] * 4)
    next_id, waited = 2, 0
    ended: set[int] = set()
    while 1 not in ended:
        if waited == 0:
            scheduler.add(late)
        waited += 1
        assert waited < 300, "the second adapter starves"
        while scheduler.num_waiting < 3:
            scheduler.add(make_sequence(next_id, adapter_id=5, prompt=[next_id] * 4))
            next_id += 1
        output = scheduler.schedule()
        assert len(adapters_of(output)) <= 1
        for event in scheduler.update_from_output(output, runner.execute(output)):
            if event.finish:
                ended.add(event.sequence.seq_id)
        scheduler.check_integrity()

    assert late.num_overtakes <= MAX_OVERTAKES
    assert len(ended) <= MAX_OVERTAKES + 4


REQUESTS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 30), st.integers(1, 6), st.integers(0, 2), st.booleans()),
    min_size=1,
    max_size=24,
)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=REQUESTS, max_adapters=st.integers(1, 3), num_blocks=st.integers(10, 40))
def test_all_end_under_any_mix_of_adapters(make_sequence, scripted_runner, requests, max_adapters, num_blocks) -> None:
    """Whatever adapters, lengths, priorities and aborts come: at most max_adapters a step, and every sequence ends."""
    scheduler, runner = make(max_adapters, num_blocks=num_blocks), scripted_runner(4)
    todo = list(enumerate(requests))
    tokens: dict[int, list[int]] = {}
    prompts: dict[int, list[int]] = {}
    aborted = set()
    for step in range(3000):
        if todo and step % 2 == 0:
            seq_id, (adapter_id, num_prompt, max_tokens, priority, is_aborted) = todo.pop(0)
            key = str(adapter_id).encode()
            sequence = make_sequence(
                seq_id, num_prompt, max_tokens, adapter_id=adapter_id, cache_key=key, priority=priority
            )
            prompts[seq_id] = list(sequence.token_ids)
            scheduler.add(sequence)
            if is_aborted and seq_id:
                aborted.add(seq_id - 1)
                scheduler.abort(seq_id - 1)
        if not todo and not scheduler.has_work:
            break
        output = scheduler.schedule()
        assert len(adapters_of(output)) <= max_adapters
        if output.chunks:
            for event in scheduler.update_from_output(output, runner.execute(output)):
                tokens.setdefault(event.sequence.seq_id, []).append(event.token_id)
        scheduler.check_integrity()
    else:
        raise AssertionError("not all sequences ended")

    for seq_id, (_, _, max_tokens, _, _) in enumerate(requests):
        if seq_id not in aborted:
            assert tokens[seq_id] == runner.expected(prompts[seq_id], max_tokens)
