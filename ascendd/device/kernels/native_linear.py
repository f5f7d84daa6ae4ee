"""Projections with weights packed for the native kernels, as float32, float16 or int8 with a scale for each row."""

from __future__ import annotations

import ctypes

import torch

from ascendd.device.kernels.native_library import (
    FEATURES_AT_ONCE,
    FORMATS,
    GROUP,
    PANEL,
    WHOLE_FORMAT,
    WHOLE_LEVEL,
    PackedCall,
    native_library,
)
from ascendd.device.kernels.weight_memory import WeightMemory

_INT8_MOST = 127
_WHOLE_ZERO = 128


class NativeLinear:
    """
    y = x @ weight.T + bias for float32 x; holds no reference to what it was made from.

    Where the core has AVX-512 VNNI, int8 weights are multiplied with x as int8, a scale for each 64 numbers of a row.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
        memory: WeightMemory | None = None,
    ) -> None:
        library = native_library()
        assert library is not None
        self.num_features, self.depth = weight.shape
        self._weights, scales = pack(weight, dtype, memory)
        # Kept here, since the call holds their addresses alone.
        self._scales, self._bias = (None if row is None else _padded(row) for row in (scales, bias))
        call = PackedCall(
            self._weights.data_ptr(),
            None if self._scales is None else self._scales.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.num_features,
            self.depth,
            WHOLE_FORMAT if _is_whole(dtype) else FORMATS[dtype],
        )
        self._call, self._address = call, ctypes.addressof(call)
        self._function = library.ascendd_linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [num_tokens, in_features] to [num_tokens, out_features]."""
        if x.stride(1) != 1:
            x = x.contiguous()
        num_rows = x.shape[0]
        y = torch.empty((num_rows, self.num_features))
        self._function(self._address, x.data_ptr(), x.stride(0), y.data_ptr(), num_rows, torch.get_num_threads())
        return y


def pack(
    weight: torch.Tensor, dtype: torch.dtype, memory: WeightMemory | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """
    Return weight [out_features, in_features] in panels of `dtype`, in `memory` if given, and for int8 each row's scale.

    int8 is symmetric: a row's largest weight becomes 127.
    """
    library = native_library()
    assert library is not None
    num_features, depth = weight.shape
    scales = None
    if dtype is torch.int8:
        scales = weight.abs().amax(dim=1).float().clamp_(min=torch.finfo(torch.float32).tiny) / _INT8_MOST
        stored = (weight.float() / scales[:, None]).round_().to(torch.int8)
    else:
        stored = weight.to(dtype)
    stored = stored.contiguous()
    num_panels = -(-num_features // FEATURES_AT_ONCE) * FEATURES_AT_ONCE // PANEL
    threads = torch.get_num_threads()
    zeros = torch.zeros if memory is None else memory.zeros
    if _is_whole(dtype):
        packed = zeros((num_panels, -(-depth // GROUP) * GROUP, PANEL), dtype=torch.uint8).fill_(_WHOLE_ZERO)
        library.ascendd_pack_whole(stored.data_ptr(), packed.data_ptr(), num_features, depth, threads)
        return packed, scales
    packed = zeros((num_panels, depth, PANEL), dtype=dtype)
    library.ascendd_pack(stored.data_ptr(), packed.data_ptr(), num_features, depth, stored.element_size(), threads)
    return packed, scales


def _is_whole(dtype: torch.dtype) -> bool:
    library = native_library()
    return dtype is torch.int8 and library is not None and library.ascendd_level() >= WHOLE_LEVEL


def _padded(row: torch.Tensor) -> torch.Tensor:
    padded = torch.zeros(-(-row.shape[0] // FEATURES_AT_ONCE) * FEATURES_AT_ONCE)
    padded[: row.shape[0]] = row
    return padded
