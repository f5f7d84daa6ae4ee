"""
Quarantine: which chips are left out because they do not work, and whether the instance can do without them. Pure.

A fault of a chip is counted where the engine named its rank; from the second one within the window on, the chip is left
out. So is one that stays at fault between two engines: in alarm, not listed any more, or reset in vain. With
`recovery.allow_smaller_parallel` the instance comes back with a tensor parallel size that the model allows and that
the other chips suffice for, degraded; without it, or where none is left, the instance fails with the fault.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ascendd.config.schema import InstanceConfig
from ascendd.ipc.messages import Fault
from ascendd.supervisor.backend import backend_of
from ascendd.supervisor.devices import npu_devices
from ascendd.supervisor.restart import FailureWindow

# One fault may be an accident; a restart of the group is what it gets.
MAX_FAULTS = 1
_REPEATED = "failed repeatedly"


class LeftOut(NamedTuple):
    """A chip that the instance goes on without, and what it did, as the end of a clause."""

    device: int
    why: str


@dataclass(frozen=True)
class Placement:
    """The chips of an instance by rank: `tp_size` x `pp_size` of them."""

    tp_size: int
    pp_size: int
    devices: tuple[int, ...]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def text(self) -> str:
        """A clause for people."""
        used = ", ".join(map(str, self.devices))
        reasons = [
            f"device {', '.join(str(one.device) for one in self.left_out if one.why == why)} {why}"
            for why in dict.fromkeys(one.why for one in self.left_out)
        ]
        return f"tensor parallel size {self.tp_size} on devices {used}, since {', '.join(reasons)}"


class Quarantine:
    """Remembers the faults of each chip within `window_s` seconds, and the chips that are left out for good."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._faults: dict[int, FailureWindow] = {}
        self.devices: dict[int, str] = {}

    def leave_out(self, device: int, why: str) -> None:
        """Go on without `device` from now on; what was said of it first stays."""
        self.devices.setdefault(device, why)

    def add(self, device: int, now_s: float) -> bool:
        """Count a fault of `device` at `now_s` (monotonic seconds); return whether it is left out from now on."""
        count = self._faults.setdefault(device, FailureWindow(self._window_s)).add(now_s)
        if count > MAX_FAULTS:
            self.leave_out(device, _REPEATED)
        return device in self.devices

    def placement(self, now: Placement, valid_tp_sizes: Sequence[int]) -> Placement | None:
        """
        Return where the instance can go on without the chips that are left out, None where it cannot.

        The largest of `valid_tp_sizes` (those that divide the model's heads) below the present one that the healthy
        chips of `now` suffice for; the pipeline size stays, since it decides which layers are on which rank.
        """
        healthy = [device for device in now.devices if device not in self.devices]
        for tp_size in sorted(valid_tp_sizes, reverse=True):
            num_devices = tp_size * now.pp_size
            if tp_size < now.tp_size and num_devices <= len(healthy):
                left_out = tuple(LeftOut(*item) for item in sorted(self.devices.items()))
                return Placement(tp_size, now.pp_size, tuple(healthy[:num_devices]), left_out)
        return None


class Chips:
    """The chips of an instance that may go on without some of them."""

    def __init__(self, placement: Placement, window_s: float, is_valid_tp: Callable[[int], bool]) -> None:
        self.placement = placement
        self._quarantine = Quarantine(window_s)
        self._is_valid_tp = is_valid_tp

    @classmethod
    def of(cls, config: InstanceConfig) -> Chips:
        """Return the chips that `config` names; the model says once it is asked which sizes it has."""
        parallel = config.parallel
        tp_size, pp_size = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        # Ascending, as the engine gets them: rank n has the n-th.
        devices = sorted(npu_devices(config, os.environ))

        fits = functools.partial(backend_of(config).fits, config)
        return cls(Placement(tp_size, pp_size, tuple(devices)), config.recovery.window_s, fits)

    def on_fault(self, fault: Fault | None, now_s: float) -> Placement | None:
        """Take a device's fault; return the placement to go on with where its chip is left out and one is left."""
        rank = None if fault is None else fault.facts.get("rank", 0 if len(self.placement.devices) == 1 else None)
        if not isinstance(rank, int) or not 0 <= rank < len(self.placement.devices):
            return None
        if not self._quarantine.add(self.placement.devices[rank], now_s):
            return None
        return self._place()

    def leave_out(self, reasons: Mapping[int, str]) -> Placement | None:
        """Take out the chips of `reasons`, which says what each does; return where to go on, None where nowhere."""
        in_use = {device: why for device, why in reasons.items() if device in self.placement.devices}
        for device, why in in_use.items():
            self._quarantine.leave_out(device, why)
        return self._place() if in_use else None

    def _place(self) -> Placement | None:
        sizes = [size for size in range(1, self.placement.tp_size) if self._is_valid_tp(size)]
        placement = self._quarantine.placement(self.placement, sizes)
        if placement is not None:
            self.placement = placement
        return placement
