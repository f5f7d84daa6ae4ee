"""
Run checks in the order of their requirements, at the same time where they have none, each in a process of its own
with its own time limit.

A check that hangs is killed with everything it started; one that dies or raises is ERROR, which is not FAIL: nothing
was measured. A check whose requirement failed is SKIPPED with that as the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Set, Type

from ascendd.preflight.check import Check, CheckResult, Remedy, Tier, Verdict
from ascendd.preflight.context import CheckContext, CheckRequest
from ascendd.preflight.discover import in_order
from ascendd.preflight.target import Target

_CHILD = Path(__file__).resolve().with_name("child.py")
_REAP_S = 2.0
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
        round_ = _Round(shared, target, results, on_result)
        try:
            for deep in (False, True):
                round_.run([cls for cls in ordered if (cls.tier is Tier.DEEP) is deep], 1 if deep else MAX_AT_ONCE)
        except BaseException:
            round_.kill()
            raise
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
        self._processes: Set[subprocess.Popen[bytes]] = set()

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
                                running[pool.submit(run_isolated, cls, self._request, self._processes)] = cls.id
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in done:
                        del running[future]
                        self._keep(future.result())
            except BaseException:
                self.kill()
                raise

    def kill(self) -> None:
        """End every check that still runs."""
        for process in list(self._processes):
            _kill_tree(process)

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


def run_isolated(
    cls: Type[Check], request: CheckRequest, processes: Optional[Set[subprocess.Popen[bytes]]] = None
) -> CheckResult:
    """Run one check in a child process, listed in `processes` meanwhile; never raises for what the check does."""
    limit_s = request.patience * (cls.deep_timeout_s if request.deep and cls.deep_timeout_s else cls.timeout_s)
    started = time.monotonic()

    def error(summary: str) -> CheckResult:
        return CheckResult(Verdict.ERROR, summary, {}, _BROKEN, time.monotonic() - started, cls.id)

    message = {
        "sys_path": sys.path,
        "module": cls.__module__,
        "name": cls.__name__,
        "context": request.to_json(),
    }
    process = subprocess.Popen(
        [sys.executable, *_interpreter_flags(), str(_CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    processes = set() if processes is None else processes
    processes.add(process)
    try:
        answer, stderr = process.communicate(json.dumps(message).encode(), limit_s)
    except subprocess.TimeoutExpired:
        _kill_tree(process)
        return error(f"could not check: no answer within {limit_s:g} s, so the check was killed")
    except BaseException:
        _kill_tree(process)
        raise
    finally:
        processes.discard(process)
    # Whatever the check left behind goes with it.
    _kill_group(process.pid)
    if process.returncode < 0:
        return error(f"could not check: the check died of {_signal_name(-process.returncode)}")
    try:
        return CheckResult.from_json(json.loads(answer))
    except (ValueError, KeyError, TypeError):
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        return error(f"could not check: {lines[-1] if lines else f'exit status {process.returncode} and no result'}")


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


def _interpreter_flags() -> List[str]:
    """Give the child the same view of installed packages that this process has."""
    return [flag for flag, is_set in (("-I", sys.flags.isolated), ("-S", sys.flags.no_site)) if is_set]


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the check and its descendants; a tool that it ran has a process group of its own."""
    for pid in [process.pid, *_descendants(process.pid)]:
        _kill_group(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_REAP_S)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _descendants(root: int) -> List[int]:
    children: Dict[int, List[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything; what follows its last bracket is regular.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, waiting = [], [root]
    while waiting:
        waiting += (below := children.get(waiting.pop(), []))
        found += below
    return found


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
