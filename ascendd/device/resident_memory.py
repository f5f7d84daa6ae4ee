"""The process's resident memory at its highest, as Linux counts it; for devices whose memory is the host's."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

# Writing this to clear_refs sets the high-water mark back to what is resident now (proc(5)).
_RESET_PEAK = "5"


def resident_peak(work: Callable[[], None], proc: Path = Path("/proc/self")) -> int:
    """
    Run `work` and return by how many bytes it raised the resident set at its highest.

    Coarse by nature: pages that malloc kept from earlier work and uses again do not show, pages of code that are
    touched for the first time do, and threads report their pages in batches of 64. Where the mark cannot be set back
    (the service may not write clear_refs), only what exceeds the highest point before counts, which is less or nothing.
    """
    with contextlib.suppress(OSError):
        (proc / "clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    before = _read(proc)
    work()
    return max(0, _read(proc)["VmHWM"] - max(before["VmHWM"], before["VmRSS"]))


def resident_bytes(proc: Path = Path("/proc/self")) -> int:
    """Return the resident set of this process, bytes."""
    return _read(proc)["VmRSS"]


def _read(proc: Path) -> dict[str, int]:
    """Return VmHWM and VmRSS in bytes; 0 where the kernel does not tell."""
    text = (proc / "status").read_text(encoding="ascii", errors="replace")
    found = {match[1]: int(match[2]) * 1024 for match in re.finditer(r"^(VmHWM|VmRSS):\s+(\d+) kB", text, re.MULTILINE)}
    return {"VmHWM": found.get("VmHWM", 0), "VmRSS": found.get("VmRSS", 0)}
