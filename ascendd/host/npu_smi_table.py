"""
The table of `npu-smi info`, read by its header words. Pure.

Two physical lines make one chip. Which columns there are, and in what order, is learned from the two header lines;
widths and offsets differ between releases (seven layouts are known) and are never used:

    | NPU   Name      | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
    | Chip  Phy-ID    | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |

A cell that holds `used / total` is one value, however it is glued (`26840/ 32768`). A health word that the tool does
not know makes it drop the first line of a chip, so a second line may stand alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Tuple

from ascendd.errors import ProbeParseError

_TITLE = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")
_VALUE = re.compile(r"(?:\d+|NA|-)\s*/\s*(?:\d+|NA|-)|\S+")
_BUS_ID = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_TWO_WORDS = (("NPU ID", "NPU"), ("NPU Util(%)", "NPU-Util(%)"), ("Chip ID", "Chip"))
_ABSENT = ("", "-", "NA")
_NO_PROCESSES = "No running processes found"
_TOLD_NPU = re.compile(r"\|\s*(?:No running processes found in NPU\s+)?(\d+)\b")
# Releases whose tool has no process table.
_WITHOUT_PROCESSES = ("20.", "21.", "22.")

# Words for health with which a chip works, and with which it does not.
WELL = ("OK", "Warning")
BAD = ("Alarm", "Critical")


@dataclass(frozen=True)
class NpuChip:
    """One chip (on A3: one die). None means that the tool printed nothing for it; sizes are MB as printed."""

    npu_id: Optional[int]
    chip_id: Optional[int]
    phy_id: Optional[int]
    name: Optional[str]
    health: Optional[str]
    bus_id: Optional[str]
    power_w: Optional[float]
    temperature_c: Optional[int]
    hbm_used_mb: Optional[int]
    hbm_total_mb: Optional[int]
    memory_used_mb: Optional[int]
    memory_total_mb: Optional[int]
    has_hbm_column: bool
    utilization_percent: Optional[int] = None

    @property
    def label(self) -> str:
        """How an operator finds the chip again: `NPU 3 chip 0 (0000:C1:00.0)`."""
        place = f" ({self.bus_id})" if self.bus_id else ""
        return f"NPU {_or_unknown(self.npu_id)} chip {_or_unknown(self.chip_id)}{place}"

    @property
    def physical_id(self) -> Optional[int]:
        """The id that hccn_tool and /dev/davinciN go by: of the die on A3, else of the NPU."""
        return self.npu_id if self.phy_id is None else self.phy_id


@dataclass(frozen=True)
class NpuProcess:
    """One process that holds a chip. The name is cut to 15 characters and may be empty."""

    npu_id: int
    chip_id: Optional[int]
    pid: int
    name: str
    memory_mb: Optional[int]
    container_pid: Optional[int]


@dataclass(frozen=True)
class NpuSmiReport:
    """What `npu-smi info` said. `notes` are lines of no table; `complete` is False when it was cut short."""

    tool_version: str
    driver_version: str
    chips: Tuple[NpuChip, ...]
    processes: Tuple[NpuProcess, ...]
    notes: Tuple[str, ...]
    complete: bool


def parse_info(text: str) -> NpuSmiReport:
    """Parse the output of `npu-smi info`. Raises ProbeParseError when it holds no such table."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    title = next((match for match in map(_TITLE.search, lines) if match), None)
    header_at = next((i for i, line in enumerate(lines) if line.startswith("|") and "Health" in line), None)
    if title is None or header_at is None or header_at + 1 >= len(lines):
        shown = lines[0] if lines else "(nothing)"
        raise ProbeParseError(
            f"npu-smi info printed no table that is known; its first line: {shown[:120]}", output=text[:2000]
        )
    first_header, second_header = _header(lines[header_at]), _header(lines[header_at + 1])
    process_at = next((i for i, line in enumerate(lines) if line.startswith("|") and "Process id" in line), len(lines))
    chips = [_chip(group, first_header, second_header) for group in _groups(lines[header_at + 2 : process_at])]
    processes, told = [], set()
    if process_at < len(lines):
        told = {int(match[1]) for match in map(_TOLD_NPU.match, lines[process_at + 1 :]) if match}
        process_header = _process_header(lines[process_at])
        processes = [process for line in lines[process_at + 1 :] for process in _process(line, process_header)]
    last = next((line for line in reversed(lines) if line[0] in "+|"), "")
    closed = last.startswith("+") and last.endswith("+") and len(last) > 1
    # A cut right behind a rule looks like an end; but the process table has a line for every NPU.
    if process_at == len(lines):
        closed = closed and title[1].startswith(_WITHOUT_PROCESSES)
    else:
        closed = closed and told >= {chip.npu_id for chip in chips if chip.npu_id is not None}
    notes = tuple(line for line in lines if line[0] not in "+|")
    return NpuSmiReport(title[1], title[2], tuple(chips), tuple(processes), notes, closed)


def _header(line: str) -> List[List[str]]:
    for words, word in _TWO_WORDS:
        line = line.replace(words, word)
    return [cell.split() for cell in _cells(line)]


def _cells(line: str) -> List[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _groups(lines: List[str]) -> Iterator[List[str]]:
    """Yield the one or two lines of each chip; lines of dashes or equal signs stand between chips."""
    group: List[str] = []
    for line in [*lines, "+"]:
        if not line.startswith("|"):
            if group:
                yield group
            group = []
        elif _NO_PROCESSES not in line:
            if len(group) == 2:
                yield group
                group = []
            group.append(line)


def _chip(group: List[str], first_header: List[List[str]], second_header: List[List[str]]) -> NpuChip:
    if len(group) == 1 and _is_second_line(group[0], second_header):
        first, second = {}, _values(group[0], second_header)
    else:
        first = _values(group[0], first_header)
        second = _values(group[1], second_header) if len(group) > 1 else {}
    hbm_used, hbm_total = _usage(second.get("HBM-Usage(MB)"))
    memory_used, memory_total = _usage(second.get("Memory-Usage(MB)"))
    # The 950 prints one chip an NPU and no chip column.
    chip_id = _whole(second.get("Chip")) if any("Chip" in cell for cell in second_header) else 0
    power, bus_id = first.get("Power(W)"), second.get("Bus-Id")
    return NpuChip(
        npu_id=_whole(first.get("NPU")),
        chip_id=chip_id,
        phy_id=_whole(second.get("Phy-ID", second.get("Device"))),
        name=_present(first.get("Name")),
        health=_present(first.get("Health")),
        bus_id=_present(bus_id),
        power_w=_number(power),
        temperature_c=_whole(first.get("Temp(C)")),
        hbm_used_mb=hbm_used,
        hbm_total_mb=hbm_total,
        memory_used_mb=memory_used,
        memory_total_mb=memory_total,
        has_hbm_column=any("HBM-Usage(MB)" in cell for cell in second_header),
        utilization_percent=_whole(second.get("AICore(%)", second.get("NPU-Util(%)"))),
    )


def _is_second_line(line: str, second_header: List[List[str]]) -> bool:
    return _BUS_ID.fullmatch(_values(line, second_header).get("Bus-Id", "")) is not None


def _values(line: str, header: List[List[str]]) -> Dict[str, str]:
    """Pair the words of each header cell with the values of the same cell, left to right."""
    values: Dict[str, str] = {}
    for words, cell in zip(header, _cells(line)):
        found = _VALUE.findall(cell)
        if len(found) > len(words) > 0:  # a name of several words
            found = [*found[: len(words) - 1], " ".join(found[len(words) - 1 :])]
        values.update(zip(words, found))
    return values


def _process_header(line: str) -> List[str]:
    return [" ".join(cell.split()) for cell in _cells(line)]


def _process(line: str, header: List[str]) -> Iterator[NpuProcess]:
    if not line.startswith("|") or _NO_PROCESSES in line:
        return
    cells = _cells(line)
    row = dict(zip(header, cells))
    ids = [_whole(word) for word in cells[0].split()]
    pid = _whole(row.get("Process id"))
    if not ids or ids[0] is None or pid is None:
        return
    yield NpuProcess(
        npu_id=ids[0],
        chip_id=ids[1] if len(ids) > 1 else 0,
        pid=pid,
        name=row.get("Process name", ""),
        memory_mb=_whole(row.get("Process memory(MB)")),
        container_pid=_whole(row.get("Process id in container")),
    )


def _usage(text: Optional[str]) -> Tuple[Optional[int], Optional[int]]:
    used, _, total = (text or "").partition("/")
    return _whole(used), _whole(total)


def _whole(text: Optional[str]) -> Optional[int]:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _number(text: Optional[str]) -> Optional[float]:
    try:
        return float(text or "")
    except ValueError:
        return None


def _present(text: Optional[str]) -> Optional[str]:
    return None if text is None or text in _ABSENT else text


def _or_unknown(number: Optional[int]) -> str:
    return "?" if number is None else str(number)
