"""The chips of a host with all their numbers, and the place of each: bus, NUMA node, CPUs, links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ascendd.errors import ProbeError, UsageError
from ascendd.host.cpu_list import parse_cpus
from ascendd.host.drop_in import find_placement
from ascendd.host.files import HostFiles
from ascendd.host.npu_smi import NpuSmi, find_npu_smi
from ascendd.host.npu_topology import NpuTopology
from ascendd.host.numa import cpus_near
from ascendd.host.pci import find_pci_npus
from ascendd.host.tool import host_runner
from ascendd.preflight.chips import whole


@dataclass(frozen=True, slots=True)
class Chip:
    """
    One chip. `number` is what parallel.devices and ASCEND_RT_VISIBLE_DEVICES count, `node` the N of /dev/davinciN.

    None where the host does not say; memory in MB as npu-smi prints it.
    """

    number: int
    node: int
    name: str | None
    health: str | None
    bus_id: str | None
    memory_mb: int | None
    cpus: frozenset[int]
    numa_nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class Topology:
    """The chips in the order of their numbers; `links` is None where npu-smi does not print the matrix."""

    chips: tuple[Chip, ...]
    links: NpuTopology | None = None

    def by_number(self, numbers: Iterable[int]) -> tuple[Chip, ...]:
        """Return the chips of these numbers. Raises UsageError where one is not there."""
        known = {chip.number: chip for chip in self.chips}
        missing = sorted(set(numbers) - set(known))
        if missing:
            there = f"0 to {len(self.chips) - 1}" if self.chips else "none"
            raise UsageError(
                f"device {', '.join(map(str, missing))} is not on this host; there are: {there}",
                remedy="`ascendd instance topology` lists the devices of this host.",
            )
        return tuple(known[number] for number in sorted(set(numbers)))


def read_topology(files: HostFiles, environ: Mapping[str, str]) -> Topology:
    """Return the chips of the host; none on a host without NPUs. Raises ProbeError where they cannot be asked."""
    if not find_pci_npus(files):
        return Topology(())
    environ = files.environ(environ)
    tool = NpuSmi(find_npu_smi(files, environ), host_runner(files), environ)
    report = whole(tool.info())
    try:
        links = tool.topology()
    except ProbeError:
        links = None
    chips = []
    for number, chip in enumerate(report.chips):
        physical = chip.physical_id
        node = number if physical is None or not files.exists(f"/dev/davinci{physical}") else physical
        place = find_placement(files, {node: chip.bus_id})
        near = cpus_near(files, chip.bus_id) or frozenset()
        memory = chip.hbm_total_mb or chip.memory_total_mb
        chips.append(
            Chip(number, node, chip.name, chip.health, chip.bus_id, memory, place.cpus or near, place.numa_nodes)
        )
    return Topology(tuple(chips), links)


def parse_devices(text: str) -> list[int]:
    """Return the numbers of `0-3`, `0,2,4-5`. Raises UsageError."""
    numbers = parse_cpus(text)
    if not numbers:
        raise UsageError(f"--devices {text!r}: write numbers and ranges, such as 0-3 or 0,2", flag="--devices")
    return sorted(numbers)
