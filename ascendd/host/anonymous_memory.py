"""Anonymous memory of a process: what no file backs, which is what a leak makes grow. From /proc/PID/smaps."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# A line that begins a mapping: addresses, permissions, offset, device, inode, and what is mapped, if it has a name.
_MAPPING = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")
# A private mapping of it is anonymous memory with a name, by which the KV cache of a CPU is told apart.
ZERO_DEVICE = Path("/dev/zero")


@dataclass(frozen=True)
class AnonymousMemory:
    """
    Bytes of anonymous memory that a process has, those that were swapped out included.

    `private_bytes` is all but `mapped_zero_bytes`, the pages of mappings of /dev/zero that came with their first use.
    """

    private_bytes: int
    mapped_zero_bytes: int


def anonymous_memory(pid: int, proc: Path = _PROC) -> AnonymousMemory | None:
    """Return what `pid` alone has now, or None where it is gone or may not be read."""
    try:
        text = (proc / str(pid) / "smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return parse_smaps(text)


def parse_smaps(text: str) -> AnonymousMemory:
    """Return the sums over the mappings in `text`, which is that of an smaps file."""
    sums = {False: 0, True: 0}
    is_zero = False
    for line in text.splitlines():
        if (mapping := _MAPPING.match(line)) is not None:
            is_zero = mapping[1] == str(ZERO_DEVICE)
        elif line.startswith(("Anonymous:", "Swap:")):
            sums[is_zero] += int(line.split()[1]) * 1024
    return AnonymousMemory(private_bytes=sums[False], mapped_zero_bytes=sums[True])
