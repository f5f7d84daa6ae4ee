"""
The command line: one module per verb, each with `register(app)`; wrong usage is exit 64 for every verb.

An AscenddError becomes `error CODE: message`, its remedy and its runbook on standard error, and the exit code of its
class. Verbs import what they need inside their functions, so that `--help` stays instant.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated

import typer

from ascendd import __version__
from ascendd.errors import AscenddError, ExitCode

# One module per verb, in the order of the help text.
VERBS = (
    "doctor",
    "diagnose",
    "run",
    "serve",
    "status",
    "drain",
    "resume",
    "restart",
    "reload",
    "loglevel",
    "report",
    "drill",
    "convert",
    "inspect",
    "plan",
    "config",
    "instance",
    "migrate",
    "key",
    "release",
    "bench",
    "chat",
    "gateway",
    "route",
    "exporter",
    "tune",
    "cost",
    "cluster",
)

COMPLETE_VARIABLE = "_ASCENDD_COMPLETE"

# Newer typers carry a click of their own; both error classes are found through a name that every version exports.
_ClickUsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]


def build_app() -> typer.Typer:
    """Return the application with every verb registered."""
    app = typer.Typer(
        name="ascendd",
        help="Serve large language models on Ascend NPU servers.",
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True)
        ] = False,
    ) -> None:
        """Serve large language models on Ascend NPU servers."""

    for verb in VERBS:
        importlib.import_module(f"ascendd.cli.{verb}").register(app)
    return app


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status."""
    args = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if COMPLETE_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]

        completion_init()  # a shell asks for words, by the script of cli.completion
    try:
        result = build_app()(args=args, prog_name="ascendd", standalone_mode=False)
    except AscenddError as error:
        report_error(error)
        return int(error.exit_code)
    except _ClickUsageError as error:
        return _report_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except _ClickError as error:
        print(f"error: {getattr(error, 'format_message', error.__str__)()}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of our output left; Python would complain once more while flushing at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    return result if isinstance(result, int) else 0


def report_error(error: AscenddError) -> None:
    """Print `error` the way every verb does: code and message, remedy, runbook."""
    print(f"error {error.code}: {error.message}", file=sys.stderr)
    print(f"remedy: {error.remedy}", file=sys.stderr)
    print(f"runbook: {error.runbook}", file=sys.stderr)


def _report_usage(error: Exception) -> int:
    message = str(getattr(error, "format_message", error.__str__)()).strip().removesuffix(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "ascendd"
    print(f"error ASD-U01: {' '.join(message.split())}; see `{command} --help`", file=sys.stderr)
    return int(ExitCode.USAGE)


def _print_version(value: bool) -> None:
    if value:
        print(f"ascendd {__version__}")
        raise typer.Exit
