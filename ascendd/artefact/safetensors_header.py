"""
The header of a safetensors file, read and checked without torch.

The format: 8 bytes little-endian length of the header, the header as JSON, then the data of all tensors without gaps
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
import stat
import struct
from pathlib import Path
from typing import Any

import msgspec

from ascendd.errors import WeightsCorrupt

MAX_HEADER_BYTES = 100_000_000  # the limit of the format
ELEMENT_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2,
    "F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


class StoredTensor(msgspec.Struct, frozen=True):
    """One tensor in a file: format dtype (`BF16`), shape, and where its data lies from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of `path` by name. Raises WeightsCorrupt if the file is missing, truncated or inconsistent."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            # Opening a pipe would wait for a writer for ever.
            raise WeightsCorrupt(f"{path} is not a regular file", path=str(path))
        file_bytes = status.st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 2 <= length <= MAX_HEADER_BYTES:
                raise WeightsCorrupt(
                    f"{path} is not a safetensors file: its header would have {length} bytes", path=str(path)
                )
            raw = file.read(length)
    except OSError as error:
        raise WeightsCorrupt(f"{path} cannot be read: {error.strerror}", path=str(path)) from error
    if len(raw) < length:
        raise WeightsCorrupt(
            f"{path} is truncated: it has {file_bytes} bytes, the header alone needs {8 + length}", path=str(path)
        )
    try:
        header = json.loads(raw)
        tensors = {name: _tensor(entry, 8 + length) for name, entry in header.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsCorrupt(f"{path} has a broken header: {error!r}", path=str(path)) from error
    _check_extent(path, tensors, 8 + length, file_bytes)
    return tensors


def _tensor(entry: Any, data_start: int) -> StoredTensor:
    shape = tuple(int(size) for size in entry["shape"])
    begin, end = entry["data_offsets"]
    num_bytes = ELEMENT_BYTES[entry["dtype"]]
    for size in shape:
        num_bytes *= size
    if begin < 0 or end - begin != num_bytes:
        raise ValueError(f"data_offsets {begin}:{end} do not hold {entry['dtype']} of shape {list(shape)}")
    return StoredTensor(entry["dtype"], shape, data_start + begin, num_bytes)


def _check_extent(path: Path, tensors: dict[str, StoredTensor], data_start: int, file_bytes: int) -> None:
    end = data_start
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
        if tensor.offset != end:
            raise WeightsCorrupt(
                f"{path} has a broken header: {name} does not begin where the tensor before it ends", path=str(path)
            )
        end += tensor.num_bytes
    if file_bytes != end:
        fault = "is truncated" if file_bytes < end else "has bytes after its last tensor"
        raise WeightsCorrupt(f"{path} {fault}: it has {file_bytes} bytes, the header promises {end}", path=str(path))
