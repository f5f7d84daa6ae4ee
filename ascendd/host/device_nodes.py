"""The device nodes that the NPU driver makes in /dev, and whether this user may use them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import FrozenSet, Iterable, Optional, Tuple

from ascendd.host.files import HostFiles
from ascendd.host.vendor_facts import load_facts

# Virtual NPUs are vdavinciN: another product, so they do not count as chips here.
_CHIP_NODE = re.compile(r"davinci(\d+)")


@dataclass(frozen=True)
class DeviceNodes:
    """What is in /dev. `missing_required` stops everything, `missing_expected` mostly; `not_openable`: (node, why)."""

    chips: Tuple[int, ...]
    missing_required: Tuple[str, ...]
    missing_expected: Tuple[str, ...]
    not_openable: Tuple[Tuple[str, str], ...]


def read_device_nodes(
    files: HostFiles, families: Iterable[str], in_use: Optional[FrozenSet[int]] = None
) -> DeviceNodes:
    """
    Look for the nodes that chips of `families` need and open each for reading and writing, without any ioctl.

    Of the chips only those `in_use` are opened (None: all): the unit of an instance may open no others.
    """
    facts = load_facts("device_nodes")
    names = files.list_dir("/dev")
    chips = sorted(int(match[1]) for match in map(_CHIP_NODE.fullmatch, names) if match)
    missing_required = []
    to_open = [f"davinci{chip}" for chip in chips if in_use is None or chip in in_use]
    for node in facts["required"]:
        present = _first_present([node, *facts["alternatives"].get(node, [])], names)
        if present is None:
            missing_required.append(node)
        else:
            to_open.append(present)
    expected = sorted({node for family in families for node in facts["expected_by_family"].get(family, [])})
    to_open += [node for node in expected if node in names]
    reasons = [(node, files.open_read_write("/dev/" + node)) for node in to_open]
    return DeviceNodes(
        chips=tuple(chips),
        missing_required=tuple(missing_required),
        missing_expected=tuple(node for node in expected if node not in names),
        not_openable=tuple((node, reason) for node, reason in reasons if reason is not None),
    )


def has_chip_nodes(files: HostFiles) -> bool:
    """Tell whether the driver made a node for a chip."""
    return any(_CHIP_NODE.fullmatch(name) for name in files.list_if_possible("/dev"))


def _first_present(candidates: Iterable[str], names: Tuple[str, ...]) -> Optional[str]:
    return next((name for name in candidates if name in names), None)
