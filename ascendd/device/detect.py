"""The one place that turns a configured kind of device into a Device."""

from __future__ import annotations

from ascendd.device.base import Device
from ascendd.errors import DeviceUnavailable
from ascendd.host.files import HostFiles
from ascendd.host.pci import find_pci_npus


def make_device(kind: str, index: int = 0) -> Device:
    """
    Return device `index` of those this process sees, for `auto`, `cpu`, `npu` or `cuda`; each is imported when chosen.

    `auto` takes the NPU where the host has one, and never a GPU. Raises DeviceUnavailable for an unknown kind, where a
    GPU or torch's CUDA is missing, and where an NPU is there and cannot be used: serving from the CPU while chips stand
    idle would be a silent tenth of what the operator paid for.
    """
    if kind == "auto":
        kind = _best_kind()
    if kind == "cpu":
        from ascendd.device.cpu import CpuDevice

        return CpuDevice()
    if kind == "npu":
        from ascendd.device.npu import NpuDevice

        return NpuDevice(index)
    if kind == "cuda":
        from ascendd.device.cuda import CudaDevice

        return CudaDevice(index)
    raise DeviceUnavailable(
        f"device {kind} is none that the engine runs on",
        remedy="Write `device: auto`, `npu`, `cuda` or `cpu` in the engine section.",
        device=kind,
    )


def _best_kind() -> str:
    npus = find_pci_npus(HostFiles())
    if not npus:
        return "cpu"
    from ascendd.device.npu import why_unusable

    reason = why_unusable()
    if reason is None:
        return "npu"
    raise DeviceUnavailable(
        f"this host has {len(npus)} NPU functions ({npus[0].title}), and they cannot be used: {reason}",
        remedy="Run `ascendd doctor` and follow it; or write `device: cpu` in the engine section to serve from the CPU "
        "all the same.",
    )
