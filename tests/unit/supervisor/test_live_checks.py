"""The checks that are made again while an instance serves."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from ascendd.preflight.check import CheckResult, Remedy, Verdict
from ascendd.supervisor.board import StatsBoard
from ascendd.supervisor.degradation import Degradation, Degradations
from ascendd.supervisor.event import ChecksDone
from ascendd.supervisor.live_checks import LiveChecks
from ascendd.supervisor.phase import Phase, Timing

SOUND = CheckResult(Verdict.PASS, "no double-bit errors", check_id="npu-ecc")
BROKEN = CheckResult(
    Verdict.FAIL, "NPU 5: Double Bit Error Count 2", {}, Remedy("ASD-D05", "Reset the chip."), 0.1, "npu-ecc"
)


class Lines:
    """A log that is kept."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **facts: self.lines.append((level, event, facts))


def make_runtime(phase: Phase = Phase.SERVING, checks_s: float = 300.0) -> Any:
    """Return what LiveChecks uses of a Runtime."""
    return SimpleNamespace(
        timing=Timing(checks_s=checks_s), phase=phase, log=Lines(), degradations=Degradations(),
        board=StatsBoard("blue", "qwen2"), events=asyncio.Queue(),
    )  # fmt: skip


def test_a_failure_degrades_is_logged_once_and_ends_with_the_next_pass():
    """STATUS and /readyz name the check without its figures, the metric has its verdict, the log has everything."""
    runtime = make_runtime()
    live = LiveChecks(runtime, list)

    live.on_done([SOUND], None)
    live.on_done([BROKEN], None)
    live.on_done([BROKEN], None)
    said = runtime.degradations.text
    verdicts = {s.labels: s.value for s in runtime.board.snapshot().samples if s.name == "ascendd_check_verdict"}
    live.on_done([SOUND], None)

    assert said == "npu-ecc failed: ascendd doctor --only npu-ecc"
    assert verdicts == {("npu-ecc",): 2.0}
    assert [(level, facts["verdict"]) for level, _, facts in runtime.log.lines] == [
        ("warning", "FAIL"),
        ("info", "PASS"),
    ]
    assert runtime.log.lines[0][2]["code"] == "ASD-D05"
    assert Degradation.HOST not in runtime.degradations


def test_a_round_that_breaks_is_told_and_changes_nothing():
    """What is known of the host stays as it was."""
    runtime = make_runtime()
    live = LiveChecks(runtime, list)

    live.on_done([BROKEN], None)
    live.on_done([], "OSError: no process")

    assert Degradation.HOST in runtime.degradations
    assert runtime.log.lines[-1][:2] == ("error", "supervisor.live_checks_broken")


def test_rounds_come_one_at_a_time_an_interval_apart_and_only_while_serving():
    """A tick begins a round in a thread; none begins while it runs, before it is due, or while nothing is served."""
    begun, go_on = [], threading.Event()

    def run() -> list[CheckResult]:
        begun.append(threading.current_thread().name)
        assert go_on.wait(30)
        return [SOUND]

    async def scene() -> Any:
        runtime = make_runtime(checks_s=10.0)
        live = LiveChecks(runtime, run)
        for now_s in (0.0, 9.0):
            live.on_tick(now_s)
        runtime.phase = Phase.DEGRADED
        live.on_tick(20.0)
        early = list(begun)
        runtime.phase = Phase.SERVING
        live.on_tick(21.0)
        live.on_tick(40.0)
        go_on.set()
        return early, await asyncio.wait_for(runtime.events.get(), 30)

    early, done = asyncio.run(scene())

    assert (early, begun) == ([], ["live-checks"])
    assert done == ChecksDone((SOUND,), None)


def test_what_raises_in_the_thread_is_a_result_like_any_other():
    """A broken check suite never ends a daemon that serves."""

    def run() -> list[CheckResult]:
        raise OSError("no more processes")

    async def scene() -> ChecksDone:
        runtime = make_runtime(checks_s=0.0)
        LiveChecks(runtime, run).on_tick(1.0)
        done: ChecksDone = await asyncio.wait_for(runtime.events.get(), 30)
        return done

    assert asyncio.run(scene()) == ChecksDone((), "OSError: no more processes")
