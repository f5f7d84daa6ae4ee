"""Checks run apart: a hang, a crash or an exception of one is its own ERROR, and requirements decide the order."""

import sys
import textwrap
from pathlib import Path

import pytest

from ascendd.errors import UsageError
from ascendd.preflight.check import Check, CheckResult, Remedy, Tier, Verdict, conclude
from ascendd.preflight.check import Finding as F
from ascendd.preflight.context import CheckRequest
from ascendd.preflight.discover import in_order, select
from ascendd.preflight.runner import run_checks, run_isolated

SAMPLES = """
    import ctypes, os, signal, sys, time
    from ascendd.errors import ProbeTimeout
    from ascendd.preflight.check import Check, CheckResult, NpuCheck, Remedy, Verdict

    class Passing(Check):
        id, title = "passing", "Passing"
        def run(self, context):
            return CheckResult(Verdict.PASS, "fine", {"root": context.request.root, "pid": os.getpid()})

    class Noisy(Check):
        id, title = "noisy", "Noisy"
        def run(self, context):
            print("a vendor library talks to standard output")
            os.write(1, b"and past Python too")
            return CheckResult(Verdict.WARN, "loud", {"big": "x" * 300000}, Remedy("ASD-P01", "hush", ("true",)))

    class Failing(Check):
        id, title = "failing", "Failing"
        def run(self, context):
            return CheckResult(Verdict.FAIL, "broken")

    class Dependent(Check):
        id, title, requires = "dependent", "Dependent", ("failing",)
        def run(self, context):
            raise AssertionError("must not run")

    class Further(Dependent):
        id, title, requires = "further", "Further", ("dependent", "passing")

    class Hanging(Check):
        id, title, timeout_s = "hanging", "Hanging", 0.5
        def run(self, context):
            time.sleep(600)

    class Raising(Check):
        id, title = "raising", "Raising"
        def run(self, context):
            return {}["no such key"]

    class Dying(Check):
        id, title = "dying", "Dying"
        def run(self, context):
            os.kill(os.getpid(), signal.SIGSEGV)

    class Leaving(Check):
        id, title = "leaving", "Leaving"
        def run(self, context):
            os._exit(3)

    class Unprobed(Check):
        id, title = "unprobed", "Unprobed"
        def run(self, context):
            raise ProbeTimeout("tool did not answer within 5 s", remedy="look", timeout_s=5)

    class OnNpu(NpuCheck):
        id, title = "on-npu", "On NPU"
        def run(self, context):
            return CheckResult(Verdict.PASS, "ran")
"""


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory):
    """A module of misbehaving checks that a child process can import too."""
    folder = tmp_path_factory.mktemp("samples")
    (folder / "sample_checks.py").write_text(textwrap.dedent(SAMPLES))
    sys.path.insert(0, str(folder))
    import sample_checks

    yield sample_checks
    sys.path.remove(str(folder))
    del sys.modules["sample_checks"]


def request_for(root: Path, device: str = "cpu") -> CheckRequest:
    """A request about an empty host."""
    (root / ".fake-host").touch()
    return CheckRequest(device=device, root=str(root), environ={})


def test_a_check_runs_in_a_process_of_its_own_and_its_result_comes_back(samples, tmp_path: Path) -> None:
    """Verdict, evidence and time travel as JSON; the context is rebuilt on the other side."""
    import os

    result = run_isolated(samples.Passing, request_for(tmp_path))

    assert (result.verdict, result.summary, result.check_id) == (Verdict.PASS, "fine", "passing")
    assert result.evidence["root"] == str(tmp_path)
    assert result.evidence["pid"] != os.getpid()


def test_what_vendor_libraries_print_does_not_reach_the_result(samples, tmp_path: Path) -> None:
    """Standard output is not the result's pipe, and evidence larger than a pipe holds comes through."""
    result = run_isolated(samples.Noisy, request_for(tmp_path))

    assert (result.verdict, len(result.evidence["big"])) == (Verdict.WARN, 300000)
    assert result.remedy == Remedy("ASD-P01", "hush", ("true",))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Hanging", "could not check: no answer within 0.5 s, so the check was killed"),
        ("Raising", "could not check: KeyError: 'no such key'"),
        ("Dying", "could not check: the check died of SIGSEGV"),
        ("Leaving", "could not check: exit status 3 and no result"),
        ("Unprobed", "could not check: tool did not answer within 5 s"),
    ],
)
def test_a_broken_check_is_an_error_not_a_failure(samples, tmp_path: Path, name: str, words: str) -> None:
    """Nothing was measured, so nothing failed; the summary says what happened to the check."""
    result = run_isolated(getattr(samples, name), request_for(tmp_path))

    assert (result.verdict, result.summary) == (Verdict.ERROR, words)
    assert result.remedy is not None


def test_dependants_of_a_failed_check_are_skipped_with_the_reason(samples, tmp_path: Path) -> None:
    """Skipping goes down the chain, in the order of requirements, and names the check that failed."""
    results = run_checks([samples.Further, samples.Dependent, samples.Failing, samples.Passing], request_for(tmp_path))

    assert [(result.check_id, result.verdict) for result in results] == [
        ("failing", Verdict.FAIL),
        ("dependent", Verdict.SKIPPED),
        ("passing", Verdict.PASS),
        ("further", Verdict.SKIPPED),
    ]
    assert results[3].summary == "failing failed, so this would say nothing"


def test_an_npu_check_is_skipped_for_a_cpu_and_run_for_an_npu(samples, tmp_path: Path) -> None:
    """The target decides before any process is started."""
    (on_cpu,), (on_npu,) = (run_checks([samples.OnNpu], request_for(tmp_path, device)) for device in ("cpu", "npu"))

    assert (on_cpu.verdict, on_cpu.summary) == (Verdict.SKIPPED, "--device cpu")
    assert (on_npu.verdict, on_npu.summary) == (Verdict.PASS, "ran")


def test_each_result_is_told_at_once(samples, tmp_path: Path) -> None:
    """A caller can show progress; who is first there is told first."""
    seen: list[str] = []

    run_checks([samples.Passing, samples.Failing], request_for(tmp_path), lambda result: seen.append(result.check_id))

    assert sorted(seen) == ["failing", "passing"]


def test_a_circle_of_requirements_is_our_own_mistake(samples) -> None:
    """Nobody can order a circle."""
    circle = [
        type("A", (samples.Passing,), {"id": "a", "requires": ("b",)}),
        type("B", (samples.Passing,), {"id": "b", "requires": ("a",)}),
    ]

    with pytest.raises(AssertionError, match="circle"):
        in_order(circle)


def test_only_names_checks_and_deep_adds_the_deep_ones(samples) -> None:
    """--only runs what it names, deep or not; an unknown id lists the known ones."""
    deep = type("Deep", (samples.Passing,), {"id": "deep", "tier": Tier.DEEP})
    checks: list[type[Check]] = [samples.Passing, deep]

    assert select(checks, [], deep=False) == [samples.Passing]
    assert select(checks, [], deep=True) == checks
    assert select(checks, ["deep"], deep=False) == [deep]
    with pytest.raises(UsageError, match="no such check; known: passing, deep"):
        select(checks, ["shallow"], deep=False)


def test_a_result_survives_its_json() -> None:
    """What is written is read back equal."""
    result = CheckResult(Verdict.FAIL, "s", {"a": [1, None]}, Remedy("ASD-D01", "t", ("c",)), 1.25, "id")

    assert CheckResult.from_json(result.to_json()) == result


def test_the_worst_finding_decides_and_the_lesser_ones_stay_as_evidence() -> None:
    """FAIL beats WARN; its texts are joined; the remedy is the first of the worst."""
    first, second = Remedy("ASD-D01", "first"), Remedy("ASD-D02", "second")

    result = conclude(
        [F(Verdict.WARN, "w", second), F(Verdict.FAIL, "f1", first), F(Verdict.FAIL, "f2", second)], "well", {"n": 1}
    )

    assert (result.verdict, result.summary, result.remedy) == (Verdict.FAIL, "f1; f2", first)
    assert result.evidence == {"n": 1, "also": ["w"]}
    assert conclude([F(Verdict.PASS, "noted")], "well", {}).summary == "well; noted"
