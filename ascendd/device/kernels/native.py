"""Kernels of the CPU in C, where they were compiled: attention that reads blocks where they lie, norms, rotation."""

from __future__ import annotations

import ctypes

import torch

from ascendd.device.base import AttentionContext, AttentionForm, KernelShapes, SequenceTable
from ascendd.device.kernels.cpu import CpuKernels
from ascendd.device.kernels.native_library import FORMATS, AttentionCall, StoreCall, native_library

# What the fixed buffers of attention.h and prompt.h hold, and the widest vector that a head must fill.
_MAX_BLOCK = 128
_MAX_HEAD_DIM = 256
_WIDEST = 16


def suits(shapes: KernelShapes) -> bool:
    """Whether the native kernels can serve a model of these sizes."""
    return (
        native_library() is not None
        and shapes.dtype == "float32"
        and not shapes.latent_rank
        and shapes.head_dim % _WIDEST == 0
        and shapes.head_dim <= _MAX_HEAD_DIM
        and shapes.block_size <= _MAX_BLOCK
    )


class NativeKernels(CpuKernels):
    """For float32 models that `suits` takes."""

    def __init__(self) -> None:
        library = native_library()
        assert library is not None
        self._library = library
        self._attention, self._store = AttentionCall(), StoreCall()
        self._attention_address = ctypes.addressof(self._attention)
        self._store_address = ctypes.addressof(self._store)
        self._table: SequenceTable | None = None
        self._lengths = torch.empty(0, dtype=torch.int64)

    def attention_form(self, *, is_latent: bool) -> AttentionForm:
        assert not is_latent, "a model that caches latents has the reference"
        return AttentionForm.SEQUENCE_TABLE

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if x.dim() != 2 or x.stride(1) != 1:
            return super().rms_norm(x, weight, eps)
        num_rows, dim = x.shape
        y = torch.empty((num_rows, dim))
        self._library.ascendd_norm(
            x.data_ptr(), x.stride(0), None, weight.data_ptr(), eps, y.data_ptr(), num_rows, dim,
            torch.get_num_threads(),
        )  # fmt: skip
        return y

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not residual.is_contiguous() or x.stride(1) != 1:
            return super().add_rms_norm(x, residual, weight, eps)
        num_rows, dim = x.shape
        y = torch.empty((num_rows, dim))
        self._library.ascendd_norm(
            x.data_ptr(), x.stride(0), residual.data_ptr(), weight.data_ptr(), eps, y.data_ptr(), num_rows, dim,
            torch.get_num_threads(),
        )  # fmt: skip
        return y, residual

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2 or not x.is_contiguous():
            return super().silu_and_mul(x)
        num_rows, dim = x.shape[0], x.shape[1] // 2
        y = torch.empty((num_rows, dim))
        self._library.ascendd_gate(x.data_ptr(), y.data_ptr(), num_rows, dim, torch.get_num_threads())
        return y

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        num_rows, num_heads, dim = x.shape
        if not _has_heads_side_by_side(x) or not cos.is_contiguous() or not sin.is_contiguous():
            return super().rope(x, cos, sin)
        self._library.ascendd_rotate(
            x.data_ptr(), x.stride(0), cos.data_ptr(), sin.data_ptr(), num_rows, num_heads, dim,
            torch.get_num_threads(),
        )  # fmt: skip
        return x

    def store_kv(self, cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        key = key if _has_heads_side_by_side(key) else key.contiguous()
        value = value if _has_heads_side_by_side(value) else value.contiguous()
        call = self._store
        call.key, call.value, call.cache = key.data_ptr(), value.data_ptr(), cache.data_ptr()
        call.slots, call.key_stride, call.value_stride = slot_mapping.data_ptr(), key.stride(0), value.stride(0)
        call.num_rows, call.kv_heads, call.head_dim = key.shape
        call.num_slots, call.format = cache[0, 0].numel() // key.shape[2], FORMATS[cache.dtype]
        self._library.ascendd_store(self._store_address)

    def paged_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        context: AttentionContext,
        scale: float,
    ) -> torch.Tensor:
        assert context.table is not None
        table, call = context.table, self._attention
        out = torch.empty(query.shape)
        query = query if _has_heads_side_by_side(query) else query.contiguous()
        if self._table is not table:  # alike for all layers of a step
            self._table, self._lengths = table, torch.tensor([table.kv_lengths, table.query_ends])
            call.block_table, call.table_width = table.block_table.data_ptr(), table.block_table.shape[1]
            call.lengths, call.ends = self._lengths[0].data_ptr(), self._lengths[1].data_ptr()
            call.kv_heads, call.num_blocks, num_floats = cache.shape[1:]
            _, call.num_heads, call.head_dim = query.shape
            call.block_size, call.format = num_floats // query.shape[2], FORMATS[cache.dtype]
        call.query, call.cache, call.out = query.data_ptr(), cache.data_ptr(), out.data_ptr()
        call.query_stride, call.scale = query.stride(0), scale
        self._library.ascendd_attention(self._attention_address, len(table.kv_lengths), torch.get_num_threads())
        return out


def _has_heads_side_by_side(x: torch.Tensor) -> bool:
    """Whether a row of x [num_tokens, heads, dim] lies in one piece."""
    return x.stride(2) == 1 and x.stride(1) == x.shape[2]
