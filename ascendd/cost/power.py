"""PowerMeter: the power that an instance draws, from the best source that this host has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from ascendd.host.files import HostFiles

# The kernel's power capping interface, https://docs.kernel.org/power/powercap/powercap.html; a package of a CPU each.
_RAPL = "/sys/class/powercap"
# An estimate for a server core at work, where nothing can be measured: about a 200 W package of 24 cores.
WATTS_A_CORE = 8.0


class Power(NamedTuple):
    """Watts, and where they come from: configured, npu-smi, rapl or estimate."""

    watts: float
    source: str


class PowerMeter:
    """
    Reads the power at each call of `read`.

    Sources in this order: what the instance file says; the chips of the instance by npu-smi, plus the file's
    `base_power_w` for the host around them; RAPL's energy counters since the call before, of the whole host, where
    this user may read them; else busy cores x 8 W.
    """

    def __init__(
        self,
        files: HostFiles,
        configured_w: float | None,
        base_w: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._configured_w = configured_w
        self._base_w = base_w
        self._clock = clock
        self._rapl: tuple[float, dict[str, int]] | None = None

    def read(self, chips_w: float | None, busy_cores: float) -> Power:
        """Return the power now; `chips_w` is that of the instance's chips, None where it has none or is not known."""
        if self._configured_w is not None:
            return Power(self._configured_w, "configured")
        if chips_w is not None:
            return Power(chips_w + self._base_w, "npu-smi")
        measured_w = self._from_rapl()
        if measured_w is not None:
            return Power(measured_w + self._base_w, "rapl")
        return Power(busy_cores * WATTS_A_CORE + self._base_w, "estimate")

    def _from_rapl(self) -> float | None:
        """Return the mean power of all packages since the last call; None without a counter or a call before."""
        now_s, counters = self._clock(), self._counters()
        before, self._rapl = self._rapl, (now_s, counters)
        if before is None or not counters or before[1].keys() != counters.keys() or now_s <= before[0]:
            return None
        grown = [counters[name] - before[1][name] for name in counters]
        if min(grown) < 0:  # a counter began again from 0
            return None
        return sum(grown) / 1e6 / (now_s - before[0])

    def _counters(self) -> dict[str, int]:
        found = {}
        # intel-rapl:N are packages; intel-rapl:N:M are parts of them. AMD's driver has the same names.
        for name in self._files.list_if_possible(_RAPL, "intel-rapl:[0-9]*"):
            if name.count(":") == 1:
                text = (self._files.read_if_possible(f"{_RAPL}/{name}/energy_uj") or "").strip()
                if text.isdigit():
                    found[name] = int(text)
        return found
