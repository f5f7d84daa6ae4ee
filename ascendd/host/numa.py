"""Which CPUs are near a PCI device, which are online, and which this process may use; from sysfs and /proc."""

from __future__ import annotations

import re
from typing import FrozenSet, Optional

from ascendd.errors import ProbeParseError
from ascendd.host.cpu_list import parse_cpus
from ascendd.host.files import HostFiles


def cpus_near(files: HostFiles, bus_id: Optional[str]) -> Optional[FrozenSet[int]]:
    """
    Return the CPUs near the device at `bus_id` (0000:C1:00.0); None where the bus does not know the device.

    Raises ProbeUnavailable or ProbeParseError.
    """
    if bus_id is None:
        return None
    path = f"/sys/bus/pci/devices/{bus_id.lower()}/local_cpulist"
    text = files.read_optional(path)
    cpus = None if text is None else parse_cpus(text)
    if text is not None and cpus is None:
        raise ProbeParseError(f"{path} holds no list of CPUs")
    return cpus


def online_cpus(files: HostFiles) -> FrozenSet[int]:
    """Return the CPUs that are online. Raises ProbeUnavailable or ProbeParseError."""
    cpus = parse_cpus(files.read_text("/sys/devices/system/cpu/online"))
    if not cpus:
        raise ProbeParseError("/sys/devices/system/cpu/online holds no list of CPUs")
    return cpus


def allowed_cpus(files: HostFiles) -> FrozenSet[int]:
    """
    Return the CPUs that this process may run on, control groups counted.

    Raises ProbeUnavailable or ProbeParseError.
    """
    match = re.search(r"^Cpus_allowed_list:\s*(\S+)", files.read_text("/proc/self/status"), re.MULTILINE)
    cpus = parse_cpus(match[1]) if match else None
    if not cpus:
        raise ProbeParseError("/proc/self/status holds no list of CPUs")
    return cpus
