"""
The drop-in file of one instance's unit: the chips that it may open, and the CPUs and memory near them.

    /etc/systemd/system/ascendd@NAME.service.d/50-devices.conf

A file of its own, so that what `systemctl edit` writes (override.conf) is neither read nor lost, and comes after it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import FrozenSet, Mapping, Optional, Set, Tuple

from ascendd.errors import UsageError
from ascendd.host.cpu_list import format_cpus
from ascendd.host.files import HostFiles
from ascendd.host.numa import cpus_near, online_cpus
from ascendd.host.vendor_facts import load_facts

UNITS_DIR = "/etc/systemd/system"
FILE_NAME = "50-devices.conf"
# What systemd takes between `@` and `.service` without escaping, less what is special in a path.
_INSTANCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")


@dataclass(frozen=True)
class Placement:
    """
    Where an instance runs.

    `devices` are chips by the number of their node, `nodes` the paths of all device nodes it may open. Empty `cpus` and
    `numa_nodes` leave CPUs and memory to the kernel.
    """

    devices: Tuple[int, ...] = ()
    nodes: Tuple[str, ...] = ()
    cpus: FrozenSet[int] = frozenset()
    numa_nodes: FrozenSet[int] = frozenset()


def drop_in_path(instance: str) -> str:
    """Return the path of the drop-in of `instance`. Raises UsageError where that is no name of an instance."""
    if not _INSTANCE.fullmatch(instance):
        raise UsageError(
            f"{instance!r} cannot be the name of an instance",
            remedy="Use 1 to 100 letters, digits and _ . : -, the first one of them a letter, a digit or _.",
        )
    return f"{UNITS_DIR}/ascendd@{instance}.service.d/{FILE_NAME}"


def find_placement(files: HostFiles, chips: Mapping[int, Optional[str]]) -> Placement:
    """
    Return the placement beside `chips`: number of the device node -> address on the PCI bus, None where it is unknown.

    CPUs and memory are bound only where the host names them for every chip, and only if that is not the whole machine.
    Raises ProbeUnavailable or ProbeParseError where the host does not list its CPUs.
    """
    if not chips:
        return Placement()
    near = [cpus_near(files, bus_id) for bus_id in chips.values()]
    cpus = frozenset().union(*(part or frozenset() for part in near))
    if not all(near) or cpus >= online_cpus(files):
        cpus = frozenset()
    numbers = [_numa_node(files, bus_id) for bus_id in chips.values()]
    known = frozenset(number for number in numbers if number is not None)
    numa_nodes = known if cpus and None not in numbers else frozenset()
    return Placement(tuple(sorted(chips)), _nodes(files, sorted(chips)), cpus, numa_nodes)


def drop_in_text(instance: str, placement: Placement) -> str:
    """Return the content of the drop-in. Pure: equal arguments give equal text."""
    lines = [
        f"# Written by `ascendd instance create {instance}`, and written anew by it. Changes of your own belong into",
        f"# another file of this folder: `systemctl edit ascendd@{instance}`.",
        "[Service]",
        "# No device nodes but these; /dev/null and its like are always there.",
        "DevicePolicy=closed",
        *(f"DeviceAllow={node} rw" for node in placement.nodes),
    ]
    if placement.devices:
        devices = ",".join(str(device) for device in placement.devices)
        lines += ["# The runtime numbers these from 0.", f"Environment=ASCEND_RT_VISIBLE_DEVICES={devices}"]
    if placement.cpus:
        lines += ["# The CPUs near the chips.", f"CPUAffinity={format_cpus(placement.cpus)}"]
    if len(placement.numa_nodes) == 1:
        # Never `bind`: an instance would be killed for want of memory while the other half of the host is free.
        lines += ["# Memory near the chips first, elsewhere where that is full."]
        lines += ["NUMAPolicy=preferred", f"NUMAMask={format_cpus(placement.numa_nodes)}"]
    return "\n".join(lines) + "\n"


def _nodes(files: HostFiles, chips: list[int]) -> Tuple[str, ...]:
    facts = load_facts("device_nodes")
    names: Set[str] = set()
    for required in facts["required"]:
        others = [node for node in facts["alternatives"].get(required, []) if files.exists("/dev/" + node)]
        names.add(required if files.exists("/dev/" + required) or not others else others[0])
    names.update(node for nodes in facts["expected_by_family"].values() for node in nodes)
    return tuple(f"/dev/{name}" for name in (*(f"davinci{chip}" for chip in chips), *sorted(names)))


def _numa_node(files: HostFiles, bus_id: Optional[str]) -> Optional[int]:
    """Return the NUMA node of the device at `bus_id`; None where the kernel does not know it (it says -1)."""
    text = files.read_if_possible(f"/sys/bus/pci/devices/{bus_id.lower()}/numa_node") if bus_id else None
    number = (text or "").strip()
    return int(number) if number.isdigit() else None
