"""Which rank of a group is named, for ends and for a standstill."""

from __future__ import annotations

import signal

import pytest

from ascendd.config.rank_place import RankPlace
from ascendd.engine.exec.group_fault import RankEnd, RankState, earliest_cause, hung_error
from ascendd.engine.parallel.rank_progress import RankProgress
from ascendd.errors import AscenddError, CollectiveTimeout, DeviceLost
from ascendd.ipc.messages import Fault
from ascendd.ipc.rank_messages import RankHeartbeat


def state(
    rank: int, tp_size: int = 2, pp_size: int = 1, *, silent_s: float = 0.5, answered: bool = False, **beat
) -> RankState:
    fields = {"step_seq": 9, "inflight_s": 4.0, "num_collectives": 100, "collective": "", "num_done": 20} | beat
    return RankState(RankPlace.of(rank, tp_size, pp_size), RankHeartbeat(**fields), silent_s, answered)


def end(rank: int, at_s: float, error: AscenddError | None = None, status: int | None = None) -> RankEnd:
    return RankEnd(RankPlace.of(rank, 2, 1), at_s, None if error is None else Fault.from_error(error), status)


@pytest.mark.parametrize(
    ("states", "stuck"),
    [
        # CPU: a collective returns when all have come.
        ([state(0, num_collectives=101, collective="all_reduce"), state(1)], 1),
        # Accelerators: rank 0 has launched all collectives and waits for its device; rank 1 is held by a launch.
        ([state(0, num_collectives=108), state(1, num_collectives=101, collective="all_reduce")], 1),
        ([state(0, num_collectives=101), state(1, num_collectives=101, collective="all_reduce")], 1),
        # Rank 0 goes on to the next step meanwhile.
        ([state(0, num_collectives=108, num_done=21), state(1, num_collectives=108)], 1),
        ([state(0, num_collectives=108, num_done=21, inflight_s=0.0), state(1, num_collectives=108)], 1),
        # Rank 0 waits for orders that rank 1 was given, too, and has not begun.
        ([state(0, num_done=21), state(1, inflight_s=0.0)], 1),
        ([state(0), state(1, num_done=30, num_collectives=300, silent_s=3.5)], 1),
        ([state(0, answered=True), state(1)], 1),
        # Stages count collectives of their own; the later one waits for the earlier one.
        ([state(0, 1, 2, num_collectives=50), state(1, 1, 2, num_collectives=7, collective="receive")], 0),
        ([state(0, 1, 2, num_done=21, inflight_s=0.0), state(1, 1, 2, num_collectives=7)], 1),
        ([state(0, 1, 2, num_done=21, collective="send"), state(1, 1, 2, num_collectives=500)], 1),
    ],
)
def test_the_rank_that_is_least_far_is_named(states, stuck) -> None:
    """By orders carried out, then stages, then collectives; one that is silent before all."""
    error = hung_error(states, "a step has run for 4 s, the deadline is 3 s")

    assert error.facts["rank"] == stuck
    assert f"a step has run for 4 s, the deadline is 3 s: rank {stuck} (" in error.message
    assert "just as far" not in error.message


def test_ranks_that_are_equally_far_are_all_named() -> None:
    """Both wait for their devices at the same place: which device it is cannot be told from the host."""
    error = hung_error([state(0), state(1)], "a step has run for 4 s, the deadline is 3 s")

    assert "just as far: rank 1" in error.message


@pytest.mark.parametrize(
    ("ends", "named"),
    [
        ([end(0, 1.0, CollectiveTimeout("peer gone")), end(1, 1.2, DeviceLost("gone"))], 1),
        ([end(0, 1.0, status=-signal.SIGABRT), end(1, 1.2, DeviceLost("gone"))], 1),
        ([end(0, 1.0, CollectiveTimeout("peer gone")), end(1, 1.2, status=-signal.SIGABRT)], 1),
        ([end(0, 1.2, DeviceLost("gone")), end(1, 1.0, status=7)], 1),
    ],
)
def test_the_end_that_explains_the_others_is_named(ends, named) -> None:
    """Before a watchdog's abort whoever says why, and an echo after all."""
    assert earliest_cause(ends).error.facts["rank"] == named


def test_only_orders_that_were_carried_out_count() -> None:
    """One that raised is not done."""
    progress = RankProgress()
    before = progress.heartbeat()
    with progress.work():
        pass
    with pytest.raises(ValueError, match="no"), progress.work():
        raise ValueError("no")
    after = progress.heartbeat()

    assert after.num_done == 1
    assert after.moved_since(before)
    assert not after.moved_since(after)
