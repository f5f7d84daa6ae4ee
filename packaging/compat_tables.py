"""
Write the tables of ascendd/host/data that come from packaging/compat.yaml, so that they need no YAML parser.

    python packaging/compat_tables.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "ascendd" / "host" / "data"
Table = dict[str, Any]


def tables(source: Path = HERE / "compat.yaml") -> dict[str, str]:
    """Return file name -> content of each table, one row a line."""
    rows = yaml.safe_load(source.read_text(encoding="utf-8"))
    return {
        "cann_driver.json": _text("pairs", [pair for row in rows["cann_hdk"] for pair in _cann_driver(row)]),
        "torch_cann.json": _text("pairs", [_take(row, "torch_npu", "torch", "cann") for row in rows["torch_npu_cann"]]),
        "torch_python.json": _text("rows", [_take(row, "torch", "python") for row in rows["torch_python"]]),
        "driver_firmware.json": _text(
            "pairs",
            [
                {"driver": row["driver"], "firmware_ranges": row["firmware_range"], "source": row["source"]}
                for row in rows["driver_firmware"]
                if "driver" in row and " " not in row["driver"]
            ],
        ),
    }


def _cann_driver(row: Table) -> list[Table]:
    """Split a cell that names two lines of driver numbers, `26.0.RC1 / 25.7.RC1`."""
    return [
        {"cann": row["cann"], "driver": driver.strip(), "compatible": row["compatible"], "source": row["source"]}
        for driver in row["hdk"].split("/")
    ]


def _take(row: Table, *keys: str) -> Table:
    return {**{key: row[key] for key in keys}, "source": row["source"]}


def _text(name: str, rows: list[Table]) -> str:
    source = (
        "packaging/compat.yaml, each row with its public source; a pair that is not listed is unknown, not incompatible"
    )
    body = ",\n".join("    " + json.dumps(row, ensure_ascii=False) for row in rows)
    return f'{{\n  "source": {json.dumps(source)},\n  "{name}": [\n{body}\n  ]\n}}\n'


def main() -> int:
    """Write every table."""
    for name, text in tables().items():
        (DATA / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
