"""
Order of CANN, driver and firmware versions. Pure.

    X.Y.Z  X.Y.RCn  X.Y.RCn.m  X.Y.RCn.alphaK  X.Y.Z.alphaK  X.Y.Z-beta.K  X.Y.Z.Hnnn  X.Y.Z.a.b  X.Y.Tn  (case ignored)

A pre-release sorts below its release, an `.alphaK` of a release candidate below that candidate, a hotfix `.Hnnn` above
the bare version and below the next patch. T builds are internal to the vendor: they parse, and `is_ranked` is False.
The vendor's own aclsysGetVersionNum refuses X.Y.RCn, so this is ours.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Optional, Tuple

_ALPHA, _BETA, _CANDIDATE, _FINAL = range(4)
_FORM = re.compile(
    r"""
    [vV]?(?P<major>\d+)\.(?P<minor>\d+)
    (?:
        \.(?P<build>t\d+)(?:\..*)?                                # 8.1.T18, 7.6.T13.0.B094
      | \.?rc(?P<rc>\d+)(?P<rc_rest>(?:\.\d+)*)                   # 8.0.RC3, 6.3.RC3.1
        (?:[.-]?alpha\.?(?P<rc_alpha>\d+))?                       # 8.0.RC2.alpha001
      | (?:\.(?P<patch>\d+))?(?P<rest>(?:\.\d+)*)                 # 8.5.1, 8.5.0.2.220
        (?:
            [.-]?(?P<stage>alpha|beta)\.?(?P<stage_n>\d*)         # 8.5.0.alpha001, 9.1.0-beta.3
          | \.h(?P<hotfix>\d+)                                    # 7.0.0.H100
        )?
    )
    (?:[._-](?:b|sph)\d+)?                                        # build and patch tags: 24.1.0.b062, _sph001
    """,
    re.VERBOSE | re.IGNORECASE,
)


@functools.total_ordering
@dataclass(frozen=True, eq=False)
class CannVersion:
    """A parsed version; `text` is what was written. Compares by `key`, so `8.0.rc3` equals `8.0.RC3`."""

    text: str
    key: Tuple[object, ...]
    major: int
    minor: int
    patch: int
    hotfix: Optional[int]
    is_ranked: bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CannVersion) and self.key == other.key

    def __lt__(self, other: CannVersion) -> bool:
        return self.key < other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.text


def parse_version(text: str) -> Optional[CannVersion]:
    """Parse a version in any form above; None when it has none of them."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        return None
    major, minor, patch = int(match["major"]), int(match["minor"]), int(match["patch"] or 0)
    rest: Tuple[int, ...]
    if match["rc"] is not None:
        number, rest = int(match["rc"]), _numbers(match["rc_rest"])
        # Below its candidate, above the one before: (rc, n, alpha first).
        alpha = match["rc_alpha"]
        stage: Tuple[object, ...] = (_CANDIDATE, number, 0 if alpha is not None else 1, int(alpha or 0), rest)
    elif match["stage"] is not None:
        rest = _numbers(match["rest"])
        stage = (_ALPHA if match["stage"].lower() == "alpha" else _BETA, int(match["stage_n"] or 0), 0, 0, rest)
    else:
        rest = _numbers(match["rest"])
        # A build number beats no build number; a hotfix beats every build of the same patch.
        stage = (_FINAL, int(match["hotfix"] or 0), 0, 0, rest)
    return CannVersion(
        text=text.strip(),
        key=(major, minor, patch, stage),
        major=major,
        minor=minor,
        patch=patch,
        hotfix=None if match["hotfix"] is None else int(match["hotfix"]),
        is_ranked=match["build"] is None,
    )


def _numbers(text: Optional[str]) -> Tuple[int, ...]:
    return tuple(int(part) for part in (text or "").split(".") if part)


def parse_ranges(text: str) -> Tuple[Tuple[str, str], ...]:
    """Parse the vendor's list of closed ranges, `[7.0.0,7.5.99]` or `[23.0.0,23.0.0.],[24.1,24.1.]`."""
    return tuple((low.strip(), high.strip()) for low, high in re.findall(r"\[([^,\[\]]+),([^,\[\]]+)\]", text))


def in_ranges(version: str, ranges: Tuple[Tuple[str, str], ...]) -> bool:
    """
    Tell whether `version` lies in one of the closed `ranges`.

    An upper bound that ends with a dot, as in `[24.1,24.1.]`, takes in every version that starts with it, release
    candidates included: the vendor writes it so for `any 24.1`.
    """
    parsed = parse_version(version)
    for low, high in ranges:
        if high.endswith(".") and version.lower().startswith((high.lower(), low.lower() + ".")):
            return True
        lower, upper = parse_version(low), parse_version(high.rstrip("."))
        if (
            parsed is not None
            and lower is not None
            and upper is not None
            and lower <= parsed
            and not _above(parsed, upper)
        ):
            return True
    return False


def _above(version: CannVersion, upper: CannVersion) -> bool:
    """Compare only as many parts as the bound has: 7.5.99 takes in 7.5.99.1."""
    parts = upper.text.count(".") + 1
    return (version.major, version.minor, version.patch)[:parts] > (upper.major, upper.minor, upper.patch)[:parts]


def matches_pattern(version: str, pattern: str) -> bool:
    """Tell whether `version` is `pattern`; a last part of X stands for all: 25.5.X takes in 25.5.1 and 25.5.rc1."""
    wanted, have = pattern.lower().split("."), version.lower().split(".")
    if wanted[-1] == "x":
        return have[: len(wanted) - 1] == wanted[:-1]
    return have[: len(wanted)] == wanted
