"""
The version policy: what ships with the product, made stricter by the site, with the pairs that the site permits.

/etc/ascendd/policy.json may hold any of

    {"cann_minimum": "8.2.RC1",                      raise a minimum; a lower one than the product's is refused
     "firmware_minimum": {"default": "7.5.0"},
     "firmware_date_minimum": "2024-06-01",          the firmware package must not be older; off by default
     "permit": [{"cann": "7.0.0.H100", "torch": "2.13.0", "reason": "tested here, ticket 4711"}],
     "chip_speed": {"Ascend910B3": {"matmul_tflops": 280, "memory_gb_per_s": 1300, "all_reduce_gb_per_s": 90}}}

A permit names the versions of two or more of driver, firmware, cann, torch, torch_npu and python, and why. It makes a
pair pass that no table lists or that a table denies; it does not lower a minimum. A speed that the site has measured
replaces the published one in `ascendd doctor --deep`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from ascendd.errors import ProbeParseError
from ascendd.host.cann_version import matches_pattern, parse_version
from ascendd.host.chip_speed import SPEED_KEYS
from ascendd.host.files import HostFiles
from ascendd.host.vendor_facts import load_facts

SITE_FILE = "/etc/ascendd/policy.json"
LAYERS = ("driver", "firmware", "cann", "torch", "torch_npu", "python")
_KEYS = ("cann_minimum", "firmware_minimum", "firmware_date_minimum", "permit", "chip_speed")


@dataclass(frozen=True)
class VersionPolicy:
    """Lowest versions, the reasons that are told for refusing some, and permitted pairs (layer -> version or X)."""

    cann_minimum: str
    cann_refused_because: Mapping[str, str]
    firmware_minimum: Mapping[str, str]
    firmware_date_minimum: Optional[str]
    permits: Tuple[Mapping[str, str], ...] = ()
    site_file: Optional[str] = None
    # SoC name -> key of host.chip_speed -> number.
    chip_speed: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def permit(self, **versions: Optional[str]) -> Optional[str]:
        """Return the site's reason where a permit covers `versions` (layer=version), else None."""
        for permit in self.permits:
            named = [layer for layer in LAYERS if layer in permit]
            if set(named) == set(versions) and all(
                matches_pattern(versions[layer] or "", permit[layer]) for layer in named
            ):
                return permit["reason"]
        return None

    def lowest_firmware(self, families: Tuple[str, ...]) -> str:
        """Return the lowest firmware version for chips of `families`."""
        return next(
            (self.firmware_minimum[family] for family in families if family in self.firmware_minimum),
            self.firmware_minimum["default"],
        )


def read_policy(files: HostFiles) -> VersionPolicy:
    """Return the policy of this host. Raises ProbeParseError where the site's file breaks a rule: no guess is made."""
    shipped = load_facts("version_policy")
    text = files.read_optional(SITE_FILE)
    site = {} if text is None else _decode(text)
    firmware: Dict[str, str] = dict(shipped["firmware_minimum"])
    for family, version in dict(site.get("firmware_minimum", {})).items():
        firmware[family] = _raised(f"firmware_minimum.{family}", version, firmware.get(family, firmware["default"]))
    return VersionPolicy(
        cann_minimum=_raised("cann_minimum", site.get("cann_minimum"), shipped["cann_minimum"]),
        cann_refused_because=shipped["cann_refused_because"],
        firmware_minimum=firmware,
        firmware_date_minimum=site.get("firmware_date_minimum"),
        permits=tuple(_permit(permit) for permit in site.get("permit", [])),
        site_file=None if text is None else SITE_FILE,
        chip_speed={name: _speeds(name, row) for name, row in site.get("chip_speed", {}).items()},
    )


def _decode(text: str) -> Dict[str, Any]:
    try:
        site = json.loads(text)
    except ValueError as error:
        raise _broken(f"it is not JSON: {error}") from error
    if not isinstance(site, dict) or not set(site) <= set(_KEYS):
        wrong = sorted(set(site) - set(_KEYS)) if isinstance(site, dict) else "no object"
        raise _broken(f"{wrong} is not known; write an object with {', '.join(_KEYS)}")
    date = site.get("firmware_date_minimum")
    if date is not None and not (isinstance(date, str) and len(date) == len("2024-06-01") and date.count("-") == 2):
        raise _broken(f"firmware_date_minimum {date!r} is no date; write 2024-06-01")
    objects = [key for key in ("firmware_minimum", "chip_speed") if not isinstance(site.get(key, {}), dict)]
    if objects or not isinstance(site.get("permit", []), list):
        raise _broken(f"{objects[0]} must be an object" if objects else "permit must be a list")
    return site


def _raised(key: str, wanted: Any, shipped: str) -> str:
    """Return `wanted` where it is not below `shipped`: the site may tighten, not loosen."""
    if wanted is None:
        return shipped
    version, lowest = parse_version(str(wanted)), parse_version(shipped)
    assert lowest is not None
    if version is None or not version.is_ranked:
        raise _broken(f"{key} {wanted!r} has no known form; write it as {shipped}")
    if version < lowest:
        raise _broken(f"{key} {wanted} is below {shipped}, the product's own minimum, which a site can only raise")
    return str(wanted)


def _permit(row: Any) -> Mapping[str, str]:
    if not isinstance(row, dict) or not all(isinstance(value, str) and value for value in row.values()):
        raise _broken(f"permit {row!r} is not an object of texts")
    layers = [key for key in row if key in LAYERS]
    if len(layers) < 2 or "reason" not in row or set(row) - {*LAYERS, "reason"}:
        raise _broken(f"permit {row!r} must name two or more of {', '.join(LAYERS)}, and a reason")
    return row


def _speeds(name: str, row: Any) -> Mapping[str, float]:
    ok = isinstance(row, dict) and row and set(row) <= set(SPEED_KEYS)
    if not ok or not all(isinstance(n, (int, float)) and not isinstance(n, bool) and n > 0 for n in row.values()):
        raise _broken(f"chip_speed.{name} {row!r} must give positive numbers for any of {', '.join(SPEED_KEYS)}")
    return {key: float(number) for key, number in row.items()}


def _broken(said: str) -> ProbeParseError:
    return ProbeParseError(
        f"the site's policy {SITE_FILE} cannot be used: {said}", remedy=f"Correct {SITE_FILE}.", path=SITE_FILE
    )
