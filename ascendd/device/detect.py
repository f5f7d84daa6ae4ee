"""The one place that turns a configured kind of device into a Device."""

from __future__ import annotations

from ascendd.device.base import Device
from ascendd.errors import DeviceUnavailable


def make_device(kind: str) -> Device:
    """
    Return the device for `auto`, `cpu`, `npu` or `cuda`; implementations are imported only when chosen.

    Raises DeviceUnavailable for a kind whose kernels this version does not have.
    """
    if kind in ("auto", "cpu"):
        from ascendd.device.cpu import CpuDevice

        return CpuDevice()
    raise DeviceUnavailable(
        f"device {kind} has no kernels in this version; the engine runs on cpu",
        remedy="Write `device: cpu` (or auto) in the engine section.",
        device=kind,
    )
