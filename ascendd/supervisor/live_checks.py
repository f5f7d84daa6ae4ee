"""LiveChecks: makes the live checks of the doctor again while the instance serves, and tells what they find."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from ascendd.preflight.check import CheckResult, Verdict
from ascendd.supervisor import event as ev
from ascendd.supervisor.degradation import Degradation
from ascendd.supervisor.phase import Phase
from ascendd.supervisor.runtime import Runtime

RunLive = Callable[[], Sequence[CheckResult]]


class LiveChecks:
    """Runs them in a thread, one round at a time; a check that fails is a degradation, and ends nothing."""

    def __init__(self, runtime: Runtime, run_live: RunLive) -> None:
        self._run = runtime
        self._run_live = run_live
        self._known: dict[str, Verdict] = {}
        self._is_running = False
        self._due_s: float | None = None

    def on_tick(self, now_s: float) -> None:
        """Begin a round where one is due; the first comes one interval after the gate of the start looked."""
        if self._due_s is None:
            self._due_s = now_s + self._run.timing.checks_s
        if self._run.phase is not Phase.SERVING or self._is_running or now_s < self._due_s:
            return
        self._is_running = True
        loop = asyncio.get_running_loop()
        # Not the loop's own pool: the end of the daemon would wait for a tool that hangs.
        threading.Thread(target=self._work, args=(loop,), name="live-checks", daemon=True).start()

    def on_done(self, results: Sequence[CheckResult], problem: str | None) -> None:
        """Take the results of a round: log what changed, and tell what fails."""
        self._is_running = False
        self._due_s = time.monotonic() + self._run.timing.checks_s
        if problem is not None:
            self._run.log.error("supervisor.live_checks_broken", error=problem)
            return
        for result in results:
            if self._known.get(result.check_id, Verdict.PASS) is not result.verdict:
                self._tell(result)
            self._known[result.check_id] = result.verdict
        failed = [result.check_id for result in results if result.verdict is Verdict.FAIL]
        # Without what was measured: /readyz is open to everybody.
        text = f"{' and '.join(failed)} failed: ascendd doctor --only {','.join(failed)}" if failed else None
        self._run.degradations.set(Degradation.HOST, text)
        self._run.board.take_checks(results)

    def _tell(self, result: CheckResult) -> None:
        facts = {"check": result.check_id, "verdict": result.verdict.name, "summary": result.summary}
        if result.remedy is not None:
            facts |= {"code": result.remedy.runbook, "remedy": result.remedy.text}
        if result.verdict in (Verdict.PASS, Verdict.SKIPPED):
            self._run.log.info("supervisor.check", **facts)
        else:
            self._run.log.warning("supervisor.check", **facts)

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        results: Sequence[CheckResult] = ()
        problem = None
        try:
            results = self._run_live()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        with contextlib.suppress(RuntimeError):  # the loop is over, and nobody asks any more
            loop.call_soon_threadsafe(self._run.events.put_nowait, ev.ChecksDone(tuple(results), problem))
