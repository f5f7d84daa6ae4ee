"""The chips of the host as the last round of live checks saw them, one row each. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ascendd.preflight.check import CheckResult

# The checks whose evidence has a row a chip, in logical order, and what is taken of it.
_COLUMNS = {
    "npu-health": ("chip", "name", "health"),
    "npu-sensors": ("chip", "temperature_c", "power_w", "hbm_used_mb", "hbm_total_mb"),
}


def chip_rows(results: Sequence[CheckResult]) -> list[dict[str, Any]]:
    """
    Return what `results` tell of each chip, under the name that its rank has it by: `npu` and the logical number.

    Empty where no chip was read. A value that npu-smi did not print is None; one that no check measured is left out.
    """
    rows: dict[int, dict[str, Any]] = {}
    for result in results:
        for number, seen in enumerate(result.evidence.get("chips", ()) if result.check_id in _COLUMNS else ()):
            row = rows.setdefault(number, {"device": f"npu {number}"})
            row |= {column: seen[column] for column in _COLUMNS[result.check_id] if column in seen}
    return [rows[number] for number in sorted(rows)]
