"""Network interfaces of the host, as `ip -json address` lists them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Tuple

from ascendd.errors import ProbeParseError


@dataclass(frozen=True)
class Interface:
    """One interface; each address with the length of its network's prefix."""

    name: str
    is_up: bool
    addresses: Tuple[Tuple[str, int], ...]


def parse_interfaces(text: str) -> Tuple[Interface, ...]:
    """Parse `ip -json address [show dev NAME]`. Raises ProbeParseError."""
    try:
        return tuple(
            Interface(
                str(link["ifname"]),
                "UP" in link.get("flags", ()),
                tuple((str(one["local"]), int(one["prefixlen"])) for one in link.get("addr_info", ())),
            )
            for link in json.loads(text or "[]")
            if link  # `show dev` of some releases leaves {} for each interface that was not asked for
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProbeParseError(f"`ip -json address` printed what is not known: {text[:120]!r}") from error
