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


def wait_smaller(daemon, eventually, text: str) -> None:
    """Wait until the instance serves and says in STATUS, its API's answers and metrics that it does so without a chip."""
    eventually(lambda: daemon.statuses and text in daemon.statuses[-1], detail=daemon.log_text)
    eventually(lambda: (answer := daemon.ask())["ready"] and text in answer["degraded"], detail=daemon.log_text)
    # The page is up to some seconds behind.
    eventually(
        lambda: (page := daemon.metrics()).get("ascendd_instance_ready") and page['ascendd_degraded{what="device"}']
    )


def two_chips(allowed: bool, limit_s: float, tp_size: int = 2) -> str:
    """Return the YAML of an instance on chips 2 and 3, or on 2 alone."""
    return (
        f"parallel: {{tensor_parallel_size: {tp_size}, devices: {[2, 3][:tp_size]}}}\n"
        f"recovery: {{backoff_min_s: 0.1, backoff_max_s: 0.2, release_timeout_s: {limit_s}, "
        f"allow_smaller_parallel: {str(allowed).lower()}}}"
    )


@pytest.mark.parametrize(("fails", "why"), [(0, "reports health Alarm"), (99, "was reset in vain")])
def test_a_chip_that_stays_at_fault_is_left_out(start, eventually, tmp_path, fails: int, why: str) -> None:
    """After its first fault, without leave to reset it or after three resets: the instance comes back on the other chip."""
    machine = ResettableMachine(tmp_path / "host", fails=fails)
    options = {"timing": {}, "resettable": str(machine.root), "devices": [2, 3], "resets": fails > 0}

    daemon = start(engine=LOST, extra=two_chips(allowed=True, limit_s=2.0), **options)

    wait_smaller(daemon, eventually, f"tensor parallel size 1 on devices 3, since device 2 {why}")
    (last,) = [line for line in daemon.events("supervisor.child_ready") if line.get("devices") == [3]]
    assert (last["tp_size"], len(machine.resets())) == (1, 3 if fails else 0)
    assert daemon.events("supervisor.failed") == []


@pytest.mark.parametrize(
    ("allowed", "tp_size", "said"),
    [
        (False, 2, "recovery.allow_smaller_parallel lets the instance go on without it"),
        (True, 1, "there is no smaller tensor parallel size to go on with"),
    ],
)
def test_an_instance_that_cannot_be_smaller_fails_and_names_the_chip(start, machine, allowed, tp_size, said) -> None:
    """Status 70 and ASD-D04 with the chip's label; where leave is all that is missing, the remedy says how to give it."""
    options = {"timing": {}, "resettable": str(machine.root), "devices": [2, 3][:tp_size], "resets": False}

    daemon = start(engine=LOST, extra=two_chips(allowed, 1.0, tp_size), **options)

    assert daemon.wait_exit() == 70
    (failed,) = daemon.events("supervisor.failed")
    assert failed["code"] == "ASD-D04"
    assert "NPU 2 chip 0 (0000:C2:00.0) reports health Alarm" in failed["error"]
    assert said in failed["error"] + failed["remedy"]
    assert daemon.events("supervisor.device_left_out") == []


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
    wait_smaller(daemon, eventually, text)
    ready = [
        (line["tp_size"], line["devices"]) for line in daemon.events("supervisor.child_ready") if "tp_size" in line
    ]

    assert [place for place in ready if place[0] == 1] == [(1, [5])]
    assert {tuple(place[1]) for place in ready} <= {(4, 5), (5,)}
    (said,) = daemon.events("supervisor.device_left_out")
    assert said["reason"] == text
