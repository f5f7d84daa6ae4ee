"""Faulty chips between two engines: reset where that is allowed and nobody has the ring; left out where they fail again."""

from __future__ import annotations

from pathlib import Path

import pytest
from resettable import ResettableMachine

pytestmark = pytest.mark.system

FAST = "recovery: {backoff_min_s: 0.1, backoff_max_s: 0.2, release_timeout_s: %s}"
LOST = [{"lost_after_s": 0.5}, {}]


@pytest.fixture
def machine(tmp_path: Path) -> ResettableMachine:
    """A server whose chip 2 is in alarm until a reset."""
    return ResettableMachine(tmp_path / "host")


def begin(start, machine: ResettableMachine, limit_s: float, **options):
    """Start an instance on chips 2 and 3 whose first engine loses its device."""
    return start(
        engine=LOST, extra=FAST % limit_s, timing={}, resettable=str(machine.root), devices=[2, 3], **options
    ).wait_ready()


def first_engine(daemon) -> int:
    """The process of the engine that loses its device."""
    return next(line["pid"] for line in daemon.events("supervisor.child_started") if line["child"] == "engine")


def test_a_lost_chip_is_reset_before_the_next_engine(start, machine) -> None:
    """The second engine starts on a chip that is well; log, STATUS and metrics tell of the reset and of its ring."""
    daemon = begin(start, machine, 90.0)

    daemon.wait_restarted("engine", first_engine(daemon))

    assert machine.resets() == ["set -t reset -i 2 -c 0 -m 1"]
    names = [line["event"] for line in daemon.all_events()]
    assert names.index("supervisor.chips_reset") < names.index("supervisor.chips_reset_done")
    (done,) = daemon.events("supervisor.chips_reset_done")
    assert (len(done["ring"]), done["num_tries"]) == (8, 1)
    assert any("a reset of chips: NPU 2 chip 0" in status for status in daemon.statuses)


def test_a_reset_waits_until_the_ring_is_free(start, machine, eventually) -> None:
    """A stranger on another chip of the ring is named and left alone; once it is gone the reset is made."""
    machine.process(4711, "vllm", holds=("/dev/davinci6",))
    daemon = begin(start, machine, 240.0)
    first = first_engine(daemon)

    held = eventually(lambda: "4711" in (answer := daemon.ask())["text"] and answer, detail=daemon.log_text)
    before = machine.resets()
    machine.remove("proc/4711")
    daemon.wait_restarted("engine", first)

    assert "not reset: vllm (pid 4711) has NPU 6 chip 0" in held["text"]
    assert (before, len(machine.resets())) == ([], 1)
    assert len(daemon.events("supervisor.chips_reset_held")) == 1


def test_a_chip_that_three_resets_do_not_cure_ends_the_instance(start, tmp_path) -> None:
    """Status 70, with the chip, the tries and what to do by hand."""
    machine = ResettableMachine(tmp_path / "host", fails=99)
    daemon = begin(start, machine, 90.0)

    assert daemon.wait_exit() == 70
    (failed,) = daemon.events("supervisor.failed")
    assert failed["code"] == "ASD-D04"
    assert "NPU 2 chip 0 (0000:C2:00.0) was not reset in 3 tries" in failed["error"]
    assert "replace it where three resets do not help" in failed["remedy"]
    assert len(machine.resets()) == 3


@pytest.mark.parametrize("allowed", [True, False])
def test_a_chip_that_fails_again_is_left_out(start, eventually, allowed: bool) -> None:
    """The instance comes back on the other chip with a smaller size, degraded, and says so; without leave it fails."""
    plan = [{"lost_after_s": 0.5}] * 3 if not allowed else [{"lost_after_s": 0.5}, {"lost_after_s": 0.5}, {}]
    extra = (
        "parallel: {tensor_parallel_size: 2, devices: [4, 5]}\n"
        f"recovery: {{backoff_min_s: 0.1, backoff_max_s: 0.2, allow_smaller_parallel: {str(allowed).lower()}}}"
    )
    daemon = start(engine=plan, extra=extra, timing={})

    if not allowed:
        assert daemon.wait_exit() == 70
        assert daemon.events("supervisor.failed")[-1]["code"] == "ASD-E07"
        assert daemon.events("supervisor.device_left_out") == []
        return
    text = "tensor parallel size 1 on devices 5, since device 4 failed repeatedly"
    eventually(
        lambda: daemon.statuses and text in daemon.statuses[-1] and daemon.ask()["ready"], detail=daemon.log_text
    )
    # The page is up to some seconds behind.
    eventually(
        lambda: (page := daemon.metrics()).get("ascendd_instance_ready") and page['ascendd_degraded{what="device"}']
    )
    ready = [
        (line["tp_size"], line["devices"]) for line in daemon.events("supervisor.child_ready") if "tp_size" in line
    ]

    assert [place for place in ready if place[0] == 1] == [(1, [5])]
    assert {tuple(place[1]) for place in ready} <= {(4, 5), (5,)}
    (said,) = daemon.events("supervisor.device_left_out")
    assert said["reason"] == text
