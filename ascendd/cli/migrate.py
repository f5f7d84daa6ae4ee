"""`ascendd migrate`: an instance's file from what starts a vLLM today."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

_BACKENDS = ("native", "vllm")


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
    def migrate(
        source: Annotated[
            list[str], typer.Argument(help="A unit file, a start script, - for standard input, or vllm serve ...")
        ],
        to: Annotated[str, typer.Option("--to", help="The backend: native or vllm.")] = "vllm",
        venv: Annotated[str, typer.Option("--venv", help="The environment that has bin/vllm.")] = "",
        instance: Annotated[str, typer.Option("--instance", "-i", help="Name of the instance.")] = "migrated",
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Make an instance's file of a vllm serve command, script or unit; say what is not taken over."""
        raise typer.Exit(run(source, to, venv, instance, as_json=as_json))


def run(source: list[str], to: str, venv: str, instance: str, *, as_json: bool) -> int:
    """Print the file and what was dropped; return 0, or 78 where the file would be refused. Raises UsageError."""
    from ascendd.cli.migrate_mapping import lines, migrate
    from ascendd.cli.migrate_source import read_command, read_source
    from ascendd.config.load import convert
    from ascendd.errors import ConfigInvalid, ExitCode, UsageError
    from ascendd.instances.draft import draft_text

    if to not in _BACKENDS:
        raise UsageError(f"--to {to}: is no backend", remedy="Write --to native or --to vllm.")
    if len(source) > 1:
        found = migrate(read_command(source), to, venv)
    else:
        found = migrate(read_source(_text(source[0])), to, venv)
    problems: list[str] = []
    try:
        convert(found.raw, "the migrated file")
    except ConfigInvalid as error:
        problems = list(error.facts.get("problems", [error.message]))
    text = draft_text(instance, found.raw)
    if as_json:
        untaken = [{"what": entry.what, "why": entry.why} for entry in found.untaken]
        result = {"yaml": text, "config": found.raw, "not_taken_over": untaken, "todo": found.todo}
        print(json.dumps(result | {"problems": problems}, ensure_ascii=False, indent=1))
    else:
        print(text, end="")
        for line in (*lines(found), *(f"refused as it is: {problem}" for problem in problems)):
            print(line, file=sys.stderr)
    return int(ExitCode.CONFIG) if problems else 0


def _text(source: str) -> str:
    from ascendd.errors import UsageError

    if source == "-":
        return sys.stdin.read()
    try:
        return Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        remedy = "Name a unit file or a script, or write - for standard input."
        raise UsageError(f"{source} cannot be read: {reason}", remedy=remedy) from error
