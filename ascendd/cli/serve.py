"""`ascendd serve MODEL`: the daemon of one instance without a file, with flags that users of vLLM know."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ascendd.config.schema import InstanceConfig


def register(app: typer.Typer) -> None:
    """Add the verb to `app`."""

    @app.command(
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )
    def serve(context: typer.Context) -> None:
        """Serve one model in the foreground: ascendd serve MODEL [flags]."""
        from ascendd.cli.run import run_to_end

        args = [*context.args]
        if any(arg in ("--help", "-h") for arg in args):
            print(help_text())
            return
        config, notes = build_config(args)
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        raise typer.Exit(run_to_end(config, config.model.name or config.model.path.rstrip("/").rpartition("/")[2]))


def build_config(args: Sequence[str]) -> tuple[InstanceConfig, list[str]]:
    """Return the configuration that `args` ask for, and notes to print. Raises UsageError."""
    from ascendd.cli.serve_flags import FLAGS, parse
    from ascendd.config.load import convert
    from ascendd.errors import ConfigInvalid, UsageError

    found = parse(args)
    try:
        return convert(found.raw, "the command line"), found.notes
    except ConfigInvalid as error:
        text = "; ".join(error.facts["problems"])
        for flag in FLAGS:
            text = text.replace(f"$.{flag.section}.{flag.key}", flag.names[0])
        raise UsageError(text.replace("$.", ""), remedy="Run `ascendd serve --help`.") from None


def help_text() -> str:
    """Return the flags with the configuration key that each sets."""
    from ascendd.cli.serve_flags import FLAGS, NOTED, Kind

    lines = ["Usage: ascendd serve MODEL [flags]", "", "Serve the model in the folder MODEL in the foreground.", ""]
    for flag in FLAGS:
        value = "" if flag.kind in (Kind.ON, Kind.OFF) else f" {flag.kind.value}"
        lines.append(f"  {', '.join(flag.names)}{value}")
        lines.append(f"        {flag.help} ({flag.section}.{flag.key})")
    lines += ["", "Accepted and without effect: " + ", ".join(name for noted in NOTED for name in noted.names)]
    return "\n".join(lines)
