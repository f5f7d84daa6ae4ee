"""ChipRepair: has the chips of an instance reset that are faulty, where recovery.reset_chips is true. Blocking."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ascendd.config.schema import InstanceConfig
from ascendd.errors import ProbeError
from ascendd.host.chip_reset import ChipReset, ResetOutcome, ResetResult
from ascendd.host.command import run_command
from ascendd.host.files import HostFiles
from ascendd.ipc.control_path import incidents_dir
from ascendd.ipc.messages import Fault
from ascendd.telemetry.log_budget import vendor_log_folders

# Above what three tries with all their waits take.
_UNIT_S = 3000.0
_ACTIONS = "device_reset"


def asks_for_reset(fault: Fault | None) -> bool:
    """Whether the vendor's table of codes says that what an engine ended of is cured by a reset."""
    return fault is not None and str(fault.facts.get("action", "")).startswith(_ACTIONS)


def device_logs_folder(instance: str, environ: Mapping[str, str]) -> Path:
    """Return where exported device logs go: within log.budget where systemd gives a logs folder."""
    folders = vendor_log_folders(environ, instance)
    return folders[0] if folders else incidents_dir(instance, environ).parent / "device-logs"


@dataclass(frozen=True)
class ChipRepair:
    """Resets chips itself as root, else has the unit ascendd-reset@INSTANCE do it, which is root's."""

    instance: str
    devices: frozenset[int]
    reset: ChipReset

    @classmethod
    def of(
        cls, config: InstanceConfig, instance: str, devices: frozenset[int], files: HostFiles | None = None
    ) -> ChipRepair | None:
        """Return what repairs the chips of an instance; None where it may not, and where there are none."""
        if not config.recovery.reset_chips or not devices:
            return None
        folder = device_logs_folder(instance, os.environ)
        return cls(instance, devices, ChipReset(folder, files or HostFiles()))

    def repair(self, named: int | None, unused: frozenset[int] = frozenset()) -> ResetOutcome:
        """Reset what is faulty of the chips in use; `named` is the chip that the engine's fault was of."""
        devices = self.devices - unused
        if self.reset.files.root or os.geteuid() == 0:
            return self.reset.reset(devices, frozenset() if named is None else frozenset({named}))
        return self._by_unit()

    def _by_unit(self) -> ResetOutcome:
        unit = f"ascendd-reset@{self.instance}.service"
        try:
            done = run_command(["systemctl", "start", unit], _UNIT_S, self.reset.environ)
            shown = run_command(["systemctl", "show", "-P", "ExecMainStatus", unit], 60.0, self.reset.environ)
        except ProbeError as error:
            return ResetOutcome(ResetResult.FAILED, f"not reset: {error.message}")
        where = f"`journalctl -u {unit}` has the rest"
        if done.status == 0:
            return ResetOutcome(ResetResult.DONE, f"{unit} reset the chips; {where}")
        if shown.stdout.strip() == str(ResetResult.HELD.value):
            return ResetOutcome(ResetResult.HELD, f"not reset: somebody has a chip of the ring; {where}")
        said = (done.stderr.strip().splitlines() or [f"exit status {done.status}"])[0][:200]
        how = "50-ascendd-reset.rules lets the service's user start it (docs/ARCHITECTURE.md)"
        return ResetOutcome(ResetResult.FAILED, f"not reset: systemctl start {unit}: {said}; {where}; {how}")
