"""The scheduler under any load: every sequence ends exactly once, with the tokens of an undisturbed run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.sched.scheduler import Scheduler
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.ipc.messages import FinishReason

BLOCK_SIZE = 4


@dataclass
class Load:
    """Random traffic on a scheduler with a simulated clock of one second a step, and a record of every ending."""

    scheduler: Scheduler
    runner: object
    rng: random.Random
    budget: int
    pending: list[Sequence]
    abort_chance: float = 0.02
    now_s: float = 0.0
    tokens: dict[int, list[int]] = field(default_factory=dict)
    endings: list[tuple[int, str]] = field(default_factory=list)

    def arrive(self, chance: float = 0.5) -> None:
        """Let pending sequences come in."""
        while self.pending and self.rng.random() < chance:
            self.scheduler.add(self.pending.pop())

    def disturb(self) -> None:
        """Abort at random, and end what is late."""
        known = self.scheduler.seq_ids
        if known and self.rng.random() < self.abort_chance:
            seq_id = self.rng.choice(known)
            assert self.scheduler.abort(seq_id) is not None
            self.endings.append((seq_id, "aborted"))
        self.endings += [(sequence.seq_id, "late") for sequence in self.scheduler.expired(self.now_s)]

    def step(self) -> None:
        """Run one step, with disturbances before it and between execution and update."""
        self.now_s += 1
        self.disturb()
        before = list(self.scheduler._running)
        output = self.scheduler.schedule()
        assert output.num_tokens <= self.budget
        assert output.chunks or not self.scheduler.has_work, "a step with work does nothing"
        preempted = [sequence.queue_key for sequence in before if sequence.status is SequenceStatus.WAITING]
        if preempted:
            assert all(sequence.queue_key < min(preempted) for sequence in self.scheduler._running)
        result = self.runner.execute(output)
        self.disturb()
        for event in self.scheduler.update_from_output(output, result):
            self.tokens.setdefault(event.sequence.seq_id, []).append(event.token_id)
            if event.finish is not FinishReason.RUNNING:
                self.endings.append((event.sequence.seq_id, "finished"))
        self.scheduler.check_integrity()


def check_endings(load: Load, wanted: dict[int, tuple[list[int], int]], expected) -> None:
    """Every sequence ended once; the finished have all their tokens, the others the beginning of them."""
    assert sorted(seq_id for seq_id, _ in load.endings) == sorted(wanted)
    for seq_id, how in load.endings:
        prompt, num_tokens = wanted[seq_id]
        got = load.tokens.get(seq_id, [])
        assert len(got) == num_tokens if how == "finished" else len(got) < num_tokens
        assert got == expected(prompt, len(got))


def make_traffic(make_sequence, rng: random.Random, num: int, longest: int, *, with_deadlines: bool) -> list[Sequence]:
    """Return sequences of any length up to `longest`, most of which share the beginning of their prompt."""
    shared = [rng.choice((1, 2, 3)) for _ in range(longest)]
    sequences = []
    for seq_id in range(num):
        num_prompt = rng.randint(1, longest - 1)
        num_shared = rng.randint(0, num_prompt)
        prompt = shared[:num_shared] + [rng.choice((1, 2)) for _ in range(num_prompt - num_shared)]
        deadline = rng.uniform(1, 400) if with_deadlines and rng.random() < 0.2 else 0.0
        max_tokens = rng.randint(1, longest - num_prompt)
        sequences.append(
            make_sequence(
                seq_id, prompt=prompt, max_tokens=max_tokens, priority=rng.choice((0, 0, 1, 5)), deadline_s=deadline,
                cache_key=rng.choice((b"", b"", b"adapter")),
            )
        )  # fmt: skip
    return sequences


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(1, 40),
    budget=st.integers(4, 40),
    max_num_seqs=st.integers(1, 4),
    decode_prefill=st.integers(1, 40),
    prefix=st.booleans(),
    disturbed=st.booleans(),
)
def test_any_load_ends_with_the_right_tokens(
    scripted_runner, make_sequence, seed: int, num_blocks: int, budget: int, max_num_seqs: int, decode_prefill: int,
    prefix: bool, disturbed: bool,
) -> None:  # fmt: skip
    """Under any pool that fits one sequence: no leak, no double free, every sequence ends once, tokens as alone."""
    rng = random.Random(seed)
    kv = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=prefix)
    scheduler = Scheduler(
        kv, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, decode_prefill_tokens=decode_prefill
    )
    longest = num_blocks * BLOCK_SIZE - 1
    traffic = make_traffic(make_sequence, rng, rng.randint(1, 12), longest, with_deadlines=disturbed)
    wanted = {sequence.seq_id: (list(sequence.token_ids), sequence.params.max_tokens) for sequence in traffic}
    load = Load(scheduler, scripted_runner(BLOCK_SIZE), rng, budget, traffic, 0.02 if disturbed else 0.0)
    for _ in range(20_000):
        load.arrive()
        if scheduler.has_work:
            load.step()
        elif not load.pending:
            break

    assert not scheduler.has_work
    check_endings(load, wanted, scripted_runner.expected)
    assert disturbed or {how for _, how in load.endings} == {"finished"}
    assert kv.pool.num_free_blocks == num_blocks


def test_a_pool_of_40_blocks_under_64_requests_with_aborts(scripted_runner, make_sequence) -> None:
    """B105: 10,000 steps of waves of 64 random requests, 40 blocks: all end, and the accounts add up after each step."""
    rng = random.Random(40)
    kv = KVCacheManager(40, BLOCK_SIZE)
    scheduler = Scheduler(kv, max_num_seqs=16, max_num_batched_tokens=48, decode_prefill_tokens=24)
    runner = scripted_runner(BLOCK_SIZE)
    num_steps = num_waves = num_ended = 0
    while num_steps < 10_000:
        num_waves += 1
        traffic = make_traffic(make_sequence, rng, 64, 80, with_deadlines=False)
        wanted = {sequence.seq_id: (list(sequence.token_ids), sequence.params.max_tokens) for sequence in traffic}
        load = Load(scheduler, runner, rng, 48, traffic)
        load.arrive(chance=1.0)
        while scheduler.has_work:
            load.step()
            num_steps += 1
        check_endings(load, wanted, scripted_runner.expected)
        assert kv.pool.num_free_blocks == 40
        num_ended += len(load.endings)

    assert num_ended == 64 * num_waves
    assert scheduler.num_preemptions > 100
    assert kv.num_prefix_hits > 1000


@pytest.mark.parametrize("num_blocks", [1, 2, 3])
def test_a_pool_of_one_sequence_serves_many(scripted_runner, make_sequence, num_blocks: int) -> None:
    """Where the pool fits just one sequence, all are served one after the other."""
    kv = KVCacheManager(num_blocks, BLOCK_SIZE)
    scheduler = Scheduler(kv, max_num_seqs=4, max_num_batched_tokens=8)
    size = num_blocks * BLOCK_SIZE
    traffic = [make_sequence(seq_id, num_prompt=size - 2, max_tokens=2) for seq_id in range(5)]
    load = Load(scheduler, scripted_runner(BLOCK_SIZE), random.Random(1), 8, traffic, 0.0)
    load.arrive(chance=1.0)
    for _ in range(5 * size):
        if scheduler.has_work:
            load.step()

    assert sorted(load.endings) == [(seq_id, "finished") for seq_id in range(5)]
