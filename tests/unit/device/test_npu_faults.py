"""Texts of torch_npu, the runtime and HCCL beside the errors they become."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ascendd.device import npu_faults
from ascendd.device.npu_faults import classify, vendor_code_of
from ascendd.errors import (
    AscenddError,
    CollectiveTimeout,
    DeviceEccError,
    DeviceFault,
    DeviceLost,
    DeviceOutOfMemory,
    DeviceUnavailable,
    GraphCaptureFailed,
    error_by_code,
    walk_errors,
)

# As torch_npu 2.13 wrote them on stand-in libraries, and as public logs have them.
SYNCHRONISE = (
    "ACL stream synchronize failed, error code:507035\n[ERROR] 2026-12-02-10:00:00 (PID:7, Device:0, RankID:-1) "
    "ERR00100 PTA call acl api failed.\nEE9999: Inner Error!"
)
SET_DEVICE = (
    "SetDevice:torch_npu/csrc/core/npu/NPUFunctions.cpp:162 NPU function error: c10_npu::SetDevice(device_id), error "
    "code is 507033\n[ERROR] 2026-12-02-10:00:00 (PID:7, Device:0, RankID:-1) ERR00100 PTA call acl api failed"
)
WRONG_DEVICE = SET_DEVICE.replace("507033", "107001")
OUT_OF_MEMORY = (
    "NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 1024.00 MiB total capacity; 162.00 KiB already allocated; "
    "162.00 KiB current active; 1022.00 MiB free; 2.00 MiB reserved in total by PyTorch)"
)
HCCL_TIMEOUT = "HCCL function error: HcclAllReduce, error code is 9\n[ERROR] ERR02200 DIST call hccl api failed."


@pytest.mark.parametrize(
    ("text", "kind", "action"),
    [
        (SYNCHRONISE, DeviceFault, "process_restart"),
        (SET_DEVICE, DeviceLost, "device_reset_or_reinstall"),
        (WRONG_DEVICE, DeviceUnavailable, "fix_config"),
        (OUT_OF_MEMORY, DeviceOutOfMemory, "free_memory"),
        ("NPU function error: aclrtMalloc, error code is 207001", DeviceOutOfMemory, "free_memory"),
        ("ACL stream synchronize failed, error code:507054", DeviceEccError, "device_reset"),
        ("ACL stream synchronize failed, error code:507010", DeviceLost, "device_reset"),
        ("ACL stream synchronize failed, error code:507046", CollectiveTimeout, "group_restart"),
        ("NPU function error: aclrtCreateStream, error code is 207008", GraphCaptureFailed, "fix_config"),
        ("NPU function error: aclrtCreateStream, error code is 207005", GraphCaptureFailed, "free_memory"),
        (HCCL_TIMEOUT, CollectiveTimeout, "group_restart"),
        ("EE1001: The argument is invalid. Reason: set ASCEND_RT_VISIBLE_DEVICES:4 error", DeviceUnavailable, "fix_config"),
        ("FORCE STOP. [ERROR] device is stopped", DeviceLost, "device_reset"),
    ],
)  # fmt: skip
def test_a_vendors_text_becomes_one_of_our_errors(text, kind, action) -> None:
    """The class, and the action of the table in the facts."""
    fault = classify(RuntimeError(text))

    assert type(fault) is kind
    assert fault.facts["action"] == action


def test_an_error_of_the_program_is_not_the_devices() -> None:
    """A shape that does not fit stays what it is."""
    assert classify(RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)")) is None
    assert classify(RuntimeError("ninja: error code 1")) is None


def test_a_number_beats_the_wrapper_around_it() -> None:
    """EE9999 and ERR00100 say only that something failed."""
    row = vendor_code_of(SYNCHRONISE)

    assert row is not None
    assert (row.code, row.name) == ("507035", "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION")


def test_a_wrapper_alone_is_still_a_fault_of_the_device() -> None:
    """Better the wrapper's name than nothing."""
    fault = classify(RuntimeError("EE9999: Inner Error!"))

    assert isinstance(fault, DeviceFault)
    assert fault.facts["vendor_code"] == "EE9999"


def test_a_fault_says_code_meaning_remedy_and_source() -> None:
    """What an operator reads at night."""
    fault = classify(RuntimeError(WRONG_DEVICE))

    assert fault is not None
    assert "ACL_ERROR_RT_INVALID_DEVICEID (107001)" in fault.message
    assert fault.remedy
    assert fault.facts["source"].startswith("hicann/runtime")


def test_every_row_of_the_table_names_its_source() -> None:
    """No code is known from nowhere; each has a name, a meaning and an action that exists."""
    table = json.loads((Path(npu_faults.__file__).parent / "data" / "error_codes.json").read_text())

    assert len(table["codes"]) == 220
    assert [row for row in table["codes"] if not (row["source"] and row["name"] and row["action"])] == []


def test_every_class_that_the_table_leads_to_is_in_the_error_tree() -> None:
    """And so travels between processes by its code."""
    leads_to = {*npu_faults._BY_ACTION.values(), *npu_faults._BY_CODE.values()}

    assert leads_to < set(walk_errors(AscenddError))
    assert {error_by_code(kind.code) for kind in leads_to} == leads_to
