"""`ascendd diagnose`: inputs, exit statuses and what is printed."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from types import SimpleNamespace

import pytest

from ascendd.cli import app as cli
from ascendd.diagnose.journal import journal_source
from ascendd.errors import ProbeTimeout

LINE = "RuntimeError: call failed, error code is 507035\n"


def put_journalctl(folder, monkeypatch, script):
    """Place a program called journalctl first on PATH."""
    program = folder / "journalctl"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_found_cause_is_told_and_exits_1(tmp_path, monkeypatch, capsys):
    """Id, code, place, remedy, check, what the daemon does, and the runbook stand on standard output."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "worker.log").write_text("fine\n" + LINE)

    status = cli.main(["diagnose", "worker.log"])

    out = " ".join(capsys.readouterr().out.split())
    assert status == 1
    for text in (
        "dev.vector_core_exception",
        "ASD-",
        "worker.log:2",
        "remedy",
        "check",
        "restarts every rank",
        "docs/runbooks/",
    ):
        assert text in out


def test_log_without_a_cause_exits_0(tmp_path, capsys):
    """Nothing found is said, and is success."""
    log = tmp_path / "worker.log"
    log.write_text("fine\n")

    assert cli.main(["diagnose", str(log)]) == 0
    assert "no known cause found" in capsys.readouterr().out


def test_wrapper_alone_is_shown_as_unexplained(tmp_path, monkeypatch, capsys):
    """A wrapper is no cause; the operator is told where to look on."""
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "worker.log"
    log.write_text("EE9999: Inner Error!\n")

    assert cli.main(["diagnose", log.name]) == 0
    out = capsys.readouterr().out
    assert "worker.log:1" in out
    assert "plog" in out


def test_unreadable_log_exits_3(tmp_path, capsys):
    """When no log can be read the status says so."""
    assert cli.main(["diagnose", str(tmp_path / "gone.log")]) == 3
    assert "does not exist" in capsys.readouterr().err


def test_one_readable_log_is_enough(tmp_path, capsys):
    """An unreadable name is told, the others are read."""
    log = tmp_path / "worker.log"
    log.write_text(LINE)

    assert cli.main(["diagnose", str(tmp_path / "gone.log"), str(log), "--json"]) == 1
    captured = capsys.readouterr()
    assert "gone.log" in captured.err
    assert json.loads(captured.out)["cause"]["id"] == "dev.vector_core_exception"


@pytest.mark.parametrize(("data", "status"), [(LINE.encode(), 1), (b"fine\n", 0), (b"", 3)])
def test_standard_input_is_a_log(monkeypatch, data, status):
    """`-` reads the pipe; an empty pipe is nothing read."""
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data))))

    assert cli.main(["diagnose", "-"]) == status


def test_list_names_every_diagnosis(capsys):
    """`--list --json` has id, code and runbook of each."""
    assert cli.main(["diagnose", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"id": "port.http_in_use", "code": "ASD-H02", "runbook": "docs/runbooks/ASD-H02.md"} in rows
    assert cli.main(["diagnose", "--list"]) == 0
    assert "port.http_in_use" in capsys.readouterr().out


@pytest.mark.parametrize("args", [[], ["--instance", "../etc"], ["--instance", "-x"]])
def test_wrong_usage_is_64(args):
    """No log named, or an instance that cannot be one."""
    assert cli.main(["diagnose", *args]) == 64


def test_journal_of_an_instance_is_read(tmp_path, monkeypatch, capsys):
    """`--instance` asks journalctl for that unit and diagnoses what it prints."""
    put_journalctl(tmp_path, monkeypatch, f'echo "$@" > {tmp_path}/asked; echo "{LINE.strip()}"')

    assert cli.main(["diagnose", "--instance", "qwen2", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["cause"]["evidence"][0]["source"] == "ascendd@qwen2"
    assert (tmp_path / "asked").read_text().startswith("-u ascendd@qwen2 --no-pager")


def test_missing_journalctl_is_told_with_a_way_out(tmp_path, monkeypatch, capsys):
    """Without journalctl the error says so and names the other way; nothing was read."""
    monkeypatch.setenv("PATH", str(tmp_path))

    assert cli.main(["diagnose", "--instance", "qwen2"]) == 3
    err = capsys.readouterr().err
    assert "journalctl cannot be started" in err
    assert "ascendd diagnose FILE" in err


def test_failing_journalctl_is_told_in_its_own_words(tmp_path, monkeypatch, capsys):
    """A journalctl that fails without output gives its status and message."""
    put_journalctl(tmp_path, monkeypatch, "echo 'No journal files were opened' >&2; exit 1")

    assert cli.main(["diagnose", "--instance", "qwen2"]) == 3
    assert "status 1: No journal files were opened" in capsys.readouterr().err


def test_quiet_journalctl_is_killed(tmp_path, monkeypatch):
    """A journalctl that hangs ends with an error in time, and its process is gone."""
    put_journalctl(tmp_path, monkeypatch, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    started = time.monotonic()

    with pytest.raises(ProbeTimeout, match="printed nothing for"):
        list(journal_source("qwen2", os.environ, quiet_s=1.0).blocks)

    assert time.monotonic() - started < 30
    assert not os.path.exists(f"/proc/{(tmp_path / 'pid').read_text().strip()}")
