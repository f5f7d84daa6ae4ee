"""When and where a line was written: the time stamps of vendor logs, Python, journal and syslog, and rank numbers."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_CLOCK = r"(?P<{0}h>\d\d):(?P<{0}m>\d\d):(?P<{0}s>\d\d)"
# 2026-01-02T03:04:05.678901Z (daemon, journal), 2026-01-02-03:04:05.678.901 (plog), 2026-01-02 03:04:05,678 (Python)
_FULL = r"(?P<fy>20\d\d)-(?P<fo>\d\d)-(?P<fd>\d\d)[-T ]" + _CLOCK.format("f")
_FULL += r"(?:[.,](?P<f1>\d{1,6})(?:[.,](?P<f2>\d{1,3}))?)? ?(?P<fz>Z|[+-]\d\d:?\d\d)?"
_SYSLOG = rf"\b(?P<so>{'|'.join(_MONTHS)}) +(?P<sd>\d{{1,2}}) " + _CLOCK.format("s")
_SHORT = r"(?<!\d-)\b(?P<to>\d\d)-(?P<td>\d\d) " + _CLOCK.format("t")
_STAMP = re.compile(f"{_FULL}|{_SYSLOG}|{_SHORT}")

_RANK = re.compile(
    r"\bRankID:(\d+)|\brank\[(\d+)\]|\[rank(\d+)\]|\brank[ =:_](\d+)|\bWorker_?(?:[TDPE]P)?_?(\d+)|\bDevice:(\d+)",
    re.IGNORECASE,
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SECRETS = re.compile(r"(?i)(bearer |api[-_]?key\W{1,4}|password\W{1,4}|token=)[^\s\"',;]+")


def last_time(text: str) -> float | None:
    """Return the last time stamp in `text` as seconds since 1970; stamps without a zone are local time."""
    found = None
    for match in _STAMP.finditer(text):
        found = match
    return None if found is None else _seconds(found)


def first_time(text: str) -> float | None:
    """Return the first time stamp in `text`."""
    match = _STAMP.search(text)
    return None if match is None else _seconds(match)


def _seconds(match: re.Match[str]) -> float | None:
    part = match.groupdict()
    now = time.time()
    try:
        if part["fy"]:
            digits = (part["f1"] or "") + (part["f2"] or "")
            year, month, day, hour, minute, second = (int(part[key]) for key in ("fy", "fo", "fd", "fh", "fm", "fs"))
            micros = int(digits[:6].ljust(6, "0"))
            return datetime(year, month, day, hour, minute, second, micros, _zone(part["fz"])).timestamp()
        prefix = "s" if part["so"] else "t"
        month = _MONTHS.index(part["so"]) + 1 if part["so"] else int(part["to"])
        day, hour, minute, second = (int(part[prefix + key]) for key in "dhms")
        # No year is written: it is the latest one that does not lie in the future.
        year = time.localtime(now).tm_year
        seconds = datetime(year, month, day, hour, minute, second).timestamp()
        if seconds < now + 86_400:
            return seconds
        return datetime(year - 1, month, day, hour, minute, second).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _zone(text: str | None) -> timezone | None:
    if text is None:
        return None
    if text == "Z":
        return timezone.utc
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[-2:])))


def rank_of(text: str) -> int | None:
    """Return the rank (or, for want of one, the device) that a line or a file name speaks of."""
    match = _RANK.search(text)
    return None if match is None else int(next(number for number in match.groups() if number))


def without_colours(text: str) -> str:
    """Return `text` without the escapes that a terminal takes for colours."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def readable(line: str, limit: int = 300) -> str:
    """Return `line` fit for a report: no colours, no control characters, no secrets, at most `limit` characters."""
    text = _SECRETS.sub(r"\1***", _ESCAPES.sub("", line))
    text = "".join(character if character.isprintable() else " " for character in text).strip()
    return text if len(text) <= limit else text[: limit - 3] + "..."
