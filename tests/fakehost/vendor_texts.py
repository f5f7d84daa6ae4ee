"""
Texts of a healthy Atlas 800T A2 with eight 910B3 chips: version files as quoted in public repositories, and outputs of
npu-smi made of the recorded ones by repeating their rows for more chips.
"""

from __future__ import annotations

import re
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
RECORDINGS = FIXTURES / "npu-smi"

DRIVER_INFO = """Version=24.1.rc3
ascendhal_version=7.35.23
aicpu_version=1.0
Innerversion=V100R001C19SPC001B124
compatible_version=[V100R001C13],[V100R001C15],[V100R001C17],[V100R001C18],[V100R001C19]
compatible_version_fw=[7.0.0,7.5.99]
package_version=24.1.rc3
"""
FIRMWARE_INFO = """Version=7.5.0.2.220
firmware_version=1.0
package_version=24.1.rc3
compatible_version_drv=[23.0.0,23.0.0.],[24.0,24.0.],[24.1,24.1.]
"""
INSTALL_INFO = """UserName=HwHiAiUser
UserGroup=HwHiAiUser
Driver_Install_Type=full
Driver_Install_Path_Param=/usr/local/Ascend
Driver_Install_For_All=no
Driver_Install_Mode=normal
Driver_Install_Status=complete
Firmware_Install_Type=full
Firmware_Install_Path_Param=/usr/local/Ascend
"""
INSTALL_LOG = """[Driver] [2024-11-02 10:20:11] [INFO] ./Ascend-hdk-910b-npu-driver_24.1.rc3_linux-aarch64.run --full
[Firmware] [2024-11-02 10:31:56] [INFO] ./Ascend-hdk-910b-npu-firmware_7.5.0.2.220.run --full
"""
TOOLKIT_INFO = """package_name=Ascend-cann-toolkit
version={version}
innerversion=V100R001C22SPC001B231
compatible_version=[V100R001C15],[V100R001C18],[V100R001C19],[V100R001C20],[V100R001C21]
arch=aarch64
os=linux
path=/usr/local/Ascend/ascend-toolkit/{version}/aarch64-linux
"""
NNAL_INFO = """Ascend-cann-atb : {version}
Ascend-cann-atb Version : {version}.B010
Platform : aarch64
branch : {version}-br
commit id : 0
"""
OS_RELEASE = """NAME="openEuler"
VERSION="22.03 (LTS-SP4)"
ID="openEuler"
VERSION_ID="22.03"
PRETTY_NAME="openEuler 22.03 (LTS-SP4)"
"""
# Bus addresses and CPUs in the order of the chips; the CPUs are those of the recorded topology.
BUS_IDS = ("0000:c1:00.0", "0000:01:00.0", "0000:c2:00.0", "0000:02:00.0",
           "0000:81:00.0", "0000:41:00.0", "0000:82:00.0", "0000:42:00.0")  # fmt: skip
CPUS = ("144-167", "144-167", "96-119", "96-119", "0-23", "0-23", "48-71", "48-71")


def recording(name: str) -> str:
    """Return the text of one recording."""
    return (RECORDINGS / name).read_text()


def info_table(num_chips: int = 8) -> str:
    """Return the table of `npu-smi info` of idle 910B3 chips, made of the recorded one of two."""
    lines = recording("info-24.1.rc3-910B3-2npu-idle.txt").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| 0     910B3"))
    head, first, rule = lines[:start], lines[start : start + 2], lines[start + 2]
    process_head = lines[start + 6 : start + 9]
    idle = next(line for line in lines if "No running processes found in NPU 0" in line)
    rows, processes = [], []
    for chip in range(num_chips):
        rows += [
            first[0].replace("| 0 ", f"| {chip} ", 1),
            first[1].replace("0000:C1:00.0", BUS_IDS[chip].upper()),
            rule,
        ]
        processes += [idle.replace("NPU 0", f"NPU {chip}"), lines[-1]]
    return "\n".join([*head, *rows, *process_head, *processes]) + "\n"


def fields(name: str, npu_id: int, **changes: str) -> str:
    """Return a recorded key-value output for another NPU; `changes` replace values (blanks in keys as `_`)."""
    text = re.sub(r"(NPU ID +: )\d+", rf"\g<1>{npu_id}", recording(name))
    text = text.replace("0000:C1:00.0", BUS_IDS[npu_id].upper())
    for key, value in changes.items():
        text, found = re.subn(rf"({re.escape(key.replace('_', ' '))} +: ).*", rf"\g<1>{value}", text)
        assert found, f"{name} holds no {key}"
    return text


def health(npu_id: int) -> str:
    """Return `npu-smi info -t health` of a sound NPU."""
    return fields("t-health-910B3.txt", npu_id)
