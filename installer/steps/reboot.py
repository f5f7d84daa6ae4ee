"""The reboot barrier: after driver or firmware nothing goes on before the host has been restarted."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Sequence

from ascendd.errors import HostError

from ..action import Action, Link, RestoreFiles, WriteFile
from ..bundle import Bundle
from ..host import Host
from ..settings import Settings
from ..state import InstallState
from ..step import Detection, Found, Step

UNIT = "ascendd-install-resume.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
WANTS_PATH = f"/etc/systemd/system/multi-user.target.wants/{UNIT}"
_TEXT = """[Unit]
Description=Go on with the installation of ascendd after the reboot
ConditionPathExists=/var/lib/ascendd-installer/state.json
After=local-fs.target
RequiresMountsFor={folder}

[Service]
Type=oneshot
ExecStart={command} resume --yes
TimeoutStartSec=infinity

[Install]
WantedBy=multi-user.target
"""


class RebootOutstanding(Exception):
    """The run stops here; `is_coming` tells that this installer asked for the reboot itself."""

    def __init__(self, *, is_coming: bool) -> None:
        super().__init__("the host is to be rebooted")
        self.is_coming = is_coming


@dataclass(frozen=True)
class _Restart(Action):
    """Restart the host, or stop and ask for it; nothing once another boot has begun."""

    asks_systemd: bool

    def show(self, host: Host) -> str:
        return "systemctl reboot" if self.asks_systemd else "stop with status 75; after the reboot run `resume`"

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        if state.reboot_after != host.boot_id:
            return
        if self.asks_systemd:
            host.run(("systemctl", "reboot"), (0,), 60.0)
        raise RebootOutstanding(is_coming=self.asks_systemd)


@dataclass(frozen=True)
class _ResumeAtBoot(Action):
    """The one-shot unit; made only while a reboot is outstanding."""

    unit: WriteFile

    def show(self, host: Host) -> str:
        return f"{self.unit.show(host)}\n        and the same as systemctl enable {UNIT}"

    def perform(self, host: Host, state: InstallState, step_id: str) -> None:
        if state.reboot_after != host.boot_id:
            return
        self.unit.perform(host, state, step_id)
        Link(WANTS_PATH, UNIT_PATH).perform(host, state, step_id)


class Reboot(Step):
    """The barrier; it has work where one of the steps before it has."""

    id = "reboot"
    title = "reboot"
    estimate_s = 300.0

    def __init__(self, bundle: Bundle, settings: Settings, before: Sequence[Step]) -> None:
        self._bundle, self._settings, self._before = bundle, settings, before
        self.requires = tuple(step.id for step in before)

    def detect(self, host: Host) -> Detection:
        """Look at the steps before it."""
        waiting = [step.title for step in self._before if step.detect(host).found is not Found.PRESENT]
        if waiting:
            return Detection(Found.ABSENT, None, f"needed after {' and '.join(waiting)}")
        return Detection(Found.PRESENT, None, "not needed, driver and firmware stay as they are")

    def act(self, host: Host, found: Found) -> Sequence[Action]:
        """Make the unit and restart, or ask; after the restart, take the unit away."""
        if not self._settings.reboots:
            return (_Restart(asks_systemd=False),)
        command = shlex.quote(self._bundle.path("install.sh"))
        text = _TEXT.format(folder=shlex.quote(self._bundle.folder), command=command)
        return (_ResumeAtBoot(WriteFile(UNIT_PATH, text)), _Restart(asks_systemd=True), RestoreFiles())

    def prove(self, host: Host) -> str:
        """See that driver and firmware are what they should be after it."""
        for step in self._before:
            step.prove(host)
        if not host.boot_id:
            raise HostError("/proc/sys/kernel/random/boot_id cannot be read, so nobody can tell one boot from another")
        return "the host was restarted after driver and firmware"

    def undo(self, host: Host, state: InstallState) -> Sequence[Action]:
        """Take the unit away."""
        return (RestoreFiles(),)
