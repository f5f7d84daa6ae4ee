"""NPUs on the PCI bus, from sysfs. Ids decide, not the class: Kunpeng has Huawei `processing accelerators` too."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Tuple

from ascendd.errors import ProbeParseError
from ascendd.host.files import HostFiles
from ascendd.host.vendor_facts import load_facts

_SYSFS = "/sys/bus/pci/devices"
_ID = re.compile(r"0x[0-9a-f]{4}")
# `c1:00.0 1200: 19e5:d802 (rev 20)` of lspci -n; without -n the vendor is spelt out and the device may be.
_NUMERIC = re.compile(r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) [0-9a-f]{4}: ([0-9a-f]{4}):([0-9a-f]{4})\b")
_SPELT = re.compile(
    r"^((?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) Processing accelerators: "
    r"Huawei Technologies Co\., Ltd\. Device ([0-9a-f]{4})\b"
)


@dataclass(frozen=True)
class PciNpu:
    """One PCI function of an NPU. A3 has one function a die; a 300I Duo has two chips behind one function."""

    address: str
    device_id: str
    family: str
    title: str
    num_chips: int


def find_pci_npus(files: HostFiles) -> Tuple[PciNpu, ...]:
    """
    Return the NPU functions on the bus, by address; none where there is no PCI bus.

    Raises ProbeUnavailable or ProbeParseError: a device whose ids cannot be read may be an NPU.
    """
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
    path = f"{_SYSFS}/{address}/{name}"
    text = files.read_optional(path)
    if text is None:
        return ""  # a virtual function, or a bus of another kind
    value = text.strip().lower()
    if not _ID.fullmatch(value):
        raise ProbeParseError(f"{path} holds no id of a PCI device: {value[:20]!r}", path=path)
    return value


def parse_lspci(text: str) -> Tuple[PciNpu, ...]:
    """Return the NPU functions of `lspci` or `lspci -n`, for machines whose sysfs cannot be read; in order of lines."""
    facts = load_facts("pci_devices")
    found = []
    for line in text.splitlines():
        numeric, spelt = _NUMERIC.match(line), _SPELT.match(line)
        match = numeric or spelt
        if match is None or (numeric and "0x" + numeric[2] != facts["vendor"]):
            continue
        device_id = "0x" + match[match.lastindex or 0]
        known = facts["devices"].get(device_id)
        if known is not None:
            address = match[1] if match[1].count(":") > 1 else "0000:" + match[1]
            found.append(PciNpu(address, device_id, known["family"], known["title"], 1))
    return tuple(found)
