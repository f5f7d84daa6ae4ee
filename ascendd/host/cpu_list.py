"""Lists of CPUs as the kernel and npu-smi write them: `0-3,8,10-11`."""

from __future__ import annotations

import re
from typing import FrozenSet, Iterable, Optional, Set

# No machine has more; a damaged list must not fill the memory.
_MOST = 1 << 16
_LIST = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*", re.ASCII)


def parse_cpus(text: str) -> Optional[FrozenSet[int]]:
    """Return the numbers; none of an empty list, None of what is no list."""
    text = text.strip()
    if not text:
        return frozenset()
    if not _LIST.fullmatch(text):
        return None
    cpus: Set[int] = set()
    for part in text.split(","):
        low, _, high = part.partition("-")
        first, last = int(low), int(high or low)
        if last < first or last >= _MOST:
            return None
        cpus.update(range(first, last + 1))
    return frozenset(cpus)


def format_cpus(cpus: Iterable[int]) -> str:
    """Write numbers as the shortest list."""
    parts = []
    first = last = -2
    for cpu in [*sorted(cpus), -1]:
        if cpu == last + 1:
            last = cpu
            continue
        if first >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = cpu
    return ",".join(parts)
