"""
Whether the devices of an engine that ended are free again. Pure: readings and the time go in, a verdict comes out.

A start before that meets a device that is still held ("HCCP busy", out of memory at open) and fails of it. Proven means
that no process of the old engine is left, none has a chip of the instance open, the memory of each chip is back at what
it was before the first start, and on an NPU some seconds have passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ascendd.host.npu_smi_table import BAD

# Memory of a chip may differ by this much between two readings of an idle chip.
MARGIN_MB = 512
# An NPU that was left is not ready for another process at once.
NPU_WAIT_S = 10.0


@dataclass(frozen=True)
class DeviceReading:
    """
    What was seen at one moment. `holders` are processes that keep a device, as people know them, with their chip.

    `used_mb` and `health` go by the chip's label; both are empty where there is no chip to ask about, or where it could
    not be asked: then `problem` says why.
    """

    holders: tuple[str, ...] = ()
    used_mb: Mapping[str, int] = field(default_factory=dict)
    health: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Verdict:
    """
    Whether the next engine may start; else what is waited for.

    `is_faulty`: a chip reports a fault of its own. `is_leaked`: memory is in use that no process has.
    """

    is_free: bool
    text: str = ""
    is_faulty: bool = False
    is_leaked: bool = False


class ReleaseProof:
    """Judges readings of one instance against `baseline`, the one from before its first engine."""

    def __init__(self, device_kind: str) -> None:
        self._min_wait_s = NPU_WAIT_S if device_kind == "npu" else 0.0
        self.baseline = DeviceReading()

    def judge(self, reading: DeviceReading, since_s: float, *, checks_device: bool = False) -> Verdict:
        """Return what `reading`, taken `since_s` seconds after the end, says; of the health only if `checks_device`."""
        # Whoever was there before the first start is none of ours.
        holders = [holder for holder in reading.holders if holder not in self.baseline.holders]
        if holders:
            return Verdict(False, f"the device is still held by {', '.join(holders)}")
        for label, used_mb in reading.used_mb.items():
            before_mb = self.baseline.used_mb.get(label)
            if before_mb is not None and used_mb > before_mb + MARGIN_MB:
                return Verdict(
                    False,
                    f"{label} has {used_mb} MB in use, {before_mb} MB before the first start; seen with nobody",
                    is_leaked=True,
                )
        if checks_device:
            for label, health in reading.health.items():
                if health in BAD:
                    return Verdict(False, f"{label} reports health {health}", is_faulty=True)
        if since_s < self._min_wait_s:
            return Verdict(False, f"the device is given {self._min_wait_s:g} s to be released")
        return Verdict(True)
