"""`ascendd diagnose`: read logs, name the earliest specific cause and what to do."""

from __future__ import annotations

import enum
import json
import os
import sys
from typing import Annotated, Optional

import typer

from ascendd.errors import AscenddError, UsageError


class DiagnoseExit(enum.IntEnum):
    """Exit codes of `ascendd diagnose`; wrong usage is 64 as for every verb."""

    NOTHING_FOUND = 0
    CAUSE_FOUND = 1
    NOTHING_READ = 3


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""
    app.command("diagnose")(diagnose)


def diagnose(
    files: Annotated[
        Optional[list[str]],
        typer.Argument(metavar="[FILE]...", help="Logs, folders of logs, or - for standard input; .gz is fine."),
    ] = None,
    instance: Annotated[Optional[str], typer.Option(metavar="NAME", help="Read the journal of ascendd@NAME.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_list: Annotated[bool, typer.Option("--list", help="Print every diagnosis that is known.")] = False,
) -> int:
    """
    Name the earliest specific cause in any log of this daemon, of CANN (plog), of workers, or of other engines.

    Give the logs of all ranks at once: the rank that complains first is often not the one that failed first.

    Exit status: 0 nothing found, 1 a cause was found, 3 nothing could be read.
    """
    from rich.console import Console

    from ascendd.diagnose.catalogue import load_catalogue
    from ascendd.diagnose.journal import journal_source
    from ascendd.diagnose.report import print_list, print_report
    from ascendd.diagnose.scanner import SourceScan, scan
    from ascendd.diagnose.source import Source, file_sources
    from ascendd.diagnose.verdict import conclude

    catalogue = load_catalogue()
    console = Console(highlight=False)
    if as_list:
        if as_json:
            rows = [{"id": row.id, "code": row.code, "runbook": row.runbook} for row in catalogue.diagnoses.values()]
            print(json.dumps(rows, indent=2))
        else:
            print_list(catalogue, console)
        return 0
    if not files and instance is None:
        raise typer.BadParameter("name a log, - for standard input, or --instance NAME")
    sources: list[Source | AscenddError] = list(file_sources(files or []))
    if instance is not None:
        try:
            sources.append(journal_source(instance, os.environ))
        except UsageError as error:
            raise typer.BadParameter(error.message) from error
    scans: list[SourceScan] = []
    for source in sources:
        try:
            if isinstance(source, AscenddError):
                raise source
            result = scan(catalogue, source, len(scans))
        except (AscenddError, OSError) as error:
            _complain(error)
            continue
        if result.num_bytes == 0 and not source.is_file:
            print(f"{source.name} is empty: nothing to read", file=sys.stderr)
        else:
            scans.append(result)
    if not scans:
        return DiagnoseExit.NOTHING_READ
    report = conclude(catalogue, scans)
    if as_json:
        print(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        print_report(report, console)
    return DiagnoseExit.NOTHING_FOUND if report.cause is None else DiagnoseExit.CAUSE_FOUND


def _complain(error: AscenddError | OSError) -> None:
    if isinstance(error, AscenddError):
        print(f"error {error.code}: {error.message}", file=sys.stderr)
        print(f"remedy: {error.remedy}", file=sys.stderr)
    else:
        print(f"error: {error.filename or 'a log'} cannot be read: {error.strerror}", file=sys.stderr)
