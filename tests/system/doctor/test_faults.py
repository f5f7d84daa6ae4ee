"""Each fault of a recorded machine is named by the check that looks for it."""

import os
from typing import Any

import pytest

from ascendd.preflight.check import Verdict

pytestmark = pytest.mark.system

DRIVER = "usr/local/Ascend/driver/version.info"
FIRMWARE = "usr/local/Ascend/firmware/version.info"

FAULTS = {
    "a chip without its node": (
        lambda m: (m.root / "dev/davinci1").unlink(),
        "npu-presence", Verdict.FAIL, "the counts disagree: PCI 2, /dev 1, npu-smi 2, ACL 2",
    ),
    "all nodes gone": (
        lambda m: [path.unlink() for path in (m.root / "dev").iterdir()],
        "npu-presence", Verdict.FAIL, "the bus has NPUs, /dev has none",
    ),
    "no manager node": (
        lambda m: (m.root / "dev/davinci_manager").unlink(), "npu-presence", Verdict.FAIL, "/dev/davinci_manager not there",
    ),
    "no svm node": (
        lambda m: (m.root / "dev/devmm_svm").unlink(), "npu-presence", Verdict.WARN, "/dev/devmm_svm not there",
    ),
    "a node that cannot be opened": (
        lambda m: ((m.root / "dev/davinci1").unlink(), (m.root / "dev/davinci1").mkdir()),
        "npu-presence", Verdict.FAIL, "/dev/davinci1 cannot be opened: Is a directory",
    ),
    "driver interface dead": (
        lambda m: m.answer("info", "abn-dcmi-8005-old-loglevel-line.txt", 187),
        "npu-presence", Verdict.FAIL, "INNER_ERR -8005",
    ),
    "device held by another container": (
        lambda m: m.answer("info", "abn-dcmi-8020-busy.txt", 172), "npu-presence", Verdict.FAIL, "RESOURCE_OCCUPIED -8020",
    ),
    "npu-smi without its libraries": (
        lambda m: m.write("usr/local/bin/npu-smi", "#!/bin/sh\ncat %s >&2; exit 127\n" % (m.recordings / "abn-ld-libc_sec-rc127.txt")),
        "npu-presence", Verdict.FAIL, "npu-smi cannot start: libc_sec.so",
    ),
    "a folder in place of npu-smi": (
        lambda m: ((m.root / "usr/local/bin/npu-smi").unlink(), (m.root / "usr/local/sbin/npu-smi").mkdir(parents=True)),
        "npu-presence", Verdict.FAIL, "/usr/local/sbin/npu-smi is a folder, not the tool",
    ),
    "ACL sees fewer devices": (
        lambda m: m.environ.update(FAKE_ACL_COUNT="1"), "npu-presence", Verdict.FAIL, "npu-smi 2, ACL 1",
    ),
    "a chip in alarm": (
        lambda m: (m.answer("info", "info-23.0.0-310B4-alarm-busid-NA.txt"), m.answer("health", "abn-t-health-c0-alarm-80E01801.txt")),
        "npu-health", Verdict.FAIL, "is Alarm (80E01801",
    ),
    "HBM double-bit errors": (
        lambda m: m.answer("ecc", "abn-t-ecc-hbm-double-bit.txt"), "npu-health", Verdict.FAIL, "HBM Double Bit Error Count 2",
    ),
    "a reboot pending after a driver upgrade": (
        lambda m: m.edit(DRIVER, "24.1.rc3", "24.1.0"),
        "driver-version", Verdict.FAIL, "24.1.0 is installed but 24.1.rc3 runs",
    ),
    "a driver that only the release notes list": (
        lambda m: m.edit(DRIVER, "C19", "C13"),
        "driver-version", Verdict.PASS, "listed by the vendor for CANN 8.2.RC1",
    ),
    "a pair nobody lists": (
        lambda m: (m.edit(DRIVER, "C19", "C13"), m.install_cann("8.1.RC1")),
        "driver-version", Verdict.FAIL, "neither driver 24.1.rc3 nor CANN 8.1.RC1 lists the other",
    ),
    "no driver on disk": (
        lambda m: (m.root / "usr/local/Ascend/driver/version.info").unlink(),
        "driver-version", Verdict.WARN, "version.info is not there; running: 24.1.rc3",
    ),
    "firmware of the first generation": (
        lambda m: m.log_firmware("910"), "firmware-version", Verdict.FAIL, "is for 910, the chips are A2 (910b)",
    ),
    "firmware that the driver does not take": (
        lambda m: (
            m.edit(DRIVER, "7.5.99", "7.2.99"),
            m.edit(FIRMWARE, ",[24.1,24.1.]", ""),
        ),
        "firmware-version", Verdict.FAIL, "firmware 7.5.0.2.220 is outside [7.0.0,7.2.99], which driver 24.1.rc3 accepts",
    ),
    "firmware that knows its older driver": (
        lambda m: m.edit(DRIVER, "7.5.99", "7.2.99"),
        "firmware-version", Verdict.PASS, "7.5.0.2.220 runs on every NPU",
    ),
    "firmware too old": (
        lambda m: m.edit(FIRMWARE, "7.5.0.2.220", "6.4.12.1.241"),
        "firmware-version", Verdict.FAIL, "firmware 6.4.12.1.241 is older than 7.0.0",
    ),
    "firmware that npu-smi calls incompatible": (
        lambda m: m.answer("board", "abn-t-board-compat-nok.txt"), "firmware-version", Verdict.FAIL, "npu-smi: NOK",
    ),
    "no firmware package": (
        lambda m: (m.root / "usr/local/Ascend/firmware/version.info").unlink(),
        "firmware-version", Verdict.FAIL, "no firmware package is installed",
    ),
    "CANN that leaks": (
        lambda m: m.install_cann("6.3.RC3"), "cann-version", Verdict.FAIL, "leaks page-table memory",
    ),
    "CANN without its hotfix": (
        lambda m: m.install_cann("7.0.0"), "cann-version", Verdict.FAIL, "7.0.0 is refused without hotfix H100",
    ),
    "no CANN": (
        lambda m: (m.toolkit / "aarch64-linux/ascend_toolkit_install.info").unlink(),
        "cann-version", Verdict.FAIL, "no CANN toolkit found",
    ),
    "an environment that was not sourced": (
        lambda m: [m.environ.pop(key) for key in list(m.environ) if key not in ("PATH", "HOME")],
        "service-environment", Verdict.FAIL, "libascendcl.so is not on the library path; a copy is at",
    ),
    "a stub before the driver": (
        lambda m: (
            m.write("usr/local/Ascend/ascend-toolkit/latest/devlib/libascend_hal.so", ""),
            m.environ.update(LD_LIBRARY_PATH="/usr/local/Ascend/ascend-toolkit/latest/devlib:" + m.environ["LD_LIBRARY_PATH"]),
        ),
        "service-environment", Verdict.FAIL, "a stub for compiling (ACL error 100039)",
    ),
    "a path that leads nowhere": (
        lambda m: m.environ.update(ASCEND_AICPU_PATH="/opt/gone"),
        "service-environment", Verdict.WARN, "ASCEND_AICPU_PATH names /opt/gone",
    ),
    "ACL without memory": (
        lambda m: m.environ.update(FAKE_ACL_FAULT="aclrtMalloc=207001"),
        "acl-runtime", Verdict.FAIL, "aclrtMalloc failed: ACL_ERROR_RT_MEMORY_ALLOCATION 207001: EE9999",
    ),
    "memory that changes": (
        lambda m: m.environ.update(FAKE_ACL_FAULT="corrupt"),
        "acl-runtime", Verdict.FAIL, "first difference at byte 4097",
    ),
    "a runtime that crashes": (
        lambda m: m.environ.update(FAKE_ACL_FAULT="aclrtSetDevice=crash"),
        "acl-runtime", Verdict.FAIL, "aclrtSetDevice failed: the call ended its process with signal 11",
    ),
    "a weight file cut short": (
        lambda m: os.truncate(m.model / "rank-1-of-2.safetensors", 9),
        "model-artefact", Verdict.FAIL, "rank-1-of-2.safetensors has 9 bytes",
    ),
    "too little host memory": (
        lambda m: m.write("proc/meminfo", "MemTotal: 400 kB\nMemAvailable: 200 kB\n"),
        "host-memory", Verdict.FAIL, "needed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_by_its_check(machine: Any, name: str) -> None:
    """A single fault changes the verdict of the check that looks for it, and the summary says what is wrong."""
    damage, check_id, verdict, words = FAULTS[name]
    damage(machine)

    result = machine.diagnose(check_id)[check_id]

    assert (result.verdict, words in result.summary) == (verdict, True), result
    assert verdict is Verdict.PASS or result.remedy is not None
