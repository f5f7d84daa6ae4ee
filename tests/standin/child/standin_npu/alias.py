"""An NPU tensor of the stand-in seen as a CPU tensor over the same bytes: its device memory is host memory."""

from __future__ import annotations

import ctypes

import torch

# A storage is an address and a size, no more, so one that is met again may be used again, whoever owns the bytes now.
_storages: dict[tuple[int, int], torch.UntypedStorage] = {}
_MOST = 4096


def _storage_at(address: int, num_bytes: int) -> torch.UntypedStorage:
    storage = _storages.get((address, num_bytes))
    if storage is None:
        if len(_storages) >= _MOST:
            _storages.clear()
        window = (ctypes.c_char * num_bytes).from_address(address)
        storage = torch.frombuffer(window, dtype=torch.uint8).untyped_storage()
        _storages[address, num_bytes] = storage
    return storage


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` itself unless it is on an NPU, else a CPU tensor of the same shape, strides and bytes."""
    if tensor.device.type != "npu":
        return tensor
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0 or storage.data_ptr() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    host = _storage_at(storage.data_ptr(), storage.nbytes())
    return torch.empty(0, dtype=tensor.dtype).set_(host, tensor.storage_offset(), tensor.size(), tensor.stride())


def on_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on `device` with the shape, strides and values of a CPU tensor; may run out of memory."""
    result = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    if tensor.numel():
        on_host(result).copy_(tensor)
    return result
