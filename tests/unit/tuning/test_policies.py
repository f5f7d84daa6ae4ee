"""The tuning policies, each on observations made by hand and on a simulated server."""

from __future__ import annotations

import pytest
from simulation.simulated_server import Cost, run, step_load

from ascendd.ipc.messages import Sample
from ascendd.telemetry.metrics import SPECS
from ascendd.tuning.latency_policy import LatencyPolicy
from ascendd.tuning.observation import Observation, Observer, percentile
from ascendd.tuning.policy import Bounds, Limits
from ascendd.tuning.queue_policy import QueuePolicy

ACCOUNT = Bounds(32, 128, 64, 2048)
GOALS = (2.5, 0.05)


def seen(waiting=0, running=64, kv=0.3, preemptions=0, first=None, between=None):
    """Return an observation."""
    return Observation(10.0, waiting, running, kv, preemptions, first, between)


def test_a_long_queue_raises_the_batch_after_two_observations():
    """More than 24 waiting twice in a row raises max_num_seqs by 8, and the reason has the figures."""
    policy = QueuePolicy(ACCOUNT)

    assert policy.decide(Limits(64, 512), seen(waiting=25)) is None
    decision = policy.decide(Limits(64, 512), seen(waiting=30))

    assert decision.limits == Limits(72, 512)
    assert decision.reason == "30 sequences wait, more than 24: max_num_seqs 64 -> 72"


def test_a_short_queue_lowers_the_batch():
    """Fewer than 8 waiting twice in a row lowers it by 8."""
    policy = QueuePolicy(ACCOUNT)
    policy.decide(Limits(64, 512), seen(waiting=7))

    assert policy.decide(Limits(64, 512), seen(waiting=0)).limits.max_num_seqs == 56


def test_the_queue_policy_stays_between_its_bounds():
    """At 128 nothing is raised and at 32 nothing is lowered, however long it goes on."""
    policy = QueuePolicy(ACCOUNT)

    assert [policy.decide(Limits(128, 512), seen(waiting=99)) for _ in range(6)] == [None] * 6
    assert [policy.decide(Limits(32, 512), seen(waiting=0)) for _ in range(6)] == [None] * 6


def test_a_queue_between_the_marks_or_swinging_moves_nothing():
    """Between 8 and 24 nothing moves, and a queue that swings over both marks never says the same twice in a row."""
    policy = QueuePolicy(ACCOUNT)

    assert [policy.decide(Limits(64, 512), seen(waiting=n)) for n in (8, 16, 24, 8)] == [None] * 4
    assert [policy.decide(Limits(64, 512), seen(waiting=n)) for n in (30, 2, 30, 2, 30)] == [None] * 5


def test_a_full_cache_is_not_given_more_sequences():
    """With more than 90 % of the KV cache in use a long queue raises nothing."""
    policy = QueuePolicy(ACCOUNT)

    assert [policy.decide(Limits(64, 512), seen(waiting=99, kv=0.95)) for _ in range(4)] == [None] * 4


def latency(bounds=ACCOUNT):
    """Return the latency policy with the account's goals."""
    return LatencyPolicy(bounds, first_token_goal_s=GOALS[0], inter_token_goal_s=GOALS[1])


def test_slow_tokens_shrink_the_running_batch():
    """Tokens above 99 % of the goal: 90 % of those that run, and the next observation is passed over."""
    policy = latency()

    decision = policy.decide(Limits(128, 512), seen(waiting=3, running=80, between=0.06))

    assert decision.limits == Limits(72, 512)
    assert decision.reason == "60 ms between tokens, above 49.5 ms: max_num_seqs 128 -> 72"
    assert policy.decide(Limits(72, 512), seen(waiting=3, running=80, between=0.06)) is None


def test_slow_tokens_at_the_least_batch_halve_the_prompt_chunk():
    """Where no fewer sequences are allowed, half the prompt tokens join the steps."""
    decision = latency().decide(Limits(32, 512), seen(waiting=3, running=32, between=0.06))

    assert decision.limits == Limits(32, 256)


def test_room_and_a_queue_grow_the_batch():
    """Tokens below 90 % of the goal while others wait: 8 more sequences; half as many again if first tokens are late."""
    assert latency().decide(Limits(64, 512), seen(waiting=1, between=0.03)).limits == Limits(72, 512)
    assert latency().decide(Limits(64, 512), seen(waiting=1, between=0.03, first=4.0)).limits == Limits(96, 1024)


@pytest.mark.parametrize(
    "what",
    [{"between": 0.047, "waiting": 9}, {"between": 0.03}, {"between": 0.03, "waiting": 9, "preemptions": 2}],
    ids=["near the goal", "nobody waits", "the cache is full"],
)
def test_the_latency_policy_rests(what):
    """Near the goal, without a queue and while sequences are preempted, nothing moves."""
    assert latency().decide(Limits(64, 512), seen(**what)) is None


@pytest.mark.parametrize(
    ("cost", "share"),
    [
        (Cost(), 1.25),
        (Cost(0.03, 0.0003, 0.00004), 0.95),
        # At the best fixed setting tokens take 49.5 of 50 ms.
        (Cost(0.02, 0.0004, 0.0001), 0.95),
    ],
    ids=["compute-bound", "memory-bound", "on the edge of the goal"],
)
@pytest.mark.parametrize("start", [16, 64])
def test_tuned_goodput_under_a_step_load_is_that_of_the_best_fixed_batch(cost, share, start):
    """1 -> 32 -> 2 clients: requests within the goals are those of the best fixed batch less 5 %, five times the worst."""
    fixed = {n: run(step_load, 600, Limits(n, 512), cost=cost).goodput(*GOALS) for n in (8, 16, 32, 64, 128)}

    tuned = run(step_load, 600, Limits(start, 512), latency(Bounds(8, 128, 64, 2048)), cost=cost)

    assert tuned.goodput(*GOALS) >= share * max(fixed.values()), fixed
    assert tuned.goodput(*GOALS) > 5 * min(fixed.values()), fixed
    assert all(8 <= limits.max_num_seqs <= 128 for _, limits, _ in tuned.changes)


def test_a_tuner_that_has_arrived_rests():
    """After the load has been steady for 200 s, limits change at most 3 times in the next 200 s."""
    tuned = run(step_load, 500, Limits(16, 512), latency(Bounds(8, 128, 64, 2048)))

    assert len([at_s for at_s, _, _ in tuned.changes if at_s > 300]) <= 3


def test_observations_are_of_the_interval():
    """Latencies come from what was counted since the observation before; the first has none."""
    name = "ascendd_request_inter_token_seconds"
    bounds = SPECS[name].buckets
    observer = Observer()
    counts = [0] * (len(bounds) + 1)
    counts[bounds.index(0.02)] = 100

    first = observer.observe([Sample(name, 2.0, (), tuple(counts))], 1.0)
    counts[bounds.index(0.05)] += 50
    second = observer.observe(
        [Sample(name, 4.0, (), tuple(counts)), Sample("ascendd_engine_sequences_waiting", 7.0)], 6.0
    )

    assert first.inter_token_s is None
    assert second.inter_token_s == pytest.approx(0.04)
    assert second.num_waiting == 7
    assert observer.observe([Sample(name, 4.0, (), tuple(counts))], 11.0).inter_token_s is None


def test_a_percentile_is_linear_within_its_bucket():
    """Half of 10 counts between 1 and 2 lies at 1.5; nothing counted is None; above all bounds is the last bound."""
    assert percentile((0, 10, 0), (1.0, 2.0), 0.5) == 1.5
    assert percentile((0, 0, 0), (1.0, 2.0), 0.5) is None
    assert percentile((0, 0, 3), (1.0, 2.0), 0.5) == 2.0


def test_bounds_that_cross_are_refused():
    """A lower end above the upper one is a mistake of the caller."""
    with pytest.raises(ValueError, match="above the upper"):
        Bounds(9, 8, 1, 2)
