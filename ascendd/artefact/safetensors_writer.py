"""Writes a safetensors file front to back, hashing on the way: no tensor but the current one is in memory."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch

from ascendd.artefact.layout import RankTensor
from ascendd.artefact.manifest import FileEntry
from ascendd.artefact.safetensors_file import DTYPE_NAMES

if TYPE_CHECKING:
    from typing_extensions import Self

_HEADER_ALIGNMENT = 64


class SafetensorsWriter:
    """
    One file whose tensors, all of one dtype, are announced first and then written in that order.

    Leave the `with` block before `entry`: leaving it makes the file durable.
    """

    def __init__(self, path: Path, tensors: list[RankTensor], dtype: torch.dtype) -> None:
        self._tensors, self._dtype = tensors, dtype
        self._header = encode_header(tensors, dtype)
        self._num_written = 0
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._file = path.open("wb")
        self._put(memoryview(self._header))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                assert self._num_written == len(self._tensors), "tensors were announced and not written"
                self._file.flush()
                os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def write(self, tensor: torch.Tensor) -> None:
        """Append the next announced tensor, which must have its shape and the file's dtype."""
        announced = self._tensors[self._num_written]
        assert tuple(tensor.shape) == announced.shape, f"{announced.name}: {tuple(tensor.shape)}, not {announced.shape}"
        assert tensor.dtype == self._dtype, f"{announced.name}: {tensor.dtype}, not {self._dtype}"
        # numpy has no bfloat16, so the bytes go over as uint8.
        self._put(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        self._num_written += 1

    @property
    def entry(self) -> FileEntry:
        """Length and SHA-256 of what was written so far."""
        return FileEntry(bytes=self._bytes, sha256=self._digest.hexdigest())

    def _put(self, data: memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._bytes += data.nbytes


def encode_header(tensors: list[RankTensor], dtype: torch.dtype) -> bytes:
    """Return length and header of a file, padded with spaces so that the data is aligned."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.num_elements * dtype.itemsize
        header[tensor.name] = {"dtype": DTYPE_NAMES[dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def file_bytes(tensors: list[RankTensor], dtype: torch.dtype) -> int:
    """Return how long the file of these tensors will be."""
    return len(encode_header(tensors, dtype)) + sum(tensor.num_elements for tensor in tensors) * dtype.itemsize
