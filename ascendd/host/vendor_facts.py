"""Facts about vendor hardware and software, shipped as JSON beside this module; each file names its public source."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, Dict, Optional

_DATA = Path(__file__).resolve().parent / "data"


@functools.cache
def load_facts(name: str) -> Dict[str, Any]:
    """Return the content of data/`name`.json."""
    facts = json.loads((_DATA / (name + ".json")).read_text(encoding="utf-8"))
    assert isinstance(facts, dict)
    return facts


def describe_code(table: str, code: int) -> Optional[Dict[str, Any]]:
    """Return what is known of the return `code` in `table` (`dcmi_codes` or `acl_codes`), or None."""
    for row in load_facts(table)["codes"]:
        if row["code"] == code:
            return dict(row)
    return None
