"""
The smaller outputs of npu-smi: `-l`, `-m`, `-t proc-mem`, `-t usages` and the like, `watch`, a reset. Pure.

Blocks of `key : value` lines close with `Chip ID`, or open with it where the tool names one chip; tables are read by
their header labels, which are set apart by two blanks or more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from ascendd.errors import ProbeParseError, ProbeUnavailable

_ABSENT = ("-", "NA", "")
_PROCESS = re.compile(r"Process id\s*:\s*(\d+)\s+Process name\s*:\s*(.*?)\s+Process memory\(MB\)\s*:\s*(\d+)")
_WATCH_LABELS = (
    "NpuID(Idx)", "ChipId(Idx)", "Pwr(W)", "Temp(C)", "AI Core(%)", "AI Cpu(%)", "Ctrl Cpu(%)", "Memory(%)",
    "Memory BW(%)",
)  # fmt: skip
_LOCKED = "Another user is resetting"


@dataclass(frozen=True)
class MappedChip:
    """One chip of `npu-smi info -m`: where the three numberings meet. `phy_id` is None where it is not printed."""

    npu_id: int
    chip_id: int
    logic_id: int
    phy_id: Optional[int]
    name: str


@dataclass(frozen=True)
class ProcessMemory:
    """One process of `npu-smi info -t proc-mem`; memory in MB as printed."""

    pid: int
    name: str
    memory_mb: int


def parse_cards(text: str) -> Dict[int, Dict[str, str]]:
    """Parse `npu-smi info -l` into the fields of each card by NPU id. ProbeUnavailable where there is no card."""
    if "There is no NPU card" in text:
        raise ProbeUnavailable("npu-smi said: There is no NPU card on this server.")
    cards: Dict[int, Dict[str, str]] = {}
    count, current = None, None
    for key, value in _pairs(text):
        if key in ("Total Count", "Card Count") and value.isdigit():
            count = int(value)
        elif key == "NPU ID" and value.isdigit():
            current = cards.setdefault(int(value), {})
        elif current is not None:
            current[key] = value
    if count is None or count != len(cards):
        raise ProbeParseError(f"npu-smi info -l names {count} card(s) and lists {len(cards)}")
    return cards


def parse_mapping(text: str) -> Tuple[MappedChip, ...]:
    """Parse `npu-smi info -m`; the management controller (`Mcu`) is no chip. Raises ProbeParseError."""
    labels: Optional[List[str]] = None
    chips = []
    for line in text.splitlines():
        words = [word for word in re.split(r"\s{2,}|\t", line.strip()) if word]
        if labels is None:
            if words[:1] == ["NPU ID"] and "Chip Name" in words:
                labels = words
            continue
        row = dict(zip(labels, words))
        if len(words) != len(labels) or row["Chip Name"].lower() == "mcu":
            continue
        ids = {key: _whole(row.get(key)) for key in ("NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID")}
        npu_id, chip_id, logic_id = ids["NPU ID"], ids["Chip ID"], ids["Chip Logic ID"]
        if npu_id is None or chip_id is None or logic_id is None:
            continue
        chips.append(MappedChip(npu_id, chip_id, logic_id, ids["Chip Phy-ID"], row["Chip Name"]))
    if not chips:
        raise ProbeParseError("npu-smi info -m printed no chip that can be read")
    return tuple(chips)


def parse_readings(text: str) -> Dict[int, Dict[str, float]]:
    """Parse the numbers of `-t usages`, `memory`, `common` or `power` by chip id; other values are left out."""
    chips: Dict[int, Dict[str, float]] = {}
    readings: Dict[str, float] = {}
    chip_id: Optional[int] = None
    for key, value in _pairs(text):
        if key == "Chip ID" and value.isdigit():
            if readings:  # closes its block
                chips[int(value)], readings, chip_id = readings, {}, None
            else:  # opens it
                chip_id = int(value)
        elif key not in ("NPU ID", "Chip Count") and re.fullmatch(r"\d+(?:\.\d+)?", value, re.ASCII):
            readings[key] = float(value)
    if readings and chip_id is not None:
        chips[chip_id] = readings
    if not chips:
        raise ProbeParseError("npu-smi printed no reading of a chip")
    return chips


def parse_process_memory(text: str) -> Tuple[ProcessMemory, ...]:
    """Parse `npu-smi info -t proc-mem`; empty where nothing runs. Raises ProbeParseError without the chip's ids."""
    keys = {key for key, _ in _pairs(text)}
    if not {"NPU ID", "Chip ID"} <= keys:
        raise ProbeParseError("npu-smi info -t proc-mem names no chip")
    return tuple(ProcessMemory(int(m[1]), m[2], int(m[3])) for m in _PROCESS.finditer(text))


def parse_watch(text: str) -> Tuple[Dict[str, Optional[float]], ...]:
    """Parse what `npu-smi info watch` printed until it was killed: one row of readings a chip and round."""
    rows = []
    is_header_seen = False
    for line in text.splitlines():
        if all(label in line for label in _WATCH_LABELS):
            is_header_seen = True
            continue
        words = line.split()
        if is_header_seen and len(words) == len(_WATCH_LABELS) and words[0].isdigit() and words[1].isdigit():
            rows.append({label: _number(word) for label, word in zip(_WATCH_LABELS, words)})
    if not is_header_seen:
        raise ProbeParseError("npu-smi info watch printed no header that is known")
    return tuple(rows)


def count_reset_prompts(text: str) -> int:
    """Return how often a reset asked to go on; A3 and the 300I Duo ask twice."""
    return len(re.findall(r"\(Y/N\)|\[y/n\]", text))


def parse_reset(text: str) -> bool:
    """Tell whether a reset is done; ProbeUnavailable where somebody else resets, ProbeParseError for anything else."""
    if _LOCKED in text:
        raise ProbeUnavailable("npu-smi said: Another user is resetting the NPU(s). Please try again later.")
    fields = _pairs(text)
    if ("Status", "OK") in fields and any("success" in value for key, value in fields if key == "Message"):
        return True
    if any(key == "Status" for key, _ in fields):
        return False
    raise ProbeParseError("npu-smi set -t reset printed no status")


def _pairs(text: str) -> List[Tuple[str, str]]:
    pairs = []
    for line in text.splitlines():
        key, separator, value = line.partition(" : ")
        if separator:
            pairs.append((key.strip(), value.strip()))
    return pairs


def _whole(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _number(text: str) -> Optional[float]:
    if text in _ABSENT:
        return None
    try:
        return float(text)
    except ValueError:
        return None
