"""How fast a chip is meant to be: what its maker publishes, or what the site's policy says of its chips."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from ascendd.host.vendor_facts import load_facts

# Keys of a row here and of `chip_speed` in the site's policy.
MATMUL, MEMORY, ALL_REDUCE = "matmul_tflops", "memory_gb_per_s", "all_reduce_gb_per_s"
SPEED_KEYS = (MATMUL, MEMORY, ALL_REDUCE)


@dataclass(frozen=True)
class ChipSpeed:
    """Speeds by key (TFLOP/s of matrix products in half precision, GB/s); `origin` tells who says so."""

    speeds: Mapping[str, float]
    origin: str


def specified_speed(soc_name: str, site: Mapping[str, Mapping[str, float]], site_file: Optional[str]) -> ChipSpeed:
    """Return what is known of the chip with this name; a number of the site replaces the published one."""
    published: Mapping[str, Any] = next(
        (row for row in load_facts("chip_speed")["chips"] if re.fullmatch(row["pattern"], soc_name)), {}
    )
    own = site.get(soc_name, {})
    speeds = {key: float(own.get(key, published.get(key, 0.0))) for key in SPEED_KEYS if key in own or key in published}
    return ChipSpeed(speeds, f"{site_file}" if own else "published" if published else "")


def shares() -> Mapping[str, float]:
    """Return below which share of a specified speed a chip fails (`fail_below`) and is worth a look (`warn_below`)."""
    facts = load_facts("chip_speed")
    return {key: float(facts[key]) for key in ("fail_below", "warn_below")}
