"""Tell the results: a calm table for people, JSON for machines, one exit code for both."""

from __future__ import annotations

import enum
import shutil
import sys
import textwrap
from typing import Any, Dict, List, Mapping, Sequence, TextIO

from ascendd import __version__
from ascendd.preflight.check import CheckResult, Verdict
from ascendd.preflight.finding_texts import finding_in
from ascendd.preflight.language import Language, frame, remedy_in, titles_in, verdict_word
from ascendd.preflight.target import FAKE_HOST, Target

SCHEMA_VERSION = 1


class DoctorExit(enum.IntEnum):
    """Exit codes of `ascendd doctor`; wrong usage is 64 as for every verb."""

    PASS = 0  # Everything that applies was measured and is as it should be.
    WARNINGS = 1  # It works, but somebody should look at it.
    FAILURES = 2  # Serving would not work or not last.
    COULD_NOT_CHECK = 3  # Something could not be measured, and nothing that was measured failed.


_WORD = {
    Verdict.PASS: ("pass", "green"),
    Verdict.WARN: ("WARN", "yellow"),
    Verdict.FAIL: ("FAIL", "bold red"),
    Verdict.SKIPPED: ("skipped", "dim"),
    Verdict.ERROR: ("ERROR", "magenta"),
}


def exit_code(results: Sequence[CheckResult]) -> DoctorExit:
    """Return the code for `results`: failures beat could-not-check beats warnings; SKIPPED counts as pass."""
    verdicts = {result.verdict for result in results}
    if Verdict.FAIL in verdicts:
        return DoctorExit.FAILURES
    if Verdict.ERROR in verdicts:
        return DoctorExit.COULD_NOT_CHECK
    return DoctorExit.WARNINGS if Verdict.WARN in verdicts else DoctorExit.PASS


def verdict_line(results: Sequence[CheckResult], language: Language = Language.EN) -> str:
    """Return the last line of a report: what it comes to, and the counts."""
    count = {verdict: sum(result.verdict is verdict for result in results) for verdict in Verdict}
    words = {verdict: verdict_word(verdict.value, _WORD[verdict][0].lower(), language) for verdict in Verdict}
    parts = [f"{count[verdict]} {words[verdict]}" for verdict in Verdict if count[verdict]]
    head = {
        DoctorExit.PASS: "Ready",
        DoctorExit.WARNINGS: "Ready, with warnings",
        DoctorExit.FAILURES: "Not ready",
        DoctorExit.COULD_NOT_CHECK: "Not known: something could not be checked",
    }[exit_code(results)]
    if all(result.verdict is Verdict.SKIPPED for result in results):
        head = "Nothing to check"
    return f"{frame(head, language)} ({', '.join(parts) or frame('no checks', language)})"


def _last_line(results: Sequence[CheckResult], target: Target, language: Language) -> str:
    return verdict_line(results, language) + ("" if target.fake_root is None else f" [{FAKE_HOST}]")


def _reason(target: Target, language: Language) -> str:
    said = finding_in(target.reason, "", language)
    return said[:1].upper() + said[1:]


def to_json(results: Sequence[CheckResult], target: Target, titles: Mapping[str, str]) -> Dict[str, Any]:
    """Return the report as plain data. Fields are only ever added while the schema version stays."""
    return {
        "schema": SCHEMA_VERSION,
        "version": __version__,
        "device": "npu" if target.is_npu else "cpu",
        "device_reason": target.reason,
        "fake_host": target.fake_root,
        "exit_code": int(exit_code(results)),
        "summary": verdict_line(results),
        "checks": [{**result.to_json(), "title": titles[result.check_id]} for result in results],
    }


def print_report(
    results: Sequence[CheckResult],
    target: Target,
    titles: Mapping[str, str],
    out: TextIO = sys.stdout,
    language: Language = Language.EN,
) -> None:
    """Print the table, the remedies below it, and the verdict. Plain text where rich is not installed."""
    titles = titles_in(titles, language)
    try:
        _print_rich(results, target, titles, out, language)
    except ImportError:
        _print_plain(results, target, titles, out, language)


def remedy_lines(
    results: Sequence[CheckResult], titles: Mapping[str, str], language: Language = Language.EN
) -> List[str]:
    """Return what to do about each result that needs somebody, worst first."""
    lines: List[str] = []
    for verdict in (Verdict.FAIL, Verdict.ERROR, Verdict.WARN):
        for result in results:
            if result.verdict is verdict and result.remedy is not None:
                lines.append(
                    f"{titles[result.check_id]} ({result.check_id}): {remedy_in(result.remedy.text, language)}"
                )
                lines += [f"    {command}" for command in result.remedy.commands]
                lines.append(f"    {frame('runbook', language)}: docs/runbooks/{result.remedy.runbook}.md")
    return lines


def _print_rich(
    results: Sequence[CheckResult], target: Target, titles: Mapping[str, str], out: TextIO, language: Language
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A pipe or a journal has no width; do not wrap into 80 columns there.
    console = Console(file=out, highlight=False, width=None if out.isatty() else 160, soft_wrap=False)
    console.print(Text(_reason(target, language)))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("Check", "Verdict", "Finding"):
        table.add_column(frame(name, language), no_wrap=name != "Finding", header_style="bold")
    for result in results:
        word, style = _WORD[result.verdict]
        word = verdict_word(result.verdict.value, word, language)
        table.add_row(
            Text(titles[result.check_id]),
            Text(word, style=style),
            Text(finding_in(result.summary, result.check_id, language)),
        )
    console.print(table)
    lines = remedy_lines(results, titles, language)
    if lines:
        console.print(Text("\n" + frame("What to do", language), style="bold"))
        for line in lines:
            console.print(Text(line), soft_wrap=True)
    console.print(Text("\n" + _last_line(results, target, language), style="bold"))


def _print_plain(
    results: Sequence[CheckResult], target: Target, titles: Mapping[str, str], out: TextIO, language: Language
) -> None:
    def write(line: str) -> None:
        out.write(line + "\n")

    write(_reason(target, language))
    wide = max([5, *(len(titles[result.check_id]) for result in results)])
    room = max(40, shutil.get_terminal_size((160, 24)).columns - wide - 11)
    write(f"{frame('Check', language):<{wide}}  {frame('Verdict', language):<7}  {frame('Finding', language)}")
    for result in results:
        first, *rest = textwrap.wrap(finding_in(result.summary, result.check_id, language), room) or [""]
        word = verdict_word(result.verdict.value, _WORD[result.verdict][0], language)
        write(f"{titles[result.check_id]:<{wide}}  {word:<7}  {first}")
        for line in rest:
            write(f"{'':<{wide + 11}}{line}")
    lines = remedy_lines(results, titles, language)
    if lines:
        write("\n" + frame("What to do", language))
        for line in lines:
            write(line)
    write("\n" + _last_line(results, target, language))
