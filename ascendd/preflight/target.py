"""The target of a doctor's round: an NPU instance or a CPU instance, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple

from ascendd.errors import ProbeError
from ascendd.host.device_nodes import has_chip_nodes
from ascendd.host.files import HostFiles
from ascendd.host.pci import PciNpu, find_pci_npus
from ascendd.host.version_files import DEFAULT_ROOT, INSTALL_INFO

# Stands in every report of a machine that is only a folder.
FAKE_HOST = "FAKE HOST"


class DeviceChoice(enum.Enum):
    """What the operator asked to have checked."""

    AUTO = "auto"  # What the configuration says, else what the host has.
    NPU = "npu"  # An NPU instance; its absence is a failure.
    CPU = "cpu"  # A CPU instance; NPU checks are skipped.


@dataclass(frozen=True)
class Target:
    """
    What is checked. `reason` and, for a CPU, `why_no_npu` are for the operator; `has_model`: one was named.

    `fake_root` is the folder of a fake host; then `reason` begins with FAKE HOST. `instance` is the name of one.
    """

    is_npu: bool
    reason: str
    why_no_npu: str = ""
    families: Tuple[str, ...] = ()
    has_model: bool = False
    fake_root: Optional[str] = None
    instance: Optional[str] = None


def choose_target(
    files: HostFiles, choice: DeviceChoice, configured: Optional[str], has_model: bool, instance: Optional[str] = None
) -> Target:
    """
    Decide between NPU and CPU. `configured` is engine.device of the configuration, None without one.

    Any trace of an NPU counts: a host whose card fell off the bus still has its driver and must not pass as a CPU host.
    """
    npus: Tuple[PciNpu, ...] = ()
    unknown: Optional[str] = None
    try:
        npus = find_pci_npus(files)
    except ProbeError as error:
        unknown = error.message
    families = tuple(sorted({npu.family for npu in npus}))
    fake_root = None if files.fake is None else files.root
    mark = "" if fake_root is None else f"{FAKE_HOST} {fake_root}: "

    def npu(reason: str) -> Target:
        return Target(True, mark + reason, "", families, has_model, fake_root, instance)

    def cpu(reason: str, why_no_npu: str) -> Target:
        return Target(False, mark + reason, why_no_npu, families, has_model, fake_root, instance)

    if choice is DeviceChoice.CPU:
        return cpu("--device cpu: checking what a CPU instance needs", "--device cpu")
    if choice is DeviceChoice.NPU:
        return npu("--device npu: checking what an NPU instance needs")
    if configured in ("cpu", "cuda"):
        said = f"the configuration says engine.device: {configured}"
        return cpu(f"{said}, so NPU checks do not apply", said)
    if configured == "npu":
        return npu("the configuration says engine.device: npu")
    if npus:
        return npu(f"{len(npus)} NPU function(s) on the PCI bus: {npus[0].title}")
    if has_chip_nodes(files):
        return npu("NPU device nodes found")
    if files.exists(INSTALL_INFO) or files.exists(f"{DEFAULT_ROOT}/driver/version.info"):
        return npu("an NPU driver is installed, so an NPU is expected")
    if unknown is not None:
        return npu(f"whether there is an NPU is not known: {unknown}")
    return cpu("no NPU found: checking what a CPU instance needs", "no NPU found")
