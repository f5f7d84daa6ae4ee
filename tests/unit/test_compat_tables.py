"""The compatibility tables that ship as JSON are those of packaging/compat.yaml."""

import json
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLES = runpy.run_path(str(ROOT / "packaging" / "compat_tables.py"))["tables"]()


def test_the_shipped_tables_are_up_to_date() -> None:
    """Whoever changes the YAML runs packaging/compat_tables.py."""
    data = ROOT / "ascendd" / "host" / "data"

    assert {name: (data / name).read_text() for name in TABLES} == TABLES


def test_every_row_names_its_source_and_only_one_pair_is_denied() -> None:
    """A denial blocks a start, so it must be somebody's published word."""
    rows = [
        row for text in TABLES.values() for rows in json.loads(text).values() if isinstance(rows, list) for row in rows
    ]

    assert len(rows) > 130
    assert all(row["source"] for row in rows)
    assert [(row["cann"], row["driver"]) for row in rows if row.get("compatible") == "no"] == [("9.1.X", "25.0.X")]
