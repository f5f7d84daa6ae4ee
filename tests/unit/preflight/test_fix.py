"""Fixes: only settings that can be set back, each for its own finding."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ascendd.errors import ProbeUnavailable
from ascendd.host.command import CommandOutcome
from ascendd.preflight.check import CheckResult, Verdict
from ascendd.preflight.fix import apply, fixes_for


def found(check_id: str, verdict: Verdict = Verdict.WARN, **evidence: Any) -> CheckResult:
    """Return a result."""
    return CheckResult(verdict, "said", evidence, None, 0.0, check_id)


@pytest.mark.parametrize(
    ("result", "command", "undo"),
    [
        (found("hccl-ports", listening=[], reserved="16666"), "sysctl -w net.ipv4.ip_local_reserved_ports=16666,60000-60031",
         "sysctl -w net.ipv4.ip_local_reserved_ports=16666"),
        (found("swappiness", swappiness=60), "sysctl -w vm.swappiness=10", "sysctl -w vm.swappiness=60"),
        (found("cpu-governor", governors={"powersave": "0-3"}), "cpupower frequency-set -g performance", "cpupower frequency-set -g powersave"),
        (found("clock", timedatectl={"NTP": "no"}), "timedatectl set-ntp true", "timedatectl set-ntp false"),
        (found("service-user", Verdict.FAIL, user="ascendd", groups=["ascendd"], driver_group="HwHiAiUser"),
         "usermod -aG HwHiAiUser ascendd", "gpasswd -d ascendd HwHiAiUser"),
    ],
)  # fmt: skip
def test_a_finding_has_one_command_and_the_way_back(result: CheckResult, command: str, undo: str) -> None:
    """What would run, and what takes it back, are both told."""
    (fix,) = fixes_for([result])

    assert (fix.command, fix.undo) == (command, undo)
    assert fix.holds


@pytest.mark.parametrize(
    "result",
    [
        found("hccl-ports", Verdict.FAIL, listening=[60007], reserved=""), found("clock", timedatectl={"NTP": "yes"}),
        found("clock", Verdict.FAIL, timedatectl=None), found("swappiness", Verdict.PASS, swappiness=60),
        found("npu-ecc", Verdict.FAIL), found("service-user", Verdict.FAIL, user="llm"),
    ],
)  # fmt: skip
def test_what_no_setting_puts_right_has_no_fix(result: CheckResult) -> None:
    """A process that holds a port, hardware, and what passes stay with the operator."""
    assert fixes_for([result]) == []


def test_a_command_that_fails_or_is_not_there_is_told() -> None:
    """Nothing is raised, and the last line of the tool is the reason."""
    (fix,) = fixes_for([found("swappiness", swappiness=60)])

    def refuse(argv: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> CommandOutcome:
        return CommandOutcome(tuple(argv), 255, "", "sysctl: permission denied on key\n", 0.0)

    def absent(argv: Sequence[str], timeout_s: float, environ: Mapping[str, str]) -> CommandOutcome:
        raise ProbeUnavailable("sysctl is not on this host")

    assert apply(fix, refuse, {}).problem == "exit status 255: sysctl: permission denied on key"
    assert apply(fix, absent, {}).problem == "sysctl is not on this host"
