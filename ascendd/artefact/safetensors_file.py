"""Tensors of one safetensors file, mapped into memory one by one."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import torch

from ascendd.artefact.safetensors_header import ELEMENT_BYTES, StoredTensor, read_header
from ascendd.errors import ModelUnsupported, WeightsCorrupt

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class SafetensorsFile:
    """
    One open file.

    Each read maps just its own tensor, privately: memory goes back as soon as the tensor is dropped, writing to the
    tensor never reaches the file, and no mapping is larger than a tensor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, StoredTensor] = read_header(path)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise WeightsCorrupt(f"{path} cannot be read: {error.strerror}", path=str(path)) from error

    def read(self, name: str) -> torch.Tensor:
        """Return tensor `name` on the CPU in its stored dtype; its memory is the page cache until written to."""
        stored = self.tensors[name]
        if stored.dtype not in DTYPES:
            raise ModelUnsupported(f"{self.path}: {name} is stored as {stored.dtype}, supported: {', '.join(DTYPES)}")
        dtype = DTYPES[stored.dtype]
        if stored.num_bytes == 0:
            return torch.empty(stored.shape, dtype=dtype)
        page_start = stored.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        lead = stored.offset - page_start
        memory = mmap.mmap(self._fd, lead + stored.num_bytes, access=mmap.ACCESS_COPY, offset=page_start)
        raw = torch.frombuffer(memory, dtype=torch.uint8)[lead:]
        if lead % ELEMENT_BYTES[stored.dtype]:  # the format does not promise alignment
            raw = raw.clone()
        return raw.view(dtype).view(stored.shape)

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
