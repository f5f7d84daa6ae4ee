"""The one place that turns a configured kind of device into a Device."""

from __future__ import annotations

from ascendd.device.base import Device
from ascendd.errors import DeviceUnavailable
from ascendd.host.files import HostFiles
from ascendd.host.pci import find_pci_npus


def make_device(kind: str) -> Device:
    """
    Return the device for `auto`, `cpu`, `npu` or `cuda`; implementations are imported only when chosen.

    Raises DeviceUnavailable for a kind whose kernels this version does not have.
    """
    if kind == "auto":
        npus = find_pci_npus(HostFiles())
        if npus:
            # Serving from the CPU while chips stand idle would be a silent tenth of what the operator paid for.
            raise DeviceUnavailable(
                f"this host has {len(npus)} NPU functions ({npus[0].title}), and this version has no NPU kernels",
                remedy="Write `device: cpu` in the engine section to serve from the CPU all the same.",
            )
        kind = "cpu"
    if kind == "cpu":
        from ascendd.device.cpu import CpuDevice

        return CpuDevice()
    raise DeviceUnavailable(
        f"device {kind} has no kernels in this version; the engine runs on cpu",
        remedy="Write `device: cpu` (or auto) in the engine section.",
        device=kind,
    )
