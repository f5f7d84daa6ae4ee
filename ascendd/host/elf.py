"""Names of the shared libraries that a shared library needs (DT_NEEDED), read from the file; nothing is loaded."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO, List, Optional, Tuple

from ascendd.errors import ProbeParseError, ProbeUnavailable

_DT_NULL, _DT_NEEDED, _DT_STRTAB, _DT_STRSZ = 0, 1, 5, 10
_PT_LOAD, _PT_DYNAMIC = 1, 2
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<qQ")
MACHINES = {62: "x86_64", 183: "aarch64"}
# No library has a larger table; a damaged size must not fill the memory.
_MOST = 1 << 22


def read_needed(path: str) -> Tuple[str, Tuple[str, ...]]:
    """Return the machine (`aarch64`) and the needed names. Raises ProbeUnavailable or ProbeParseError."""
    try:
        with Path(path).open("rb") as file:
            return _read(file)
    except OSError as error:
        raise ProbeUnavailable(f"{path} cannot be read: {error.strerror or error}", path=path) from error
    except (struct.error, ValueError, OverflowError) as error:
        raise ProbeParseError(f"{path} is not a whole shared library: {error}", path=path) from error


def _read(file: BinaryIO) -> Tuple[str, Tuple[str, ...]]:
    head = _HEADER.unpack(file.read(_HEADER.size))
    if head[0][:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit little-endian ELF file")
    machine, segments_at, segment_size, num_segments = (
        MACHINES.get(head[2], f"machine {head[2]}"),
        head[5],
        head[9],
        head[10],
    )
    loads: List[Tuple[int, int, int]] = []
    dynamic: Optional[bytes] = None
    for number in range(num_segments):
        file.seek(segments_at + number * segment_size)
        kind, _, offset, address, _, size, _, _ = _SEGMENT.unpack(file.read(_SEGMENT.size))
        if kind == _PT_LOAD:
            loads.append((address, offset, size))
        elif kind == _PT_DYNAMIC:
            dynamic = _bytes_at(file, offset, size)
    if dynamic is None:
        raise ValueError("it has no dynamic section")
    entries = []
    for tag, value in _ENTRY.iter_unpack(dynamic[: len(dynamic) // _ENTRY.size * _ENTRY.size]):
        if tag == _DT_NULL:
            break
        entries.append((tag, value))
    values = dict(entries)
    if _DT_STRTAB not in values:
        return machine, ()
    strings = _bytes_at(file, _offset(values[_DT_STRTAB], loads), values.get(_DT_STRSZ, 0))
    names = [strings[at : strings.index(b"\0", at)].decode() for tag, at in entries if tag == _DT_NEEDED]
    return machine, tuple(names)


def _bytes_at(file: BinaryIO, offset: int, size: int) -> bytes:
    if size > _MOST:
        raise ValueError(f"a table of {size} bytes")
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise ValueError("it was cut short")
    return data


def _offset(address: int, loads: List[Tuple[int, int, int]]) -> int:
    for start, offset, size in loads:
        if start <= address < start + size:
            return address - start + offset
    raise ValueError("its string table lies outside the file")
