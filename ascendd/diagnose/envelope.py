"""
What lines of a log come packed in, taken off as they stream: UTF-16 (a log saved on Windows), and one JSON object a
line (`journalctl -o json`, Docker's json-file). In both a search for the bytes of a message would find nothing.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from ascendd.diagnose.stamp import without_colours

_MARKS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# A longer line is no entry of a journal; it goes through as it is.
MAX_ENTRY_BYTES = 1 << 20
# Rows of a table are read by how they begin.
_TABLE = ("|", "+")


def without_envelope(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text of `blocks` as UTF-8, one message after another, with the time of its entry; bounded memory."""
    return _messages(_utf8(iter(blocks)))


def _utf8(blocks: Iterator[bytes]) -> Iterator[bytes]:
    first = b""
    while len(first) < 2 and (block := next(blocks, None)) is not None:
        first += block
    encoding = _MARKS.get(first[:2])
    if encoding is None:
        if first:
            yield first
        yield from blocks
        return
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    pending: bytes | None = first[2:]
    while pending is not None:
        yield decoder.decode(pending).encode("utf-8", "replace")
        pending = next(blocks, None)
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")


def _messages(blocks: Iterator[bytes]) -> Iterator[bytes]:
    pending = b""
    while b"\n" not in pending and len(pending) < MAX_ENTRY_BYTES and (block := next(blocks, None)) is not None:
        pending += block
    if _entry(pending.partition(b"\n")[0]) is None:
        if pending:
            yield pending
        yield from blocks
        return
    while True:
        end = pending.rfind(b"\n") + 1
        if end == 0 and len(pending) > MAX_ENTRY_BYTES:
            end = len(pending)
        if end:
            yield b"".join(_told(line) for line in pending[:end].splitlines(keepends=True))
        block = next(blocks, None)
        if block is None:
            break
        pending = pending[end:] + block
    if pending[end:]:
        yield _told(pending[end:])


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return the object of a line that is an entry of a journal or of Docker's log, else None."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    is_entry = isinstance(found, dict) and ("__REALTIME_TIMESTAMP" in found or {"log", "stream"} <= found.keys())
    return found if is_entry else None


def _told(line: bytes) -> bytes:
    """Return the message of one line; a line of another form as it is."""
    entry = _entry(line)
    if entry is None:
        return line
    said = entry.get("MESSAGE", entry.get("log"))
    if isinstance(said, list):  # how the journal writes what holds colours or no UTF-8
        text = bytes(code for code in said if isinstance(code, int) and 0 <= code < 256).decode("utf-8", "replace")
    else:
        text = "" if said is None else str(said)
    stamp = "" if without_colours(text).startswith(_TABLE) else _stamp(entry)
    return f"{stamp}{text.rstrip()}\n".encode("utf-8", "replace")


def _stamp(entry: dict[str, Any]) -> str:
    """Return the time of an entry and who wrote it, as `journalctl -o short-iso-precise` has them."""
    if "time" in entry:
        return f"{entry['time']} "
    try:
        moment = datetime.fromtimestamp(int(entry["__REALTIME_TIMESTAMP"]) / 1e6, timezone.utc)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return ""
    host, name, pid = (entry.get(key, "") for key in ("_HOSTNAME", "SYSLOG_IDENTIFIER", "_PID"))
    return f"{moment:%Y-%m-%dT%H:%M:%S.%fZ} {host or '-'} {name or '-'}[{pid or '-'}]: "
