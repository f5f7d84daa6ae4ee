"""The frame of the command line."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import typer

from ascendd import __version__
from ascendd.cli import app as cli
from ascendd.errors import ModelNotFound

HEAVY = {"torch", "aiohttp", "transformers", "prometheus_client", "asyncio", "yaml", "numpy"}
VERBS = ["doctor", "run", "serve", "convert", "inspect", "config"]


def test_the_version_is_printed(capsys):
    """`ascendd --version` prints name and version and succeeds."""
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"ascendd {__version__}\n"


@pytest.mark.parametrize("args", [[], ["--help"], ["-h"]])
def test_help_names_every_verb(args, capsys):
    """Bare, --help and -h all show the verbs and succeed."""
    assert cli.main(args) == 0
    out = capsys.readouterr().out
    assert [verb for verb in VERBS if verb not in out] == []


@pytest.mark.parametrize(
    "args", [["nope"], ["--nope"], *([verb, "--nope"] for verb in VERBS), ["config"], ["run"], ["serve"]]
)
def test_wrong_usage_is_64_and_one_line(args, capsys):
    """An unknown verb or flag and a missing argument exit 64 with one line that says what is wrong."""
    assert cli.main(args) == 64
    captured = capsys.readouterr()
    assert captured.out == ""
    errors = [line for line in captured.err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert errors[0].startswith("error ASD-U01: ")


def test_an_error_shows_code_remedy_and_runbook(monkeypatch, capsys):
    """An AscenddError is three lines and the exit code of its class."""
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise ModelNotFound("/m does not exist", remedy="Give a folder.")

    monkeypatch.setattr(cli, "build_app", lambda: app)

    assert cli.main(["--"]) == 66
    assert capsys.readouterr().err.splitlines()[-3:] == [
        "error ASD-M02: /m does not exist",
        "remedy: Give a folder.",
        "runbook: docs/runbooks/ASD-M02.md",
    ]


def test_ctrl_c_is_130(monkeypatch):
    """A verb that is interrupted ends with 128 + SIGINT."""
    app = typer.Typer()

    @app.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_app", lambda: app)

    assert cli.main(["--"]) == 130


def test_help_imports_nothing_heavy():
    """`ascendd --help` loads none of the libraries that do the work; its time is printed beside a bare typer program's."""
    ours = (
        "import sys\nfrom ascendd.cli.app import main\nmain(['--help'])\n"
        f"print('loaded:', sorted({HEAVY!r} & set(sys.modules)))"
    )
    bare = (
        "import typer\napp = typer.Typer()\n"
        "@app.command()\ndef one(): 'One.'\n@app.command()\ndef two(): 'Two.'\n"
        "app(['--help'], standalone_mode=False)"
    )

    seconds = {}
    for name, code in (("bare typer", bare), ("ascendd", ours)):
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        started = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        seconds[name] = time.perf_counter() - started
    print(", ".join(f"{name} --help {took * 1000:.0f} ms" for name, took in seconds.items()))

    assert done.stdout.splitlines()[-1] == "loaded: []"
