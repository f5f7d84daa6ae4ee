"""
Vendor errors -> our typed errors, by the table data/error_codes.json (codes, causes, remedies, actions, sources).

Order of belief: an explicit number of the runtime in the text, then the code of a CANN component (EE1001), then
torch_npu's own (ERR00006), then words. Wrappers that say only that something failed are passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ascendd.errors import (
    AscenddError,
    CollectiveTimeout,
    DeviceEccError,
    DeviceFault,
    DeviceLost,
    DeviceOutOfMemory,
    DeviceUnavailable,
    GraphCaptureFailed,
)

_TABLE = Path(__file__).parent / "data" / "error_codes.json"

# As torch_npu, the runtime and HCCL print numbers: `error code is 507035`, `error code:507035`, `runtime result = 9`.
_NUMBER = re.compile(r"(?:error code(?: is)?|runtime result|retCode|ret(?:urn)? code|rtResult)\s*[:=]?\s*\[?(\d+)\b")
_COMPONENT = re.compile(r"\bE[A-Z0-9]\d{4}\b")
_TORCH_NPU = re.compile(r"\bERR\d{5}\b")
# They wrap whatever happened below; alone they name nothing.
_WRAPPERS = frozenset({"EE9999", "EZ9999", "E39999", "ERR00100", "ERR02200", "500000", "507899"})
_OUT_OF_MEMORY = re.compile(r"NPU out of memory|out of memory\. Tried to allocate|preemptively rejected")
_DEAD = re.compile(r"FORCE STOP|device .{0,20}(?:is lost|heartbeat)", re.IGNORECASE)
# What says that this step, or any on this chip or CANN, cannot be captured; fewer graphs would not help.
CAPTURE_CODES = frozenset({"107024", "107025", "107027", "107030", "107038", "207000", "ERR00007", "ERR00008"})

_BY_ACTION: Mapping[str, type[AscenddError]] = {
    "free_memory": DeviceOutOfMemory,
    "device_reset": DeviceLost,
    "device_reset_idle": DeviceLost,
    "device_reset_or_reboot": DeviceLost,
    "device_reset_or_reinstall": DeviceLost,
    "host_reboot": DeviceLost,
    "host_power": DeviceLost,
    "replace": DeviceLost,
    "group_restart": CollectiveTimeout,
    "check_link": CollectiveTimeout,
    "fix_config": DeviceUnavailable,
    "fix_install": DeviceUnavailable,
    "fix_permission": DeviceUnavailable,
    "wait_retry": DeviceUnavailable,
}
# Numbers whose class is not that of their action.
_BY_CODE: Mapping[str, type[AscenddError]] = {
    "507053": DeviceEccError,
    "507054": DeviceEccError,
    "507055": DeviceEccError,
    # Streams and notifies ran out, which is not memory, though the vendor's remedy is the same: use fewer.
    "207005": GraphCaptureFailed,
    "207008": GraphCaptureFailed,
    "507010": DeviceLost,
}
# Families whose numbers may stand in a text, most specific first.
_FAMILIES = ("acl_rt", "acl", "hccl_result", "err_family", "torch_npu")


@dataclass(frozen=True, slots=True)
class VendorCode:
    """One row: what a vendor's code means and what to do; `source` says where that was published."""

    code: str
    family: str
    name: str
    meaning: str
    cause: str
    remedy: str
    action: str
    source: str


@lru_cache(maxsize=1)
def vendor_codes() -> Mapping[str, VendorCode]:
    """Return the rows that can stand in an error's text, by their code."""
    rows = json.loads(_TABLE.read_text(encoding="utf-8"))["codes"]
    found: dict[str, VendorCode] = {}
    known = (row for row in rows if row["family"] in _FAMILIES)
    for row in sorted(known, key=lambda row: _FAMILIES.index(row["family"])):
        fields = {name: str(row.get(name, "")) for name in VendorCode.__slots__}
        found.setdefault(fields["code"], VendorCode(**fields))
    return found


def vendor_code_of(text: str) -> VendorCode | None:
    """Return the most specific row that `text` names; a wrapper only where nothing else is named."""
    table = vendor_codes()
    found: list[VendorCode] = []
    for pattern in (_NUMBER, _COMPONENT, _TORCH_NPU):
        for match in pattern.finditer(text):
            row = table.get(match[match.lastindex or 0])
            # HCCL's numbers are 1 to 24; anybody's `error code 1` must not become one of them.
            if row is not None and (row.family != "hccl_result" or "hccl" in text.lower()):
                found.append(row)
    specific = [row for row in found if row.code not in _WRAPPERS]
    return next(iter(specific or found), None)


def classify(error: BaseException) -> AscenddError | None:
    """
    Return the typed error that a vendor's error stands for, or None where the text names no fault of the device.

    The facts carry `vendor_code`, `vendor_name`, `action` (of the table) and `source`, for the log and the supervisor.
    """
    text = str(error)
    row = vendor_code_of(text)
    first_line = text.strip().splitlines()[0][:300] if text.strip() else type(error).__name__
    if _OUT_OF_MEMORY.search(text) or (isinstance(error, MemoryError)):
        return _fault(DeviceOutOfMemory, f"the device's memory ran out: {first_line}", row, action="free_memory")
    if row is None:
        return DeviceLost(f"the device stopped: {first_line}", action="device_reset") if _DEAD.search(text) else None
    kind = _BY_CODE.get(row.code) or _BY_ACTION.get(row.action) or DeviceFault
    return _fault(kind, f"{row.name} ({row.code}): {row.meaning} {row.cause} [{first_line}]", row, action=row.action)


def _fault(kind: type[AscenddError], message: str, row: VendorCode | None, *, action: str) -> AscenddError:
    if row is None:
        return kind(message, action=action)
    return kind(
        message,
        remedy=row.remedy or None,
        vendor_code=row.code,
        vendor_name=row.name,
        action=action,
        source=row.source,
    )
