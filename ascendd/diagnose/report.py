"""Tell a diagnosis to people: the cause first, then its lines, then what to do."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ascendd.diagnose.catalogue import Catalogue
from ascendd.diagnose.verdict import Finding, Report

_MAX_LINES = 6


def print_report(report: Report, console: Console) -> None:
    """Print `report`."""
    num_lines = sum(scan.num_lines for scan in report.scans)
    read = f"{num_lines:,} line{_s(num_lines)} of {len(report.scans)} log{_s(len(report.scans))} read"
    if report.cause is None:
        _print_nothing(report, read, console)
        return
    _print_cause(report.cause, console)
    if report.others:
        console.print(Text("\nalso seen, later or less specific", style="dim"))
        for other in report.others:
            place = f"{other.evidence[0].source}:{other.evidence[0].line}"
            console.print(
                Text(f"  {other.diagnosis.id}  {other.diagnosis.title}  {place}", style="dim"), soft_wrap=True
            )
    console.print(Text(f"\n{read}", style="dim"))


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _print_nothing(report: Report, read: str, console: Console) -> None:
    console.print(Text(f"no known cause found; {read}"), soft_wrap=True)
    wrapper = report.wrapper
    if wrapper is not None:
        console.print(Text(f"  {wrapper.source}:{wrapper.line}  {wrapper.text}", style="dim"), soft_wrap=True)
        console.print(
            "This line says that something failed, not what. The cause is in another log of that time: give all ranks' "
            "logs and the plog folder (~/ascend/log/debug/plog).",
            highlight=False,
        )


def _print_cause(finding: Finding, console: Console) -> None:
    row = finding.diagnosis
    head = Text()
    head.append(row.id, style="bold red")
    head.append(f"  {row.code}  {row.title}")
    console.print(head, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("cause", Text(finding.cause))
    for number, item in enumerate(finding.evidence[:_MAX_LINES]):
        rank = "" if item.rank is None else f" (rank {item.rank})"
        table.add_row("" if number else "evidence", Text(f"{item.source}:{item.line}{rank}  {item.text}"))
    if finding.count > 1:
        table.add_row("", Text(f"seen {finding.count} times"))
    table.add_row("remedy", Text(finding.remedy))
    table.add_row("check", Text(row.check))
    table.add_row("daemon", Text(finding.action.text))
    table.add_row("runbook", Text(row.runbook))
    console.print(table)


def print_list(catalogue: Catalogue, console: Console) -> None:
    """Print the table of every diagnosis."""
    table = Table(box=None, pad_edge=False)
    for name in ("id", "code", "title", "action"):
        table.add_column(name, overflow="fold", no_wrap=name in ("id", "code"))
    for row in sorted(catalogue.diagnoses.values(), key=lambda row: row.id):
        table.add_row(row.id, row.code, row.title, row.action.value)
    console.print(table)
