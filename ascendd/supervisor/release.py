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
MISSING = "is not listed by npu-smi any more"


@dataclass(frozen=True)
class DeviceReading:
    """
    What was seen at one moment. `holders` are processes that keep a device, as people know them, with their chip.

    `used_mb`, `health` and `numbers`, the logical ones, go by the chip's label; all are empty where there is no chip to
    ask about, or where it could not be asked: then `problem` says why.
    """

    holders: tuple[str, ...] = ()
    used_mb: Mapping[str, int] = field(default_factory=dict)
    health: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True)
class Verdict:
    """
    Whether the next engine may start; else what is waited for.

    `is_faulty`: a chip reports a fault of its own, or is not listed any more: `is_missing`. `is_leaked`: memory is in
    use that no process has. `bad`: the logical numbers of these chips, and what each does.
    """

    is_free: bool
    text: str = ""
    is_faulty: bool = False
    is_leaked: bool = False
    is_missing: bool = False
    bad: Mapping[int, str] = field(default_factory=dict)


class ReleaseProof:
    """Judges readings of one instance against `baseline`, the one from before its first engine."""

    def __init__(self, device_kind: str) -> None:
        self._min_wait_s = NPU_WAIT_S if device_kind == "npu" else 0.0
        self.baseline = DeviceReading()

    def judge(
        self,
        reading: DeviceReading,
        since_s: float,
        *,
        checks_device: bool = False,
        unused: frozenset[int] = frozenset(),
    ) -> Verdict:
        """
        Return what `reading`, taken `since_s` seconds after the end, says; of the health only if `checks_device`.

        Chips of the logical numbers `unused` need not be listed.
        """
        # Whoever was there before the first start is none of ours.
        holders = [holder for holder in reading.holders if holder not in self.baseline.holders]
        if holders:
            return Verdict(False, f"the device is still held by {', '.join(holders)}")
        leaked = []
        for label, used_mb in reading.used_mb.items():
            before_mb = self.baseline.used_mb.get(label)
            if before_mb is not None and used_mb > before_mb + MARGIN_MB:
                leaked.append((label, f"has {used_mb} MB in use, {before_mb} MB before the first start"))
        if leaked:
            return Verdict(False, f"{_text(leaked)}; seen with nobody", is_leaked=True, bad=self._bad(leaked, reading))
        if checks_device and (faults := self._faults(reading, unused)):
            is_missing = any(why == MISSING for _label, why in faults)
            bad = self._bad(faults, reading)
            return Verdict(False, _text(faults), is_faulty=True, is_missing=is_missing, bad=bad)
        if since_s < self._min_wait_s:
            return Verdict(False, f"the device is given {self._min_wait_s:g} s to be released")
        return Verdict(True)

    def _faults(self, reading: DeviceReading, unused: frozenset[int]) -> list[tuple[str, str]]:
        before = self.baseline.numbers
        faults = [(label, f"reports health {health}") for label, health in reading.health.items() if health in BAD]
        if reading.problem is None:
            gone = [label for label, number in before.items() if label not in reading.numbers and number not in unused]
            faults += [(label, MISSING) for label in gone]
        return faults

    def _bad(self, faults: list[tuple[str, str]], reading: DeviceReading) -> dict[int, str]:
        numbers = {**reading.numbers, **self.baseline.numbers}
        return {numbers[label]: why for label, why in faults if label in numbers}


def _text(faults: list[tuple[str, str]]) -> str:
    return ", ".join(f"{label} {why}" for label, why in faults)
