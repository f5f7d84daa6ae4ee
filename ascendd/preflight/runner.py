"""
Run checks in the order of their requirements, at the same time where they have none, each in a process of its own
with its own time limit.

A check that hangs is killed with everything it started; one that dies or raises is ERROR, which is not FAIL: nothing
was measured. A check whose requirement failed is SKIPPED with that as the reason.
"""

from __future__ import annotations

import dataclasses
import signal
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Callable, Dict, List, Optional, Sequence, Type

from ascendd.preflight.check import Check, CheckResult, Remedy, Tier, Verdict
from ascendd.preflight.context import CheckContext, CheckRequest
from ascendd.preflight.discover import in_order
from ascendd.preflight.fork_server import CheckLate, ForkServer
from ascendd.preflight.target import Target

# Checks mostly wait for tools; more than this only crowd a small machine.
MAX_AT_ONCE = 12
_BROKEN = Remedy("ASD-P02", "Run the check alone; if it breaks again, report it with `ascendd doctor --json`.")


def run_checks(
    checks: Sequence[Type[Check]], request: CheckRequest, on_result: Callable[[CheckResult], None] = lambda result: None
) -> List[CheckResult]:
    """
    Run `checks` and return one result for each, ordered by requirements; `on_result` sees each as it comes.

    What does not hang on each other runs at the same time; DEEP checks run after all others, one by one, since they
    want a device for themselves. Tools are asked once for all checks.
    """
    target = CheckContext(request).target
    ordered = in_order(checks)
    results: Dict[str, CheckResult] = {}
    with tempfile.TemporaryDirectory(prefix="ascendd-doctor-") as answers:
        shared = dataclasses.replace(request, answers=answers)
        with _Round(shared, target, results, on_result) as round_:
            for deep in (False, True):
                round_.run([cls for cls in ordered if (cls.tier is Tier.DEEP) is deep], 1 if deep else MAX_AT_ONCE)
    return [results[cls.id] for cls in ordered]


class _Round:
    """The checks of one call that are running, and their results."""

    def __init__(
        self,
        request: CheckRequest,
        target: Target,
        results: Dict[str, CheckResult],
        on_result: Callable[[CheckResult], None],
    ) -> None:
        self._request, self._target, self._results, self._on_result = request, target, results, on_result
        self._server: Optional[ForkServer] = None

    def __enter__(self) -> _Round:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def run(self, checks: Sequence[Type[Check]], at_once: int) -> None:
        """Run `checks`, at most `at_once` of them at the same time."""
        waiting, ids = list(checks), {cls.id for cls in checks}
        running: Dict[Future[CheckResult], str] = {}
        with ThreadPoolExecutor(at_once) as pool:
            try:
                while waiting or running:
                    # A loop of its own: what is skipped at once may free others.
                    while ready := [c for c in waiting if all(r in self._results or r not in ids for r in c.requires)]:
                        for cls in ready:
                            waiting.remove(cls)
                            known = self._without_running(cls())
                            if known is not None:
                                self._keep(known)
                            else:
                                running[pool.submit(run_isolated, cls, self._request, self._forks())] = cls.id
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        del running[future]
                        self._keep(future.result())
            except BaseException:
                self._end()  # before the pool waits for its threads, which wait for the checks
                raise

    def _forks(self) -> ForkServer:
        """Return the process to fork from, started by the first check that is not known without running."""
        if self._server is None:
            self._server = ForkServer()
        return self._server

    def _end(self) -> None:
        """End every check that still runs."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _keep(self, result: CheckResult) -> None:
        self._results[result.check_id] = result
        self._on_result(result)

    def _without_running(self, check: Check) -> Optional[CheckResult]:
        reason, unmet = check.skip_reason(self._target), _unmet(check, self._results)
        if reason is not None:
            return CheckResult(Verdict.SKIPPED, reason, check_id=check.id)
        if unmet is not None:
            summary = f"{unmet} failed, so this would say nothing"
            return CheckResult(Verdict.SKIPPED, summary, {"unmet": unmet}, check_id=check.id)
        return None


def run_isolated(cls: Type[Check], request: CheckRequest, server: Optional[ForkServer] = None) -> CheckResult:
    """Run one check in a process of its own, forked from `server`; never raises for what the check does."""
    if server is None:
        with ForkServer() as own:
            return run_isolated(cls, request, own)
    limit_s = request.patience * (cls.deep_timeout_s if request.deep and cls.deep_timeout_s else cls.timeout_s)
    started = time.monotonic()

    def error(summary: str) -> CheckResult:
        return CheckResult(
            Verdict.ERROR, f"could not check: {summary}", {}, _BROKEN, time.monotonic() - started, cls.id
        )

    message = {"module": cls.__module__, "name": cls.__name__, "context": request.to_json()}
    try:
        end = server.run(cls.__module__, message, limit_s)
    except CheckLate:
        return error(f"no answer within {limit_s:g} s, so the check was killed")
    if end.status is not None and end.status < 0:
        return error(f"the check died of {_signal_name(-end.status)}")
    try:
        return CheckResult.from_json(end.answer or {})
    except (ValueError, KeyError, TypeError):
        ending = "the process that checks are forked from died" if end.status is None else f"exit status {end.status}"
        return error(end.last_line or f"{ending} and no result")


def _unmet(check: Check, results: Dict[str, CheckResult]) -> Optional[str]:
    """Return the id of the failed or broken check that `check` hangs on, directly or through a skipped one."""
    for required in check.requires:
        result = results.get(required)
        # What could not be checked would mostly fail again here, and hang as long again.
        if result is not None and result.verdict in (Verdict.FAIL, Verdict.ERROR):
            return required
        if result is not None and "unmet" in result.evidence:
            return str(result.evidence["unmet"])
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
