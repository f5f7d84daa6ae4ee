"""DeviceProbe: reads who holds the devices of the instance, and how the chips are. Blocking: run it in a thread."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ascendd.config.schema import InstanceConfig
from ascendd.errors import ProbeError
from ascendd.host.device_holders import find_holders, read_process
from ascendd.host.files import HostFiles
from ascendd.host.npu_smi import NpuSmi, find_npu_smi
from ascendd.host.npu_smi_table import NpuChip, NpuSmiReport
from ascendd.host.process_group import find_members
from ascendd.host.tool import host_runner
from ascendd.supervisor.devices import npu_devices
from ascendd.supervisor.release import DeviceReading


@dataclass(frozen=True)
class DeviceProbe:
    """
    Looks at the chips with the logical numbers `devices`; with none of them, at left processes only.

    A chip keeps the number that it had in the first reading: where one falls off the bus, those after it move up.
    """

    devices: frozenset[int]
    files: HostFiles = field(default_factory=HostFiles)
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    _numbers: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, config: InstanceConfig, device_kind: str) -> DeviceProbe:
        """Return the probe of an instance; only NPUs have chips that can be asked."""
        if device_kind != "npu":
            return cls(frozenset())
        return cls(frozenset(npu_devices(config, os.environ)))

    def read(self, old_leader: int | None, unused: frozenset[int] = frozenset()) -> DeviceReading:
        """Return what is seen now but for the chips `unused`; `old_leader` led the group of the engine that ended."""
        left = () if old_leader is None else find_members(self.files, old_leader)
        holders = {process.pid: f"{process.label}, of the engine that ended" for process in left}
        devices = self.devices - unused
        if not devices:
            return DeviceReading(tuple(holders.values()))
        for process in find_holders(self.files):
            chips = sorted(devices.intersection(process.chips))
            if chips:
                where = ", ".join(f"/dev/davinci{chip}" for chip in chips)
                holders.setdefault(process.pid, f"{process.label} on {where}")
        try:
            tool = NpuSmi(find_npu_smi(self.files, self.environ), host_runner(self.files), self.environ)
            report = tool.info()
        except ProbeError as error:
            return DeviceReading(tuple(holders.values()), problem=error.message)
        if not self._numbers:
            self._numbers.update({chip.label: number for number, chip in enumerate(report.chips)})
        chips_in_use = [chip for chip in report.chips if self._numbers.get(chip.label) in devices]
        holders = {**self._listed(report, chips_in_use), **holders}
        used = {chip.label: mb for chip in chips_in_use if (mb := _used_mb(chip)) is not None}
        health = {chip.label: chip.health for chip in chips_in_use if chip.health is not None}
        numbers = {chip.label: self._numbers[chip.label] for chip in chips_in_use}
        return DeviceReading(tuple(holders.values()), used, health, numbers)

    def _listed(self, report: NpuSmiReport, chips: list[NpuChip]) -> dict[int, str]:
        found = {}
        for listed in report.processes:
            for chip in chips:
                if (listed.npu_id, listed.chip_id) == (chip.npu_id, chip.chip_id):
                    seen = read_process(self.files, listed.pid)
                    who = seen.label if seen is not None else f"{listed.name or 'a process'} (pid {listed.pid})"
                    found[listed.pid] = f"{who} on {chip.label}"
        return found


def _used_mb(chip: NpuChip) -> int | None:
    return chip.hbm_used_mb if chip.has_hbm_column else chip.memory_used_mb
