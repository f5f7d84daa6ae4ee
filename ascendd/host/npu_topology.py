"""
`npu-smi info -t topo`: how the chips reach each other, and the CPUs near each. Pure; columns by their header labels.

       NPU0       NPU1       CPU Affinity            A3 labels its dies Phy-ID0, and on ARM prints no affinity;
    NPU0       X          HCCS       144-167         newer tools add columns of network cards (NIC0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, FrozenSet, Optional, Tuple

from ascendd.errors import ProbeParseError
from ascendd.host.cpu_list import parse_cpus

# Words of the tool. The fast ones are links made for chips; the others cross PCIe or the processors.
FAST = ("HCCS", "HCCS_SW", "SIO", "UB", "XLink")
SLOW = ("PIX", "PXB", "PHB", "SYS")
WORDS = ("X", "NA", *FAST, *SLOW)
_LABEL = re.compile(r"(?:NPU|Phy-ID)(\d+)")
_COLUMN = re.compile(r"(?:NPU|Phy-ID|NIC)\d+|CPU Affinity")


@dataclass(frozen=True)
class NpuTopology:
    """`links` by (chip, other chip); `cpus` near a chip, absent where the tool does not say."""

    chips: Tuple[int, ...]
    links: Dict[Tuple[int, int], str]
    cpus: Dict[int, FrozenSet[int]]

    def between(self, chips: FrozenSet[int]) -> Dict[Tuple[int, int], str]:
        """Return the links among `chips`, each pair once."""
        return {pair: word for pair, word in self.links.items() if pair[0] < pair[1] and chips.issuperset(pair)}


def parse_topology(text: str) -> NpuTopology:
    """Parse the matrix. Raises ProbeParseError where it is not whole: no pair is guessed."""
    columns: Optional[Tuple[str, ...]] = None
    links: Dict[Tuple[int, int], str] = {}
    cpus: Dict[int, FrozenSet[int]] = {}
    rows = []
    for line in text.splitlines():
        if columns is None:
            found = tuple(_COLUMN.findall(line))
            columns = found if found and _LABEL.fullmatch(found[0]) and not _COLUMN.sub("", line).strip() else None
            continue
        label, *cells = line.split() or [""]
        match = _LABEL.fullmatch(label)
        if match is None or len(cells) != len(columns):
            continue
        chip = int(match[1])
        rows.append(chip)
        for column, cell in zip(columns, cells):
            other = _LABEL.fullmatch(column)
            if column == "CPU Affinity":
                near = parse_cpus(cell)
                if near:
                    cpus[chip] = near
            elif other is not None and cell in WORDS:
                links[chip, int(other[1])] = cell
    wanted = [int(match[1]) for match in map(_LABEL.fullmatch, columns or ()) if match]
    if not wanted or sorted(rows) != sorted(wanted) or any((a, b) not in links for a in wanted for b in wanted):
        shown = next((line.strip() for line in text.splitlines() if line.strip()), "(nothing)")
        raise ProbeParseError(f"npu-smi info -t topo printed no whole matrix; its first line: {shown[:120]}")
    if any((word == "X") != (a == b) for (a, b), word in links.items()):
        raise ProbeParseError("npu-smi info -t topo printed a matrix whose diagonal is not X")
    return NpuTopology(tuple(wanted), links, cpus)
