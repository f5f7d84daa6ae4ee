"""Decisions that a pattern cannot take: whose memory it was, whether a device is held, whose error code a line has."""

from __future__ import annotations

import re
from collections.abc import Callable

# Shares of the device's memory from which a reading is no longer noise.
FOREIGN_SHARE = 0.1
OWN_SHARE = 0.8
FRAGMENTED_SHARE = 0.15
# An idle 910B holds about 5 % of its HBM for itself.
HELD_SHARE = 0.15

# What a classifier returns: the sign's suffix, or None where the line shows nothing, and facts for the text.
Classified = tuple[str | None, dict[str, str]]
Classifier = Callable[["re.Match[str]", str], Classified]

_UNITS = {"B": 1 / 2**30, "KiB": 2**-20, "MiB": 2**-10, "GiB": 1.0, "TiB": 2.0**10}
_SIZE = r"(\d+(?:\.\d+)?) (B|[KMGT]iB) "


def npu_oom(match: re.Match[str], before: str) -> Classified:
    """
    Tell by arithmetic who holds the memory of `NPU out of memory. Tried to allocate ...`.

    total - reserved - free belongs to other processes; much reserved and little allocated is fragmentation.
    """
    text = match.group(1)
    total, allocated, free, reserved = (
        _gib(text, words) for words in ("total capacity", "already allocated", "free", "reserved")
    )
    if total is None or total <= 0 or reserved is None:
        return "unknown", {}
    facts = {"total": f"{total:.1f}", "reserved": f"{reserved:.1f}"}
    if allocated is not None:
        facts["allocated"] = f"{allocated:.1f}"
    if free is not None and total - reserved - free > FOREIGN_SHARE * total:
        return "held_by_others", {**facts, "foreign": f"{total - reserved - free:.1f}"}
    if allocated is None:
        return "unknown", facts
    if reserved - allocated > FRAGMENTED_SHARE * total:
        return "fragmentation", facts
    return ("model_too_large" if allocated > OWN_SHARE * total else "unknown"), facts


def _gib(text: str, words: str) -> float | None:
    found = re.search(_SIZE + words, text)
    return float(found.group(1)) * _UNITS[found.group(2)] if found else None


def held_hbm(match: re.Match[str], before: str) -> Classified:
    """Tell whether the NPU without processes holds much memory, by its rows in the same `npu-smi info` table."""
    number = match.group(1)
    chip = re.compile(rf"\|\s*{number}\s+\S*(?:Ascend|910|310|950)\S*\s*\|[^\n]*(?:\n[^\n]*)?")
    rows = chip.findall(before + match.string[: match.start()])
    usages = re.findall(r"(\d+)\s*/\s*(\d{4,})", rows[-1]) if rows else []
    if not usages:
        return None, {}
    used, total = (int(figure) for figure in usages[-1])
    return ("yes" if used > HELD_SHARE * total else None), {"used": str(used), "total": str(total)}


def own_code(match: re.Match[str], before: str) -> Classified:
    """Return the error code of ascendd that the line carries."""
    return next((code.upper() for code in match.groups() if code), None), {}


CLASSIFIERS: dict[str, Classifier] = {"npu_oom": npu_oom, "held_hbm": held_hbm, "own_code": own_code}
