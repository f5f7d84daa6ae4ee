"""NPUs on the PCI bus, from sysfs. Ids decide, not the class: Kunpeng has Huawei `processing accelerators` too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from ascendd.host.files import HostFiles
from ascendd.host.vendor_facts import load_facts

_SYSFS = "/sys/bus/pci/devices"


@dataclass(frozen=True)
class PciNpu:
    """One PCI function of an NPU. A3 has one function a die; a 300I Duo has two chips behind one function."""

    address: str
    device_id: str
    family: str
    title: str
    num_chips: int


def find_pci_npus(files: HostFiles) -> Tuple[PciNpu, ...]:
    """Return the NPU functions on the bus, by address; none where there is no PCI bus."""
    facts = load_facts("pci_devices")
    found = []
    for address in files.list_dir(_SYSFS):
        if _attribute(files, address, "vendor") != facts["vendor"]:
            continue
        device_id = _attribute(files, address, "device")
        known = facts["devices"].get(device_id)
        if known is None:
            continue
        chips = known.get("chips_by_subsystem", {}).get(_attribute(files, address, "subsystem_device"), 1)
        found.append(PciNpu(address, device_id, known["family"], known["title"], chips))
    return tuple(found)


def _attribute(files: HostFiles, address: str, name: str) -> str:
    return (files.read_optional(f"{_SYSFS}/{address}/{name}") or "").strip().lower()
