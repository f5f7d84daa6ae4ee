"""
The two layouts of `npu-smi info` that no recording shows, built from their description: L1 (22.0.x, 310P: narrow, a
Device column, no process table) and L6 (built from the open source: as 910B's, with a blank before the last bar).
"""

import random

import pytest

from ascendd.host.npu_smi_table import parse_info
from ascendd.preflight.chips import whole

Rows = list[tuple[str, ...]]


def table(title: str, widths: list[int], headers: Rows, chips: list[Rows], rule: str = "=") -> str:
    """Draw a table with cells of `widths`; every chip is two rows."""

    def line(mark: str) -> str:
        return "+" + "+".join(mark * (width + 2) for width in widths) + "+"

    def row(cells: tuple[str, ...]) -> str:
        return "|" + "|".join(f" {cell:<{width}} " for cell, width in zip(cells, widths, strict=True)) + "|"

    inner = sum(widths) + 3 * len(widths) - 3
    body = [line("-"), "|" + f" {title:<{inner}} " + "|", line("-"), *map(row, headers), line(rule)]
    for chip in chips:
        body += [*map(row, chip), line(rule)]
    return "\n".join(body) + "\n"


def old(widths: list[int]) -> str:
    """L1 of two chips."""
    headers = [
        ("NPU     Name", "Health", "Power(W)   Temp(C)     Hugepages-Usage(page)"),
        ("Chip    Device", "Bus-Id", "AICore(%)  Memory-Usage(MB)"),
    ]
    chips = [
        [("0       310P3", "OK", "NA         41          0     / 0"), ("0       0", "0000:02:00.0", "0          1644 / 21527")],
        [("32      310P3", "Alarm", "NA         83          8728  / 8728"), ("0       1", "0000:82:00.0", "61         19435/ 21527")],
    ]  # fmt: skip
    return table("npu-smi 22.0.2                   Version: 22.0.2", widths, headers, chips)


def new(widths: list[int]) -> str:
    """L6 of one chip, with its process table."""
    headers = [
        ("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"),
        ("Chip", "Bus-Id", "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)"),
    ]
    chips = [
        [
            ("0     910B3", "OK", "91.0        46                0    / 0"),
            ("0", "0000:C1:00.0", "7           0    / 0          60000/ 65536"),
        ]
    ]
    processes = table(
        "", widths, [("NPU     Chip", "Process id", "Process name             | Process memory(MB)")],
        [[("0       0", "4711", "python3.11               | 55000")]],
    ).splitlines()  # fmt: skip
    return (
        table("npu-smi 26.2.0                   Version: 26.2.0", widths, headers, chips)
        + "\n".join(processes[2:])
        + "\n"
    )


WIDTHS = [[25, 13, 46], [29, 15, 52], [28, 12, 60]]


@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_l1_is_read_whatever_its_widths(widths: list[int]) -> None:
    """Device is the logical id, the memory is not HBM, power is not measured, and no process table is needed."""
    report = whole(parse_info(old(widths)))

    first, second = report.chips
    assert (first.npu_id, first.chip_id, first.phy_id, first.name, first.health) == (0, 0, 0, "310P3", "OK")
    assert (first.memory_used_mb, first.memory_total_mb, first.has_hbm_column, first.power_w) == (
        1644,
        21527,
        False,
        None,
    )
    assert (second.npu_id, second.phy_id, second.health, second.temperature_c) == (32, 1, "Alarm", 83)
    assert (second.memory_used_mb, second.bus_id, report.processes) == (19435, "0000:82:00.0", ())


@pytest.mark.parametrize("widths", WIDTHS[1:], ids=str)
def test_l6_is_read_whatever_its_widths(widths: list[int]) -> None:
    """A blank before the last bar changes nothing."""
    report = whole(parse_info(new(widths)))

    (chip,) = report.chips
    assert (chip.npu_id, chip.name, chip.health, chip.power_w, chip.temperature_c) == (0, "910B3", "OK", 91.0, 46)
    assert (chip.hbm_used_mb, chip.hbm_total_mb, chip.memory_total_mb, chip.bus_id) == (60000, 65536, 0, "0000:C1:00.0")
    assert [(p.npu_id, p.chip_id, p.pid, p.name, p.memory_mb) for p in report.processes] == [
        (0, 0, 4711, "python3.11", 55000)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_columns_are_found_by_their_words_in_any_order(seed: int) -> None:
    """The order of the words within a header cell, and so of the values below them, is learned and not assumed."""
    shuffle = random.Random(seed).sample
    names = ["AICore(%)", "Memory-Usage(MB)", "HBM-Usage(MB)"]
    values = dict(zip(names, ["5", "11   / 22", "3411 / 65536"], strict=True))
    order = shuffle(names, 3)
    headers = [("NPU   Name", "Health", "Power(W)    Temp(C)"), ("Chip", "Bus-Id", "   ".join(order))]
    chip = [("3     910B3", "OK", "90.1    47"), ("0", "0000:C1:00.0", "   ".join(values[name] for name in order))]

    (found,) = parse_info(table("npu-smi 24.1.0  Version: 24.1.0", [20, 15, 60], headers, [chip])).chips

    assert (found.hbm_used_mb, found.hbm_total_mb, found.memory_used_mb, found.memory_total_mb) == (3411, 65536, 11, 22)
