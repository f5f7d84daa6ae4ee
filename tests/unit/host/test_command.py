"""A vendor tool is run with limits on its time and its output, whatever it does."""

import os
import subprocess
import time

import pytest

from ascendd.errors import ProbeParseError, ProbeTimeout, ProbeUnavailable
from ascendd.host import command
from ascendd.host.command import run_command

ENVIRON = {"PATH": os.environ["PATH"]}


def test_both_outputs_the_status_and_the_input_are_carried() -> None:
    """A tool that fails is no exception: its outputs and its status come back."""
    done = run_command(["sh", "-c", "cat; echo e >&2; exit 187"], 20.0, ENVIRON, stdin="in")

    assert (done.status, done.stdout, done.stderr) == (187, "in", "e\n")


def test_a_tool_that_a_signal_ends_has_the_status_of_the_shell() -> None:
    """Signal 9 is status 137."""
    assert run_command(["sh", "-c", "kill -9 $$"], 20.0, ENVIRON).status == 137


@pytest.mark.parametrize(
    "script", ["echo part; sleep 60", "echo part; exec >&- 2>&-; sleep 60", "echo part; sleep 60 &"]
)
def test_a_tool_that_hangs_is_killed_with_what_it_started(script: str) -> None:
    """Also one that closed its outputs, or left a child that holds them; what it had printed is kept."""
    started = time.monotonic()

    with pytest.raises(ProbeTimeout, match=r"did not answer within 0\.5 s and was killed") as caught:
        run_command(["sh", "-c", script], 0.5, ENVIRON)

    assert caught.value.facts["stdout"] == "part\n"
    assert time.monotonic() - started < 30


def test_a_tool_that_prints_without_end_is_killed() -> None:
    """More than 4 MiB is no answer, and the doctor's memory stays bounded."""
    with pytest.raises(ProbeParseError, match="printed more than 4 MiB and was killed"):
        run_command(["yes"], 60.0, ENVIRON)


def test_a_tool_that_does_not_die_is_left_behind_and_said_to_be_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in uninterruptible sleep survives SIGKILL; waiting for it would hang the doctor too."""
    children: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def remember(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        children.append(start(*arguments, **options))  # type: ignore[call-overload]
        return children[-1]

    monkeypatch.setattr(command.subprocess, "Popen", remember)
    monkeypatch.setattr(command.os, "killpg", lambda pid, number: None)
    monkeypatch.setattr(command, "_REAP_S", 0.1)

    with pytest.raises(ProbeTimeout, match="does not die: it hangs in the kernel") as caught:
        run_command(["sleep", "600"], 0.1, ENVIRON)

    assert caught.value.facts["is_stuck"]
    children[0].kill()
    children[0].wait()


def test_a_tool_that_is_not_there_is_unavailable() -> None:
    """The path and the reason are named."""
    with pytest.raises(ProbeUnavailable, match="/no/such/tool cannot be started: No such file"):
        run_command(["/no/such/tool"], 1.0, ENVIRON)
