"""The report: one exit code, a table, JSON, and what to do."""

import io
import itertools
import sys

import pytest

from ascendd import __version__
from ascendd.preflight.check import CheckResult, Finding, Remedy, Verdict, conclude
from ascendd.preflight.report import DoctorExit, exit_code, print_report, remedy_lines, to_json, verdict_line
from ascendd.preflight.target import Target

PASS, WARN, FAIL, SKIPPED, ERROR = Verdict
CPU = Target(False, "no NPU found: checking what a CPU instance needs", "no NPU found")


def results(*verdicts: Verdict) -> list[CheckResult]:
    """One result of each verdict, with a remedy where one is due."""
    return [
        CheckResult(
            verdict, f"summary {n}", {}, Remedy("ASD-D01", f"text {n}", (f"command {n}",)) if verdict in (WARN, FAIL, ERROR) else None, 0.1, f"id-{n}"
        )
        for n, verdict in enumerate(verdicts)
    ]  # fmt: skip


def titles(rows: list[CheckResult]) -> dict[str, str]:
    """Titles by id."""
    return {row.check_id: f"Title {row.check_id}" for row in rows}


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        ((), 0),
        ((PASS,), 0),
        ((SKIPPED, SKIPPED), 0),
        ((PASS, WARN), 1),
        ((WARN, ERROR), 3),
        ((ERROR, FAIL, WARN), 2),
        ((FAIL, SKIPPED), 2),
    ],
)
def test_the_exit_code_by_verdicts(verdicts: tuple[Verdict, ...], code: int) -> None:
    """2 beats 3 beats 1; SKIPPED counts as pass."""
    assert exit_code(results(*verdicts)) == code


def test_the_order_of_results_does_not_change_the_exit_code() -> None:
    """All orders of the five verdicts give failures."""
    assert {exit_code(results(*order)) for order in itertools.permutations(Verdict)} == {DoctorExit.FAILURES}


@pytest.mark.parametrize(
    ("verdicts", "line"),
    [
        ((PASS, PASS, SKIPPED), "Ready (2 pass, 1 skipped)"),
        ((PASS, WARN), "Ready, with warnings (1 pass, 1 warn)"),
        ((PASS, FAIL, ERROR), "Not ready (1 pass, 1 fail, 1 error)"),
        ((ERROR,), "Not known: something could not be checked (1 error)"),
        ((SKIPPED,), "Nothing to check (1 skipped)"),
    ],
)
def test_the_last_line_says_what_it_comes_to(verdicts: tuple[Verdict, ...], line: str) -> None:
    """One line, the verdict in words and the counts."""
    assert verdict_line(results(*verdicts)) == line


def test_remedies_are_listed_worst_first_with_commands_and_runbook() -> None:
    """What failed comes before what could not be checked, before warnings."""
    rows = results(WARN, ERROR, FAIL, PASS)

    lines = remedy_lines(rows, titles(rows))

    assert [line for line in lines if not line.startswith(" ")] == [
        "Title id-2 (id-2): text 2", "Title id-1 (id-1): text 1", "Title id-0 (id-0): text 0",
    ]  # fmt: skip
    assert lines[1:3] == ["    command 2", "    runbook: docs/runbooks/ASD-D01.md"]


@pytest.mark.parametrize("with_rich", [True, False])
def test_the_table_has_a_row_a_check_the_remedies_and_the_verdict(monkeypatch, with_rich: bool) -> None:
    """With and without rich the words are the same."""
    if not with_rich:
        for name in ("rich", "rich.console"):
            monkeypatch.setitem(sys.modules, name, None)
    rows, out = results(PASS, FAIL, SKIPPED), io.StringIO()

    print_report(rows, CPU, titles(rows), out)

    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert lines[0] == "No NPU found: checking what a CPU instance needs"
    assert [line.split(None, 3) for line in lines[2:5]] == [
        ["Title", "id-0", "pass", "summary 0"], ["Title", "id-1", "FAIL", "summary 1"], ["Title", "id-2", "skipped", "summary 2"],
    ]  # fmt: skip
    assert "What to do" in lines
    assert lines[-1] == "Not ready (1 pass, 1 fail, 1 skipped)"


def test_the_json_report_names_its_schema() -> None:
    """Machines get the schema version, the exit code and every field of every check."""
    rows = results(WARN)

    report = to_json(rows, CPU, titles(rows))

    assert (report["schema"], report["version"], report["device"], report["exit_code"]) == (1, __version__, "cpu", 1)
    assert set(report["checks"][0]) == {"id", "title", "verdict", "summary", "evidence", "remedy", "duration_s"}
    assert report["checks"][0]["remedy"]["commands"] == ["command 0"]


def test_what_is_found_of_several_chips_is_told_once_with_all_named() -> None:
    """Eight chips in one state are one sentence; another state, and who is not used, stand on their own."""
    findings = [Finding(Verdict.FAIL, f"NPU {n} is Alarm", Remedy("ASD-D01", f"{n}"), f"NPU {n}") for n in range(3)]
    findings += [Finding(Verdict.FAIL, "NPU 3 is Critical", None, "NPU 3"), Finding(Verdict.FAIL, "and this")]
    findings += [Finding(Verdict.WARN, f"chip {n}: link DOWN", None, f"{n}") for n in (4, 5)]

    result = conclude(findings, "all well", {})

    assert result.summary == "NPU 0, NPU 1, NPU 2 is Alarm; NPU 3 is Critical; and this"
    assert result.evidence["also"] == ["chip 4, 5: link DOWN"]
    assert result.remedy == Remedy("ASD-D01", "0")
