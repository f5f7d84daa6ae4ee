"""Version order: which of two versions of a package is the newer one, as dpkg and as rpm say it."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import List, Tuple


def compare_deb(left: str, right: str) -> int:
    """Return < 0, 0 or > 0 by the rules of deb-version(7)."""
    for a, b in zip(_split_deb(left), _split_deb(right)):
        order = _compare_deb_part(a, b)
        if order:
            return order
    return 0


def compare_rpm(left: str, right: str) -> int:
    """Return < 0, 0 or > 0 by rpm's rules for [EPOCH:]VERSION[-RELEASE]; a release counts only where both have one."""
    (epoch_a, version_a, release_a), (epoch_b, version_b, release_b) = _split_rpm(left), _split_rpm(right)
    if epoch_a != epoch_b:
        return epoch_a - epoch_b
    order = _compare_rpm_part(version_a, version_b)
    return order or (_compare_rpm_part(release_a, release_b) if release_a and release_b else 0)


def _split_deb(version: str) -> Tuple[str, str, str]:
    epoch, colon, rest = version.partition(":")
    upstream, _, revision = (rest if colon else version).rpartition("-")
    return (epoch if colon else "0", *((upstream, revision) if upstream else (revision, "0")))


def _compare_deb_part(left: str, right: str) -> int:
    # Text and numbers take turns, text first.
    parts = re.compile(r"(\D*)(\d*)")
    for (text_a, number_a), (text_b, number_b) in zip_longest(
        parts.findall(left), parts.findall(right), fillvalue=("", "")
    ):
        if text_a != text_b:
            return 1 if _deb_weights(text_a) > _deb_weights(text_b) else -1
        order = int(number_a or 0) - int(number_b or 0)
        if order:
            return order
    return 0


def _deb_weights(text: str) -> List[int]:
    """Return what to compare: a tilde comes before the end, the end before letters, letters before the rest."""
    weights = [-1 if c == "~" else ord(c) if c.isalpha() else ord(c) + 256 for c in text]
    return [*weights, 0]


def _split_rpm(version: str) -> Tuple[int, str, str]:
    epoch, colon, rest = version.partition(":")
    upstream, _, release = (rest if colon else version).partition("-")
    return int(epoch) if colon and epoch.isdigit() else 0, upstream, release


def _compare_rpm_part(left: str, right: str) -> int:
    pieces = re.compile(r"\d+|[A-Za-z]+|~|\^")
    a, b = pieces.findall(left), pieces.findall(right)
    for x, y in zip_longest(a, b, fillvalue=""):
        if x == y:
            continue
        if "~" in (x, y):
            return -1 if x == "~" else 1
        if "^" in (x, y):
            # After the end of the other one it is newer, else older.
            return (1 if x == "^" else -1) if "" in (x, y) else (-1 if x == "^" else 1)
        if "" in (x, y):
            return 1 if x else -1
        if x.isdigit() != y.isdigit():
            return 1 if x.isdigit() else -1
        if x.isdigit():
            if int(x) != int(y):
                return int(x) - int(y)
            continue
        return 1 if x > y else -1
    return 0
