"""Byte quantities as people write them: `4GiB`, `512 MB`, `1048576`."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
    "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
RULE = "a whole number of bytes, or a number with a unit of KB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 4GiB"


def parse_bytes(value: int | str) -> int:
    """Return `value` in bytes. Raises ValueError with the rule for anything else, zero and negatives included."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{value!r} is not {RULE}")  # noqa: TRY004 - callers catch one kind
    if isinstance(value, int):
        number = value
    else:
        match = _QUANTITY.fullmatch(value)
        if match is None or match[2].upper() not in _UNITS:
            raise ValueError(f"{value!r} is not {RULE}")
        number = int(Fraction(match[1]) * _UNITS[match[2].upper()])
    if number <= 0:
        raise ValueError(f"{value!r} is not more than 0 bytes")
    return number


def format_bytes(num_bytes: float) -> str:
    """Return `num_bytes` with three significant figures and a binary unit: `1.75 MiB`."""
    sign, size = ("-", -num_bytes) if num_bytes < 0 else ("", num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{sign}{size:.0f} {unit}" if unit == "B" else f"{sign}{size:.{2 if size < 100 else 1}f} {unit}"
        size /= 1024
    return f"{sign}{size:.2f} TiB"
