"""Anonymous memory, and what of it is a mapping of /dev/zero."""

from __future__ import annotations

import mmap
import os

from ascendd.host.anonymous_memory import ZERO_DEVICE, AnonymousMemory, anonymous_memory, parse_smaps

SMAPS = """\
5589a0000000-5589a0021000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
Rss:                 100 kB
Anonymous:            96 kB
Swap:                  4 kB
SwapPss:               4 kB
7f1200000000-7f1240000000 rw-p 00000000 00:06 4                          /dev/zero
Size:            1048576 kB
Anonymous:          2048 kB
AnonHugePages:      2048 kB
Swap:                  0 kB
7f1250000000-7f1250800000 rw-p 00000000 00:00 0
Anonymous:            12 kB
Swap:                  0 kB
7f1260000000-7f1260100000 r-xp 00000000 08:01 131                        /usr/lib/x86_64-linux-gnu/libc.so.6 (deleted)
Rss:                1024 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
"""


def test_mappings_of_the_zero_device_are_told_apart() -> None:
    """Sums over all mappings, what was swapped out included; pages of files and huge pages count once or not at all."""
    assert parse_smaps(SMAPS) == AnonymousMemory(private_bytes=112 * 1024, mapped_zero_bytes=2048 * 1024)


def test_pages_count_from_their_first_use() -> None:
    """The kernel names a private mapping of /dev/zero, and gives its pages when they are written."""
    fd = os.open(ZERO_DEVICE, os.O_RDWR)
    with mmap.mmap(fd, 64 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE) as pages:
        os.close(fd)
        before = anonymous_memory(os.getpid())
        for at in range(0, 32 * mmap.PAGESIZE, mmap.PAGESIZE):
            pages[at] = 1

        after = anonymous_memory(os.getpid())

    assert before is not None
    assert after is not None
    assert after.mapped_zero_bytes - before.mapped_zero_bytes == 32 * mmap.PAGESIZE


def test_a_process_that_is_gone_has_none(tmp_path) -> None:
    """None, not an error: it may end at any time."""
    assert anonymous_memory(1, proc=tmp_path) is None
