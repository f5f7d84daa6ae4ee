"""Checks are forked from one process: nothing outlives a round, and the end of that process is told, not waited for."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ascendd.preflight.check import Verdict
from ascendd.preflight.context import CheckRequest
from ascendd.preflight.fork_server import ForkServer
from ascendd.preflight.runner import run_isolated

SAMPLES = """
    import os, subprocess, sys, time
    from pathlib import Path
    from ascendd.preflight.check import Check, CheckResult, Verdict

    class Naming(Check):
        id, title = "naming", "Naming"
        def run(self, context):
            return CheckResult(Verdict.PASS, "fine", {"pid": os.getpid(), "parent": os.getppid()})

    class Leaving(Check):
        id, title = "leaving", "Leaving"
        def run(self, context):
            left = subprocess.Popen(["sleep", "600"])
            left.returncode = 0
            return CheckResult(Verdict.PASS, "left one", {"left": left.pid})

    class Hanging(Check):
        id, title, timeout_s = "hanging", "Hanging", 600.0
        def run(self, context):
            Path(context.request.environ["MARK"]).write_text(str(os.getpid()))
            time.sleep(600)

    class Unmakeable(Check):
        id, title = "unmakeable", "Unmakeable"
        def __init__(self):
            raise ModuleNotFoundError("No module named 'gone'")
        def run(self, context):
            return CheckResult(Verdict.PASS, "never")
"""
CALLER = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from fork_samples import Hanging
    from ascendd.preflight.context import CheckRequest
    from ascendd.preflight.runner import run_checks
    run_checks([Hanging], CheckRequest(device="cpu", root=sys.argv[1], environ={"MARK": sys.argv[2]}))
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory):
    """A module of checks that a process can import by name, in an empty fake host."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "fork_samples.py").write_text(textwrap.dedent(SAMPLES))
    (folder / ".fake-host").touch()
    sys.path.insert(0, str(folder))
    import fork_samples

    yield fork_samples
    sys.path.remove(str(folder))
    del sys.modules["fork_samples"]


def request_for(samples, **environ: str) -> CheckRequest:
    """A request about the empty host."""
    return CheckRequest(device="cpu", root=str(Path(samples.__file__).parent), environ=environ)


def await_true(condition: Callable[[], object]) -> None:
    """Wait up to 30 s for `condition`."""
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    """Whether no process has this number, or only one that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_checks_of_one_round_have_one_parent_and_each_a_process_of_its_own(samples) -> None:
    """What checks import is imported once; a check still cannot touch another."""
    with ForkServer() as server:
        results = [run_isolated(samples.Naming, request_for(samples), server) for _ in range(3)]

    assert len({result.evidence["parent"] for result in results}) == 1
    assert len({result.evidence["pid"] for result in results}) == 3


def test_what_a_check_leaves_running_goes_with_it(samples) -> None:
    """A program of the check's group is killed when the check has ended."""
    result = run_isolated(samples.Leaving, request_for(samples))

    assert result.verdict is Verdict.PASS
    await_true(lambda: is_gone(result.evidence["left"]))


def test_a_check_that_cannot_be_made_is_an_error_with_the_reason(samples) -> None:
    """The last line of its traceback is the summary."""
    result = run_isolated(samples.Unmakeable, request_for(samples))

    assert result.verdict is Verdict.ERROR
    assert result.summary == "could not check: ModuleNotFoundError: No module named 'gone'"


def test_the_end_of_the_process_that_checks_are_forked_from_is_told(samples) -> None:
    """Nobody waits for an answer that cannot come."""
    with ForkServer() as server:
        first = run_isolated(samples.Naming, request_for(samples), server)
        os.kill(first.evidence["parent"], signal.SIGKILL)
        second = run_isolated(samples.Naming, request_for(samples), server)

    assert second.verdict is Verdict.ERROR
    assert second.summary == "could not check: the process that checks are forked from died and no result"


def test_a_caller_that_is_killed_takes_its_checks_with_it(samples, tmp_path: Path) -> None:
    """SIGKILL of the doctor leaves no check behind that holds a device."""
    mark = tmp_path / "pid"
    command = [sys.executable, "-c", textwrap.dedent(CALLER), str(Path(samples.__file__).parent), str(mark)]
    caller = subprocess.Popen(command)
    await_true(lambda: mark.exists() and mark.read_text())

    caller.kill()
    caller.wait()

    await_true(lambda: is_gone(int(mark.read_text())))
