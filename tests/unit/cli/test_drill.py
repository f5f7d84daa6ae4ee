"""What `ascendd drill` takes for noticed, and what it tells of clients."""

from __future__ import annotations

import copy

import pytest

from ascendd.cli.drill import noticed, render
from ascendd.cli.drill_probe import Ended, seen

CALM = {
    "phase": "serving", "text": "serving", "degraded": "", "last_incident": None,
    "load": {"out_of_memory_steps": 1},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ""),
        (
            {"last_incident": {"reason": "engine was killed by SIGKILL", "episode": "a-2"}},
            "engine was killed by SIGKILL",
        ),
        ({"phase": "degraded", "text": "engine hangs"}, "degraded: engine hangs"),
        ({"degraded": "engine grows by 900 MB an hour"}, "degraded: engine grows by 900 MB an hour"),
        ({"load": {"out_of_memory_steps": 2}}, "1 step without memory, tried again with half its tokens"),
    ],
)
def test_what_the_instance_says_counts_as_noticed(change, expected):
    """A new incident, a phase other than serving, a new degradation, or a step without memory; nothing new is nothing."""
    assert noticed(CALM, {**copy.deepcopy(CALM), **change}) == expected


def test_an_incident_before_the_drill_is_none_of_it():
    """Only what differs from the status at the beginning counts."""
    before = {**CALM, "last_incident": {"reason": "old", "episode": "a-1"}}

    assert noticed(before, copy.deepcopy(before)) == ""


def test_clients_are_counted_from_the_beginning_of_the_drill():
    """How requests ended, the longest one, and the longest time in which nobody had an answer."""
    ends = [
        Ended(0.0, 1.0, "finished"), Ended(9.0, 11.0, "finished"), Ended(11.0, 12.0, "error event"),
        Ended(11.5, 19.0, "finished"),
    ]  # fmt: skip

    assert seen(ends, 10.0) == {
        "requests": {"error event": 1, "finished": 2}, "longest_wait_s": 7.5, "longest_pause_s": 8.0,
    }  # fmt: skip


def test_a_drill_that_was_not_noticed_says_never():
    """People read what was hit, by what it should have been noticed, and that it was not."""
    text = render(
        {
            "kind": "leak", "instance": "d", "role": "engine", "pid": 7, "expected": "the slope of its memory",
            "detected": "", "detected_s": None, "back_s": None, "load_s": 6.04,
            "clients": {"requests": {"finished": 3}, "longest_wait_s": 0.2, "longest_pause_s": 0.3},
        }
    )  # fmt: skip

    assert "detected  never: nothing" in text
    assert "3 finished" in text
    assert "back      never; the engine's last load took 6.0 s" in text
