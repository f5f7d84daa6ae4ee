"""The doctor's round at the end: what `ascendd doctor` says of the host that was just installed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Sequence, Tuple

from ascendd.errors import HostError

from ..action import Action
from ..host import Host
from ..settings import Settings
from ..state import InstallState
from ..step import Detection, Found, Step
from .cann_environment import PATH as ENVIRONMENT

# The doctor's own statuses: 0 all passed, 1 warnings.
_ACCEPTED = (0, 1)


@dataclass(frozen=True)
class _Announced(Action):
    """The command of the proof, shown with the actions; the proof is what runs it."""

    argv: Tuple[str, ...]

    def show(self, host: Host) -> str:
        return shlex.join(self.argv)

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        pass


class Doctor(Step):
    """The verification; it has work where any step before it has."""

    id = "doctor"
    title = "doctor"
    estimate_s = 30.0

    def __init__(self, settings: Settings, before: Sequence[Step]) -> None:
        self._settings, self._before = settings, before
        self.requires = tuple(step.id for step in before)

    def detect(self, host: Host) -> Detection:
        """Look at the steps before it."""
        if any(step.detect(host).found is not Found.PRESENT for step in self._before):
            return Detection(Found.ABSENT, None, "asked at the end")
        return Detection(Found.PRESENT, None, "nothing changes; `verify` asks the doctor")

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Show how it is asked, with the environment that the service has."""
        return (_Announced(self._argv(host)),)

    def prove(self, host: Host) -> str:
        """Ask it; its findings are in the log."""
        try:
            host.run(self._argv(host), _ACCEPTED, 600.0)
        except HostError as error:
            error.remedy = f"Run `{shlex.join(self._argv(host))}` and follow the remedy of each failed check."
            raise
        return "the doctor found no failure"

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Nothing."""
        return ()

    def _argv(self, host: Host) -> Tuple[str, ...]:
        command = [
            host.real("/opt/ascendd/current/bin/ascendd"),
            "doctor",
            "--device",
            "npu" if self._settings.is_npu else "cpu",
        ]
        if not self._settings.is_npu:
            return tuple(command)
        return ("bash", "-c", f"set -a; . {shlex.quote(host.real(ENVIRONMENT))}; exec {shlex.join(command)}")
