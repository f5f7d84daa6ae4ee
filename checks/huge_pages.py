"""Huge pages: none are reserved that nobody uses, and the kernel does not stop a process to make some."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional

from ascendd.errors import ProbeParseError
from ascendd.host.files import HostFiles
from ascendd.preflight.check import CheckResult, Finding, HostCheck, Remedy, Verdict, conclude
from ascendd.preflight.context import CheckContext

HOST = "ASD-H01"
# Reserved pages are taken out of what everybody else can have.
MOST_IDLE_SHARE = 0.1
_FOLDER = "/sys/kernel/mm/transparent_hugepage"
_CHOICES = ("always", "madvise", "never", "defer", "defer+madvise")
_CHOSEN = re.compile(r"\[([\w+-]+)\]")


@dataclass(frozen=True)
class Pages:
    """Pages reserved and free, the bytes of one, all memory, and the kernel's two choices on transparent ones."""

    num_reserved: int
    num_free: int
    page_bytes: int
    memory_bytes: int
    transparent: Optional[str] = None
    defragment: Optional[str] = None


class HugePages(HostCheck):
    """Huge pages hold back no memory and cost no pauses."""

    id = "huge-pages"
    title = "Huge pages"

    def run(self, context: CheckContext) -> CheckResult:
        """Read /proc/meminfo and what the kernel is set to."""
        return judge(measure(context.files))


def measure(files: HostFiles) -> Pages:
    """Read the counts. Raises ProbeUnavailable or ProbeParseError without /proc/meminfo."""
    text = files.read_text("/proc/meminfo")
    values = {match[1]: int(match[2]) for match in re.finditer(r"^(\w+):\s+(\d+)", text, re.MULTILINE)}
    # A kernel without huge pages has none of their lines; half of them is half of the file.
    pages = [key for key in ("HugePages_Total", "HugePages_Free", "Hugepagesize") if key in values]
    if "MemTotal" not in values or not text.endswith("\n") or len(pages) not in (0, 3):
        raise ProbeParseError("/proc/meminfo holds no MemTotal, or only a part of what the kernel tells")
    return Pages(
        num_reserved=values.get("HugePages_Total", 0),
        num_free=values.get("HugePages_Free", 0),
        page_bytes=values.get("Hugepagesize", 0) * 1024,
        memory_bytes=values["MemTotal"] * 1024,
        transparent=_chosen(files, f"{_FOLDER}/enabled"),
        defragment=_chosen(files, f"{_FOLDER}/defrag"),
    )


def judge(pages: Pages) -> CheckResult:
    """Decide; neither stops a service."""
    idle = pages.num_free * pages.page_bytes
    evidence = {
        "reserved": pages.num_reserved,
        "free": pages.num_free,
        "page_bytes": pages.page_bytes,
        "idle_bytes": idle,
        "transparent": pages.transparent,
        "defrag": pages.defragment,
    }
    findings: List[Finding] = []
    if idle > pages.memory_bytes * MOST_IDLE_SHARE:
        said = f"{pages.num_free} reserved huge pages are unused and hold back {idle / 2**30:.1f} GiB of memory"
        text = (
            "Give them back: sysctl -w vm.nr_hugepages=0, and the same in /etc/sysctl.d, unless something needs them."
        )
        findings.append(_finding(said, text, "sysctl vm.nr_hugepages"))
    if pages.transparent == "always" and pages.defragment == "always":
        said = "the kernel stops any process to make huge pages for it (transparent huge pages and defrag: always)"
        text = "Let it make them in the background: echo madvise > /sys/kernel/mm/transparent_hugepage/defrag."
        findings.append(_finding(said, text, f"cat {_FOLDER}/defrag"))
    told = f"transparent huge pages: {pages.transparent}" if pages.transparent else "no transparent huge pages here"
    return conclude(findings, f"{pages.num_reserved} reserved; {told}", evidence)


def _chosen(files: HostFiles, path: str) -> Optional[str]:
    """Return the word in brackets; None where the kernel has no such choice."""
    text = files.read_optional(path)
    match = _CHOSEN.search(text or "")
    if text is not None and (match is None or match[1] not in _CHOICES):
        raise ProbeParseError(f"{path} names no choice that is known: {text.strip()[:40]!r}", path=path)
    return match[1] if match else None


def _finding(said: str, text: str, command: str) -> Finding:
    return Finding(Verdict.WARN, said, Remedy(HOST, text, (command,)))
