"""What keeps hands off the chips: a process that holds one, a health word that is not OK. Read-only."""

from __future__ import annotations

import os
from typing import List

from ascendd.errors import ProbeError
from ascendd.host.command import run_command
from ascendd.host.npu_smi import CALL_TIMEOUT_S, NpuSmi, find_npu_smi
from ascendd.host.version_files import read_driver, read_firmware

from .host import Host


def holders(host: Host) -> List[str]:
    """Return a sentence for each process that has a device node open, by /proc; the kernel's word, not npu-smi's."""
    found = []
    for pid in host.files.list_dir("/proc", "[0-9]*"):
        folder = host.real(f"/proc/{pid}/fd")
        try:
            links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]  # noqa: PTH115, PTH208 - thousands
        except OSError:
            continue  # It ended meanwhile.
        nodes = sorted({link for link in links if link.startswith("/dev/davinci")})
        if nodes:
            name = (host.files.read_if_possible(f"/proc/{pid}/comm") or "").strip()
            found.append(f"process {pid} ({name}) holds {', '.join(nodes)}; stop it, then go on")
    return found


def busy_or_sick(host: Host) -> List[str]:
    """Return why the driver that is installed must not be replaced now; nothing where there is no driver."""
    driver = read_driver(host.files)
    if driver.version is None:
        return []
    try:
        report = NpuSmi(find_npu_smi(host.files, host.environ), run_command, host.environ, CALL_TIMEOUT_S).info()
    except ProbeError as error:
        if read_firmware(host.files).version is None:
            return []  # A driver without its firmware cannot answer, and the firmware is what it lacks.
        return [
            f"the driver {driver.version} is installed and its chips cannot be asked for their health: {error.message}"
        ]
    if not report.complete:
        return [
            f"npu-smi was cut short, so the health of the chips is not known; driver {driver.version} stays untouched"
        ]
    found = [
        f"{chip.label} has health {chip.health or 'unknown'}; a driver or firmware is changed on healthy chips only"
        for chip in report.chips
        if chip.health != "OK"
    ]
    found += [
        f"process {process.pid} ({process.name or 'no name'}) runs on NPU {process.npu_id}"
        for process in report.processes
    ]
    return found
