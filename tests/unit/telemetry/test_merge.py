"""Accumulation over restarts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ascendd.ipc.messages import Sample
from ascendd.telemetry.merge import Accumulator

STEPS = "ascendd_engine_steps_total"
DURATION = "ascendd_engine_step_duration_seconds"
BLOCKS = "ascendd_engine_kv_blocks"


def values(accumulator):
    """Return the merged values by name and labels."""
    return {(sample.name, sample.labels): sample.value for sample in accumulator.merged()}


def test_counters_go_on_after_a_restart():
    """What a dead process had counted is added to what its successor counts."""
    accumulator = Accumulator()
    accumulator.update("engine", [Sample(STEPS, 10.0)])

    accumulator.retire("engine")
    accumulator.update("engine", [Sample(STEPS, 2.0)])

    assert values(accumulator) == {(STEPS, ()): 12.0}


def test_histograms_add_bucket_by_bucket():
    """Buckets and sums of predecessors are added, per label set."""
    accumulator = Accumulator()
    accumulator.update("engine", [Sample(DURATION, 1.5, (), (1, 2, 3))])

    accumulator.retire("engine")
    accumulator.update("engine", [Sample(DURATION, 0.5, (), (1, 0, 0))])

    assert accumulator.merged() == [Sample(DURATION, 2.0, (), (2, 2, 3))]


def test_gauges_of_a_dead_child_vanish():
    """B61: nobody can tell how many blocks an engine has that is gone."""
    accumulator = Accumulator()
    accumulator.update("engine", [Sample(BLOCKS, 10.0), Sample(STEPS, 1.0)])

    accumulator.retire("engine")

    assert values(accumulator) == {(STEPS, ()): 1.0}


def test_undeclared_samples_are_dropped():
    """A child of another version cannot put names on the page that nobody declared."""
    accumulator = Accumulator()

    accumulator.update("engine", [Sample("other_total", 1.0)])

    assert accumulator.merged() == []


@given(st.lists(st.one_of(st.integers(0, 5), st.none()), max_size=60))
def test_no_counter_ever_goes_back(events):
    """Whatever the order of counts (a number) and deaths (None), the merged total never falls."""
    accumulator = Accumulator()
    total, running = 0.0, 0.0

    for event in events:
        if event is None:
            accumulator.retire("engine")
            running = 0.0
        else:
            running += event
            accumulator.update("engine", [Sample(STEPS, running)])
        now = values(accumulator).get((STEPS, ()), 0.0)
        assert now >= total
        total = now
    assert total == sum(event for event in events if event is not None)
