"""Torch stack: whether torch, torch_npu and CANN belong together, by the vendor's table. Pure."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional

from ascendd.host.vendor_facts import load_facts

ALLOW_FLAG = "--allow-unverified"


def torch_problems(pins: Mapping[str, str], cann: Optional[str], *, allow_unverified: bool) -> List[str]:
    """
    Return why the wheels must not be installed on an NPU host; `pins` are versions by name, `cann` the toolkit's.

    No torch_npu, or one for another torch, never works. A pair that the table does not list for this CANN is unknown,
    not wrong, so the operator may take it on.
    """
    torch, adapter = pins.get("torch"), pins.get("torch-npu")
    listed = pairs_for(cann)
    known = ", ".join(sorted({f"torch_npu {row['torch_npu']} with torch {row['torch']}" for row in listed}))
    on_cann = f"CANN {cann}" if cann else "a CANN of unknown version"
    advice = f"; the vendor lists for it: {known}" if known else f"; the vendor's table has no row for {on_cann}"
    if adapter is None:
        return [
            f"there is no wheel of torch_npu, without which no NPU is used; put it into wheels/ of the media{advice}"
        ]
    if torch is None:
        return [f"there is no wheel of torch for torch_npu {adapter}{advice}"]
    if release_of(adapter) != release_of(torch):
        return [f"torch_npu {adapter} is for torch {release_of(adapter)}, and the wheels hold torch {torch}{advice}"]
    if allow_unverified or any(row["torch_npu"] == adapter and row["torch"] == release_of(torch) for row in listed):
        return []
    return [
        f"torch_npu {adapter} with torch {torch} has no verdict for {on_cann}{advice}; take a pair from there, "
        f"or add {ALLOW_FLAG}"
    ]


def pairs_for(cann: Optional[str]) -> List[Dict[str, str]]:
    """Return the rows of the vendor's table, with `torch` and `torch_npu`, that are for this CANN."""
    return [row for row in load_facts("torch_cann")["pairs"] if cann and row["cann"] and _same(row["cann"], cann)]


def release_of(version: str) -> str:
    """Return the version without its local part and post-release: 2.9.0.post2 and 2.9.0+cpu are both for 2.9.0."""
    return re.sub(r"(\.post\d+)?(\+.*)?$", "", version)


def _same(listed: str, installed: str) -> bool:
    """Tell whether a row is for this CANN; a hotfix counts as the version that it mends: 7.0.0.H100 as 7.0.0."""
    return re.sub(r"\.h\d+$", "", installed.lower()) == listed.lower()
