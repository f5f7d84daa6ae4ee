"""The kernel's log since the last start, and what in it speaks of a faulty chip; the patterns are data."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import List, Mapping, Pattern, Tuple

from ascendd.errors import ProbeError, ProbeParseError, ProbeTimeout, ProbeUnavailable
from ascendd.host.command import RunCommand
from ascendd.host.vendor_facts import load_facts

_TIMEOUT_S = 10.0
LONGEST_LINES = 20_000
_JOURNAL = ["journalctl", "-k", "-b", "-o", "short-monotonic", "--no-pager"]
# journalctl also keeps what the ring buffer has lost; dmesg needs no journal. The journal of a kernel that told more
# than a tool may print is read from its end: a ring buffer holds less.
_SOURCES = (_JOURNAL, [*_JOURNAL, "-n", str(LONGEST_LINES)], ["dmesg"])
# `[   12.345678] host kernel: ...`; without one such line it is something else that was printed.
_STAMP = re.compile(r"\[ *\d+\.\d+\]")


@dataclass(frozen=True)
class KernelFault:
    """One kind of fault: its id, how grave it is (`fail` or `warn`), what it means, what to do, and its lines."""

    id: str
    severity: str
    meaning: str
    remedy: str
    runbook: str
    count: int
    last_line: str


def read_kernel_log(run: RunCommand, environ: Mapping[str, str]) -> str:
    """Return the log, or its end where it is long. Raises ProbeUnavailable with the reasons where no tool shows it."""
    reasons: List[str] = []
    is_long = False
    for argv in _SOURCES:
        if len(argv) > len(_JOURNAL) and not is_long:
            continue
        try:
            outcome = run(argv, _TIMEOUT_S, environ)
        except ProbeError as error:
            is_long = isinstance(error, (ProbeParseError, ProbeTimeout))
            reasons.append(error.message)
            continue
        if outcome.status == 0 and _STAMP.search(outcome.stdout):
            return outcome.stdout
        said = (outcome.stderr.strip() or outcome.stdout.strip() or "nothing").splitlines()[0]
        reasons.append(f"{argv[0]} said: {said} (exit status {outcome.status})")
    raise ProbeUnavailable(
        "the kernel log cannot be read: " + "; ".join(reasons),
        remedy="Run the doctor as root, or give the user the group systemd-journal; "
        "in a unit: SupplementaryGroups=systemd-journal.",
    )


def find_faults(text: str) -> Tuple[KernelFault, ...]:
    """Return the kinds of fault that the log shows, in the order of the table."""
    found = []
    for row, pattern in _rules():
        lines = [line for line in text.splitlines() if pattern.search(line)]
        if lines:
            found.append(
                KernelFault(
                    row["id"],
                    row["severity"],
                    row["meaning"],
                    row["remedy"],
                    row["runbook"],
                    len(lines),
                    lines[-1].strip(),
                )
            )
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _rules() -> Tuple[Tuple[Mapping[str, str], Pattern[str]], ...]:
    return tuple((row, re.compile(row["pattern"], re.IGNORECASE)) for row in load_facts("kernel_faults")["rules"])
