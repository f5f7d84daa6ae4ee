"""
One broken fact at a time on a healthy fake host, and what the doctor must say of it: the check, its verdict, the code of
its runbook, words of the finding and of the remedy. No other check may fail, warn or break.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import vendor_texts as texts
from fake_machine import ASCEND, FakeMachine

DRIVER, FIRMWARE = f"{ASCEND}/driver/version.info", f"{ASCEND}/firmware/version.info"
SEVEN = ("npu-smi", "info")
DEVLIB = f"/{ASCEND}/ascend-toolkit/latest/devlib"


@dataclass(frozen=True)
class Case:
    """`damage` breaks one fact; the rest is the expected answer."""

    damage: Callable[[FakeMachine], object]
    check: str
    verdict: str
    code: str
    says: str
    remedy: str
    # What the doctor is asked for besides, such as an instance.
    request: Callable[[FakeMachine], dict[str, object]] = field(default=lambda machine: {})


def fail(check: str, code: str, says: str, remedy: str, damage: Callable[[FakeMachine], object]) -> Case:
    """A case whose check FAILs."""
    return Case(damage, check, "fail", code, says, remedy)


def warn(check: str, code: str, says: str, remedy: str, damage: Callable[[FakeMachine], object]) -> Case:
    """A case whose check WARNs."""
    return Case(damage, check, "warn", code, says, remedy)


def error(check: str, code: str, says: str, remedy: str, damage: Callable[[FakeMachine], object]) -> Case:
    """A case whose check could not be made."""
    return Case(damage, check, "error", code, says, remedy)


def chip_row(machine: FakeMachine, chip: int, old: str, new: str) -> None:
    """Change the two lines of one chip in the table of npu-smi."""
    path = ".answers/npu-smi/info"
    lines = (machine.root / path).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {chip}     910B3"))
    both = "\n".join(lines[at : at + 2])
    assert old in both, both
    lines[at : at + 2] = both.replace(old, new).splitlines()
    machine.write(path, "\n".join(lines) + "\n")


def bare_chip(machine: FakeMachine, chip: int) -> None:
    """Leave nothing of a chip in the table but its ids."""
    path = ".answers/npu-smi/info"
    lines = (machine.root / path).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {chip}     910B3"))
    lines[at] = (
        f"| {chip}                         |               |                                                    |"
    )
    lines[at + 1] = "| 0                         |               |                                                    |"
    machine.write(path, "\n".join(lines) + "\n")


def drop_chip(machine: FakeMachine, chip: int) -> None:
    """Take a chip out of the table."""
    path = ".answers/npu-smi/info"
    lines = (machine.root / path).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {chip}     910B3"))
    machine.write(path, "\n".join(lines[:at] + lines[at + 3 :]) + "\n")


def list_process(machine: FakeMachine, chip: int, pid: int, name: str, memory_mb: int) -> None:
    """Have npu-smi list a process on a chip."""
    idle = f"| No running processes found in NPU {chip} "
    path = ".answers/npu-smi/info"
    lines = (machine.root / path).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(idle))
    lines[at] = f"| {chip:<7} 0                 | {pid:<13} | {name:<24} | {memory_mb:<23} |"
    machine.write(path, "\n".join(lines) + "\n")


def held_by(machine: FakeMachine, chip: int, pid: int, name: str) -> None:
    """Have another program hold most of a chip."""
    chip_row(machine, chip, "3411 / 65536", "54611/ 65536")
    list_process(machine, chip, pid, name, 51200)
    machine.process(pid, name)


def bus_gone(machine: FakeMachine, chip: int) -> None:
    """Let a card fall off the bus."""
    machine.remove(f"sys/bus/pci/devices/{texts.BUS_IDS[chip]}")


def log_line(machine: FakeMachine, line: str) -> None:
    """Add a line to the kernel log."""
    machine.answer("journalctl", JOURNAL, f"[    0.000000] Booting Linux\n[ 4711.1234] {line}\n")


JOURNAL = "-k -b -o short-monotonic --no-pager"
RUN_NOW = time.strftime(
    "[Driver] [%Y-%m-%d %H:%M:%S] [INFO] ./Ascend-hdk-910b-npu-driver_24.1.0_linux-aarch64.run --upgrade\n"
)
HCCN_FAILS = "Command execute failed!\n"
TOOLKIT = f"{ASCEND}/ascend-toolkit/8.2.RC1"

CASES: dict[str, Case] = {
    # Presence and the four counts.
    "a chip without its node": fail(
        "npu-presence", "ASD-D02", "PCI 8, /dev 7, npu-smi 8, ACL 8", "failed or is held by another container",
        lambda m: m.remove("dev/davinci5")),
    "a card off the bus": fail(
        "npu-presence", "ASD-D02", "PCI 7, /dev 8, npu-smi 8, ACL 8", "power-cycle the host", lambda m: bus_gone(m, 5)),
    "a card missing in npu-smi": fail(
        "npu-presence", "ASD-D02", "PCI 8, /dev 8, npu-smi 7, ACL 8", "look for it in npu-smi and dmesg",
        lambda m: drop_chip(m, 3)),
    "ACL sees fewer devices": fail(
        "npu-presence", "ASD-D02", "npu-smi 8, ACL 7", "failed or is held", lambda m: m.setenv(FAKE_ACL_COUNT="7")),
    "all nodes gone": fail(
        "npu-presence", "ASD-D02", "the bus has NPUs, /dev has none", "its module is not loaded", lambda m: m.remove("dev")),
    "no manager node": fail(
        "npu-presence", "ASD-D02", "/dev/davinci_manager not there", "Reload the driver", lambda m: m.remove("dev/davinci_manager")),
    "no memory node": warn(
        "npu-presence", "ASD-D02", "/dev/devmm_svm not there", "Load the whole driver", lambda m: m.remove("dev/devmm_svm")),
    "a node that cannot be opened": fail(
        "npu-presence", "ASD-H03", "/dev/davinci3 cannot be opened: Permission denied", "group HwHiAiUser",
        lambda m: m.deny("/dev/davinci3")),
    "npu-smi with -8005": fail(
        "npu-presence", "ASD-D02", "INNER_ERR -8005", "waits for a reboot",
        lambda m: m.replay(*SEVEN, "abn-dcmi-8005.txt", 187)),
    "npu-smi with -8005, an older log line before it": fail(
        "npu-presence", "ASD-D02", "INNER_ERR -8005", "waits for a reboot",
        lambda m: m.replay(*SEVEN, "abn-dcmi-8005-old-loglevel-line.txt", 187)),
    "npu-smi with status 187 and no word": fail(
        "npu-presence", "ASD-D02", "INNER_ERR -8005", "waits for a reboot", lambda m: m.answer(*SEVEN, "", 187)),
    "npu-smi with -8008": fail(
        "npu-presence", "ASD-D02", "DEVICE_NOT_EXIST -8008", "", lambda m: m.replay(*SEVEN, "abn-dcmi-8008-device-not-exist.txt", 184)),
    "devices held by another container": fail(
        "npu-presence", "ASD-D02", "RESOURCE_OCCUPIED -8020", "", lambda m: m.replay(*SEVEN, "abn-dcmi-8020-busy.txt", 172)),
    "npu-smi without its libraries": fail(
        "npu-presence", "ASD-D02", "npu-smi cannot start: libc_sec.so", "LD_LIBRARY_PATH",
        lambda m: (m.answer(*SEVEN, "", 127), m.write(".answers/npu-smi/info.stderr", texts.recording("abn-ld-libc_sec-rc127.txt")))),
    "a folder in place of npu-smi": fail(
        "npu-presence", "ASD-D02", "/usr/local/sbin/npu-smi is a folder", "Mount the host's npu-smi",
        lambda m: (m.remove("usr/local/bin/npu-smi"), m.write("usr/local/sbin/npu-smi/x"))),
    "npu-smi not installed": fail(
        "npu-presence", "ASD-D02", "npu-smi is neither on PATH nor", "", lambda m: m.remove("usr/local/bin/npu-smi")),
    "a driver that was installed half": warn(
        "npu-presence", "ASD-D02", "may not be completely installed", "Install the driver package again",
        lambda m: m.answer(*SEVEN, texts.info_table() + texts.recording("abn-driver-incomplete-trailer-25.5.0.txt").splitlines()[-1] + "\n")),
    # What single chips say of themselves.
    "a chip in security mode": fail(
        "npu-security", "ASD-D02", "NPU 4 chip 0 is in security mode", "copied by hand", lambda m: bare_chip(m, 4)),
    "a chip in alarm": fail(
        "npu-health", "ASD-D01", "NPU 2 chip 0 (0000:C2:00.0) is Alarm (80E01801", "reset the chip",
        lambda m: (chip_row(m, 2, "| OK            |", "| Alarm         |"),
                   m.replay("npu-smi", "info -t health -i 2 -c 0", "abn-t-health-c0-alarm-80E01801.txt"))),
    "a chip in a critical state": fail(
        "npu-health", "ASD-D01", "NPU 6 chip 0 (0000:82:00.0) is Critical", "collect device logs",
        lambda m: chip_row(m, 6, "| OK            |", "| Critical      |")),
    "a chip with a warning": warn(
        "npu-health", "ASD-D01", "NPU 1 chip 0 (0000:01:00.0) is Warning", "", lambda m: chip_row(m, 1, "| OK            |", "| Warning       |")),
    "a chip that did not start": fail(
        "npu-health", "ASD-D01", "NPU 7 chip 0 (0000:42:00.0) is UNKNOWN", "reset the chip",
        lambda m: chip_row(m, 7, "| OK            |", "| UNKNOWN       |")),
    "double-bit errors of now": fail(
        "npu-ecc", "ASD-D05", "HBM Double Bit Error Count 2", "reset the chip; replace it if they return",
        lambda m: m.answer("npu-smi", "info -t ecc -i 5", texts.fields("t-ecc-910A-clean.txt", 5, HBM_Double_Bit_Error_Count="2"))),
    "double-bit errors of the past": warn(
        "npu-ecc", "ASD-D05", "HBM Double Bit Aggregate Total Err Cnt 4", "Watch the numbers",
        lambda m: m.answer("npu-smi", "info -t ecc -i 5", texts.fields("t-ecc-910A-clean.txt", 5, HBM_Double_Bit_Aggregate_Total_Err_Cnt="4"))),
    "spare rows used up": fail(
        "npu-ecc", "ASD-D05", "HBM Double Bit Isolated Pages Count 64", "Replace the chip",
        lambda m: m.answer("npu-smi", "info -t ecc -i 5", texts.fields("t-ecc-910A-clean.txt", 5, HBM_Double_Bit_Isolated_Pages_Count="64"))),
    "counters that cannot be read": error(
        "npu-ecc", "ASD-D05", "NPU 3: npu-smi said: Failed to query", "by hand",
        lambda m: m.answer("npu-smi", "info -t ecc -i 3", 'Failed to query "ecc" info.\n', 1)),
    "a warm chip": warn(
        "npu-sensors", "ASD-D01", "NPU 0 chip 0 (0000:C1:00.0) has 83 C", "air flow", lambda m: chip_row(m, 0, "47   ", "83   ")),
    "a hot chip": fail(
        "npu-sensors", "ASD-D01", "has 97 C", "Check fans", lambda m: chip_row(m, 0, "47   ", "97   ")),
    "a chip without memory": fail(
        "npu-sensors", "ASD-D01", "reports no HBM", "power-cycle", lambda m: chip_row(m, 0, "3411 / 65536", "0    / 0    ")),
    "a dead chip that shows zeros": fail(
        "npu-sensors", "ASD-D01", "shows 0 W and 0 C", "A dead chip shows zeros",
        lambda m: chip_row(m, 2, "90.1        47", "0.0         0 ")),
    "a table cut short": error(
        "npu-presence", "ASD-P04", "the table of npu-smi info was cut short", "by hand",
        lambda m: m.answer(*SEVEN, texts.info_table()[:700])),
    # Who holds the chips.
    "a chip held by another program": warn(
        "hbm-free", "ASD-G59", "54611 of 65536 MB in use, held by python3 (pid 4711) 51200 MB", "parallel.devices",
        lambda m: held_by(m, 0, 4711, "python3")),
    "memory that nobody is listed for": warn(
        "hbm-free", "ASD-G57", "and no process is listed", "Wait ten seconds", lambda m: chip_row(m, 4, "3411 / 65536", "40000/ 65536")),
    "a zombie on a chip": fail(
        "device-holders", "ASD-G74", "ascendd (pid 801) is a zombie of an earlier run", "reaped",
        lambda m: (list_process(m, 2, 801, "ascendd", 3000), m.process(801, "ascendd", state="Z"))),
    "a process that hangs in the driver": fail(
        "device-holders", "ASD-G74", "python3 (pid 802) hangs in the kernel", "does not die of a signal",
        lambda m: m.process(802, "python3", holds=("/dev/davinci1",), state="D")),
    "a process that is not on this host": warn(
        "device-holders", "ASD-G72", "npu-smi lists pid 99999 on NPU 6", "runs in a container",
        lambda m: list_process(m, 6, 99999, "python3", 1200)),
    # Versions.
    "a driver that waits for its reboot": fail(
        "driver-version", "ASD-P01", "24.1.rc2 is installed but 24.1.rc3 runs", "Reboot", lambda m: m.edit(DRIVER, "Version=24.1.rc3", "Version=24.1.rc2")),
    "a driver whose installation broke off": fail(
        "driver-version", "ASD-P01", "installation was not completed", "Install the driver package again",
        lambda m: m.edit("etc/ascend_install.info", "Status=complete", "Status=failed")),
    "no driver on disk": warn(
        "driver-version", "ASD-P01", "version.info is not there; running: 24.1.rc3", "Mount", lambda m: m.remove(DRIVER)),
    "firmware of the first generation": fail(
        "firmware-version", "ASD-P01", "is for 910, the chips are A2 (910b)", "vendor's own firmware package",
        lambda m: m.edit("var/log/ascend_seclog/operation.log", "hdk-910b-npu-firmware", "hdk-910-npu-firmware")),
    "no firmware package": fail(
        "firmware-version", "ASD-P01", "no firmware package is installed", "vendor's own firmware package", lambda m: m.remove(FIRMWARE)),
    "firmware that waits for its reboot": warn(
        "firmware-version", "ASD-P01", "7.5.0.3.220 is installed but 7.5.0.2.220 runs", "Reboot",
        lambda m: m.edit(FIRMWARE, "Version=7.5.0.2.220", "Version=7.5.0.3.220")),
    "firmware older than the site allows": fail(
        "firmware-version", "ASD-P01", "firmware 7.5.0.2.220 is older than 7.6.0", "vendor's own firmware package",
        lambda m: m.write("etc/ascendd/policy.json", '{"firmware_minimum": {"default": "7.6.0"}}')),
    "firmware of a day that the site does not allow": fail(
        "firmware-version", "ASD-P01", "installed on 2024-11-02; the policy asks for 2025-01-01", "vendor's own firmware package",
        lambda m: m.write("etc/ascendd/policy.json", '{"firmware_date_minimum": "2025-01-01"}')),
    "firmware that the driver does not take": fail(
        "driver-firmware", "ASD-P01", "firmware 7.5.0.2.220 is outside [7.0.0,7.2.99]", "one vendor release",
        lambda m: (m.edit(DRIVER, "7.5.99", "7.2.99"), m.edit(FIRMWARE, ",[24.1,24.1.]", ""))),
    "firmware that npu-smi calls incompatible": fail(
        "driver-firmware", "ASD-P01", "NPU 1: firmware 7.5.0.2.220 and driver are incompatible", "one vendor release",
        lambda m: m.edit_answer("npu-smi", "info -t board -i 1", ": OK", ": NOK")),
    "a driver upgraded since the last start": fail(
        "pending-reboot", "ASD-D02", "driver_24.1.0_linux-aarch64.run was installed after the host was started", "Reboot",
        lambda m: m.edit("var/log/ascend_seclog/operation.log", "[Firmware]", RUN_NOW + "[Firmware]")),
    "a kernel that asks for a restart": warn(
        "pending-reboot", "ASD-D02", "/run/reboot-required asks for a restart", "Reboot", lambda m: m.write("run/reboot-required")),
    "CANN that leaks": fail(
        "cann-version", "ASD-P01", "6.3.RC3 at /usr/local/Ascend/ascend-toolkit/latest: CANN 6.x leaks page-table memory", "newer CANN",
        lambda m: m.install_cann("6.3.RC3")),
    "CANN 7.0.0 without its hotfix": fail(
        "cann-version", "ASD-P01", "7.0.0 is refused without hotfix H100", "newer CANN", lambda m: m.install_cann("7.0.0")),
    "CANN older than the site allows": fail(
        "cann-version", "ASD-P01", "older than 8.3.RC1", "newer CANN", lambda m: m.write("etc/ascendd/policy.json", '{"cann_minimum": "8.3.RC1"}')),
    "no CANN": fail(
        "cann-version", "ASD-P01", "no CANN toolkit found", "Install the CANN toolkit",
        lambda m: m.remove(f"{TOOLKIT}/aarch64-linux/ascend_toolkit_install.info", f"{TOOLKIT}/version.cfg")),
    "a runtime of another release": fail(
        "cann-layout", "ASD-G23", "the toolkit is 8.2.RC1, but its runtime belongs to 8.0.RC3", "Install the toolkit again",
        lambda m: m.write(f"{TOOLKIT}/version.cfg", "runtime_running_version=[7.6.0.1.220:8.0.RC3]\n")),
    "an environment that mixes two releases": fail(
        "cann-layout", "ASD-G23", "mixes CANN 8.0.0 and 8.2.RC1", "one set_env.sh only",
        lambda m: (m.write("home/HwHiAiUser/Ascend/cann/aarch64-linux/ascend_toolkit_install.info", texts.TOOLKIT_INFO.format(version="8.0.0")),
                   m.write("home/HwHiAiUser/Ascend/cann/opp/x"), m.setenv(ASCEND_OPP_PATH="/home/HwHiAiUser/Ascend/cann/opp"))),
    "no operators": fail(
        "cann-layout", "ASD-G29", "no operators are installed", "ops (up to 8.3: kernels) package of CANN 8.2.RC1 for 910b",
        lambda m: m.remove(f"{TOOLKIT}/aarch64-linux/ascend_kernels_install.info", f"{TOOLKIT}/opp/built-in")),
    "operators for other chips": fail(
        "cann-layout", "ASD-G80", "operators are installed for 310p, the chips are A2", "for 910b",
        lambda m: (m.remove(f"{TOOLKIT}/opp/built-in"),
                   m.edit(f"{TOOLKIT}/aarch64-linux/ascend_kernels_install.info", "kernels-910b", "kernels-310p"))),
    "a driver that CANN does not list": fail(
        "driver-cann", "ASD-G01", "neither driver 24.1.rc3 nor CANN 8.1.RC1 lists the other", "lists together",
        lambda m: (m.edit(DRIVER, "Innerversion=V100R001C19", "Innerversion=V100R001C09"), m.install_cann("8.1.RC1"), nnal(m, "8.1.RC1"),
                   m.install_torch("2.5.1", "2.5.1"))),
    "a pair that was published as not working": fail(
        "driver-cann", "ASD-G01", "CANN 9.1.0 is published as not working with driver 25.0.1", "lists together",
        lambda m: (m.edit(DRIVER, "Version=24.1.rc3", "Version=25.0.1"), m.install_cann("9.1.0"), nnal(m, "9.1.0"),
                   m.install_torch("2.7.1", "2.7.1.post8"),
                   m.answer(*SEVEN, texts.info_table().replace("Version: 24.1.rc3", "Version: 25.0.1  ")),
                   m.edit(FIRMWARE, "[24.1,24.1.]", "[24.1,24.1.],[25.0,25.0.]"))),
    "a pair that nobody lists": warn(
        "driver-cann", "ASD-G01", "nothing is published on CANN 9.9.9 with driver 24.1.rc3", "lists together",
        lambda m: (m.install_cann("9.9.9"), nnal(m, "9.9.9"), permit(m, cann="9.9.9", torch="2.6.0"), m.edit(DRIVER, "compatible_version=", "x="),
                   m.edit(f"{TOOLKIT}/aarch64-linux/ascend_toolkit_install.info", "compatible_version=", "x="))),
    "a site policy that would loosen": fail(
        "site-policy", "ASD-P04", "cann_minimum 6.3.RC3 is below 7.0.0.H100", "Correct /etc/ascendd/policy.json",
        lambda m: m.write("etc/ascendd/policy.json", '{"cann_minimum": "6.3.RC3"}')),
    # Environment, libraries, ACL.
    "an environment that was not sourced": fail(
        "service-environment", "ASD-P05", "ASCEND_HOME_PATH and ASCEND_OPP_PATH not set", "EnvironmentFile",
        lambda m: m.setenv(ASCEND_HOME_PATH=None, ASCEND_OPP_PATH=None)),
    "a path that leads nowhere": warn(
        "service-environment", "ASD-P05", "ASCEND_AICPU_PATH names /opt/gone", "Remove them", lambda m: m.setenv(ASCEND_AICPU_PATH="/opt/gone")),
    "visible devices in a form that is cut": warn(
        "service-environment", "ASD-P05", "ASCEND_RT_VISIBLE_DEVICES='0, 1'", "Write it as 0,1,2",
        lambda m: m.setenv(ASCEND_RT_VISIBLE_DEVICES="0, 1")),
    "no library path": fail(
        "vendor-libraries", "ASD-G24", "libhccl.so is not on the library path; a copy is at", "sourcing it in a shell",
        lambda m: (m.remove(f"{TOOLKIT}/lib64/libhccl.so"), m.write(f"{TOOLKIT}/runtime/lib64/libhccl.so"))),
    "a stub before the driver": fail(
        "vendor-libraries", "ASD-G25", "a stub for compiling (ACL error 100039)", "drop the devlib",
        lambda m: (m.write(f"{DEVLIB}/libascend_hal.so"), m.setenv(LD_LIBRARY_PATH=f"{DEVLIB}:" + m.environ["LD_LIBRARY_PATH"]))),
    "a library that is cut short": fail(
        "vendor-libraries", "ASD-G24", "libgraph.so is not a whole shared library", "Install the package",
        lambda m: (m.remove(f"{TOOLKIT}/lib64/libgraph.so"), m.write(f"{TOOLKIT}/lib64/libgraph.so", "\x7fELF"))),
    "no driver library": fail(
        "vendor-libraries", "ASD-G24", "libascend_hal.so is not on the library path", "EnvironmentFile",
        lambda m: m.remove(f"{ASCEND}/driver/lib64/driver/libascend_hal.so")),
    "nnal not installed": warn(
        "nnal", "ASD-G30", "nnal is not installed", "Install the nnal package",
        lambda m: (m.remove(f"{ASCEND}/nnal"),
                   m.setenv(ATB_HOME_PATH=None, LD_LIBRARY_PATH=m.environ["LD_LIBRARY_PATH"].rpartition(":")[0]))),
    "nnal not sourced": warn(
        "nnal", "ASD-G30", "libatb.so is not on the library path", "nnal/atb/set_env.sh",
        lambda m: m.setenv(LD_LIBRARY_PATH=m.environ["LD_LIBRARY_PATH"].rpartition(":")[0])),
    "nnal of another release": warn(
        "nnal", "ASD-G77", "nnal 8.0.0 is not of the release of CANN 8.2.RC1", "nnal package of CANN 8.2.RC1", lambda m: nnal(m, "8.0.0")),
    "ACL without memory": fail(
        "acl-runtime", "ASD-D01", "aclrtMalloc failed: ACL_ERROR_RT_MEMORY_ALLOCATION 207001", "", lambda m: m.setenv(FAKE_ACL_FAULT="aclrtMalloc=207001")),
    "a device that cannot be opened": fail(
        "acl-runtime", "ASD-D01", "ACL_ERROR_RT_DEV_SETUP_ERROR 507033", "", lambda m: m.setenv(FAKE_ACL_FAULT="aclrtSetDevice=507033")),
    "device memory that changes": fail(
        "acl-runtime", "ASD-D01", "first difference at byte 4097", "plog", lambda m: m.setenv(FAKE_ACL_FAULT="corrupt")),
    "a runtime that crashes": fail(
        "acl-runtime", "ASD-D01", "the call ended its process with signal 11", "plog", lambda m: m.setenv(FAKE_ACL_FAULT="aclrtSetDevice=crash")),
    # Links, ports, places.
    "a link that is down": warn(
        "hccl-link", "ASD-G41", "chip 3: link DOWN", "Check cable", lambda m: m.replay("hccn_tool", "-i 3 -link -g", "abn-hccn-link-down.txt")),
    "a link that flaps on a port": warn(
        "hccl-link", "ASD-G41", "chip 0: link PARTIAL LINK (port 5 DOWN, port 6 PARTIAL UP)", "Check cable",
        lambda m: m.replay("hccn_tool", "-i 0 -link -g", "hccn-950-port-link-partial.txt")),
    "a network that does not answer": warn(
        "hccl-link", "ASD-G41", "chip 2: network Unreachable", "netdetect",
        lambda m: m.replay("hccn_tool", "-i 2 -net_health -g", "abn-hccn-net-health-unreachable.txt")),
    "a link that cannot be read": error(
        "hccl-link", "ASD-G41", "chip 6: hccn_tool said: Command execute failed!", "by hand",
        lambda m: m.answer("hccn_tool", "-i 6 -link -g", HCCN_FAILS, 1)),
    "TLS on for one chip": fail(
        "hccl-tls", "ASD-G46", "TLS is on for chips 5 and off for 0, 1, 2, 3, 4, 6, 7", "Switch it alike",
        lambda m: m.edit_answer("hccn_tool", "-i 5 -tls -g", "switch[0]", "switch[1]")),
    "HCCL's port taken": fail(
        "hccl-ports", "ASD-G44", "port 60007 has a listener", "HCCL_IF_BASE_PORT", lambda m: listen(m, 60007)),
    "HCCL's ports not reserved": warn(
        "hccl-ports", "ASD-G44", "may give port 60000-60031 to a client", "ip_local_reserved_ports",
        lambda m: m.write("proc/sys/net/ipv4/ip_local_reserved_ports", "\n")),
    "chips that do not reach each other": fail(
        "npu-topology", "ASD-G54", "how NPU 0 and 1 reach each other is not known", "A link between the chips is broken",
        lambda m: m.edit_answer("npu-smi", "info -t topo", "NPU0       X          HCCS", "NPU0       X          NA  ")),
    "a topology that is cut short": error(
        "npu-topology", "ASD-P04", "printed no whole matrix", "", lambda m: m.answer("npu-smi", "info -t topo", texts.recording("topo-910B3-8npu.txt")[:500])),
    "CPUs near a chip offline": warn(
        "numa-affinity", "ASD-H01", "all CPUs near NPU 0 chip 0 (0000:C1:00.0) (144-167) are offline", "Bring those CPUs online",
        lambda m: m.write("sys/devices/system/cpu/online", "0-143\n")),
    "a service far from its chips": warn(
        "numa-affinity", "ASD-H01", "this process may use 0-23", "Widen CPUAffinity=",
        lambda m: m.edit("proc/self/status", "0-191", "0-23")),
    # What the kernel saw.
    "a chip that the driver found dead": fail(
        "kernel-log", "ASD-G13", "the driver found a chip dead", "reset the chip", lambda m: log_line(m, "device(2) is not working.")),
    "a card lost by the bus": fail(
        "kernel-log", "ASD-G55", "a card fell off the PCIe bus", "Power-cycle",
        lambda m: log_line(m, "pcieport 0000:c0:00.0: pciehp: Slot(5): Link Down")),
    "an uncorrected error of the bus": fail(
        "kernel-log", "ASD-G55", "could not correct", "reseat",
        lambda m: log_line(m, "pcieport 0000:c0:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer")),
    "corrected errors of the bus": warn(
        "kernel-log", "ASD-G55", "the PCIe bus corrected errors", "Watch the number",
        lambda m: log_line(m, "pcieport 0000:c0:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer")),
    "host memory that failed": fail(
        "kernel-log", "ASD-H01", "the host's own memory had errors", "DIMM", lambda m: log_line(m, "EDAC MC0: 1 UE on DIMM_A1 (channel:0)")),
    "a kernel log that may not be read": error(
        "kernel-log", "ASD-P05", "the kernel log cannot be read", "as root",
        lambda m: (m.answer("journalctl", JOURNAL, "", 1), m.answer("dmesg", "", "dmesg: read kernel buffer failed: Operation not permitted\n", 1))),
    # The host below.
    "too little host memory": warn(
        "host-memory", "ASD-H04", "only 0.2 GiB free", "Free memory",
        lambda m: m.edit("proc/meminfo", f"MemAvailable: {1400 * 2**20} kB", f"MemAvailable: {2**18} kB")),
}  # fmt: skip


def permit(machine: FakeMachine, **versions: str) -> None:
    """Have the site permit a pair of versions."""
    rows = [{**versions, "reason": "tested here, ticket 4711"}]
    machine.write("etc/ascendd/policy.json", json.dumps({"permit": rows}))


def nnal(machine: FakeMachine, version: str) -> None:
    """Have nnal of another release."""
    machine.write(f"{ASCEND}/nnal/atb/8.2.RC1/version.info", texts.NNAL_INFO.format(version=version))


def listen(machine: FakeMachine, port: int) -> None:
    """Have a process listen on a TCP port."""
    row = f"   0: 00000000:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n"
    machine.write("proc/net/tcp", (machine.root / "proc/net/tcp").read_text() + row)
