"""
Kernels of an Ascend NPU: torch_npu's fused operators where the chip has them, the reference everywhere else.

Cache layout: kernels.block_major; blocks of 128 tokens, as the fused attention reads them. Which operators are used is
a set that device.kernel_proof may only make smaller. Every argument that the operators' own shape functions do not
check (layout, dtype, order of dimensions) is made right here, because a wrong one would pass in silence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ascendd.device.base import AttentionContext, AttentionForm, KernelShapes, LatentUp, Linear
from ascendd.device.kernels.block_major import BlockMajorReference
from ascendd.device.kernels.npu_attention import attend_paged
from ascendd.device.kernels.npu_experts import StackedExperts, grouped_experts
from ascendd.device.kernels.npu_latents import SplitLatentCache, attend_split
from ascendd.device.soc import FusedOp, takes_fused_latents

# The fused attention takes a causal mask in compressed form: one triangle of this size serves every length.
_MASK_SIZE = 2048
_HALF_DTYPES = frozenset({"float16", "bfloat16"})


class NpuKernels(BlockMajorReference):
    """Each method asks whether its operator is in use; `super()` is the reference over the same cache."""

    def __init__(self, fused: frozenset[FusedOp]) -> None:
        self._fused = fused
        self._latent_rank = 0
        self._masks: dict[torch.device, torch.Tensor] = {}

    @property
    def fused(self) -> frozenset[FusedOp]:
        """The operators in use."""
        return self._fused

    def choose(self, shapes: KernelShapes) -> None:
        """Give up the operators whose documents exclude `shapes`; known from config.json, before anything is loaded."""
        excluded = set()
        if shapes.dtype not in _HALF_DTYPES:
            excluded |= {FusedOp.PAGED_ATTENTION, FusedOp.LATENT_ATTENTION, FusedOp.EXPERTS}
        rope_dim = shapes.rotary_dim
        if not takes_fused_latents(heads=shapes.num_heads, kv_rank=shapes.latent_rank, rope_dim=rope_dim):
            excluded.add(FusedOp.LATENT_ATTENTION)
        if not shapes.num_experts:
            excluded.add(FusedOp.EXPERTS)
        excluded |= (
            {FusedOp.STORE_KV, FusedOp.PAGED_ATTENTION, FusedOp.ROPE}
            if shapes.latent_rank
            else {FusedOp.ROPE_INTERLEAVED}
        )
        self._fused -= excluded
        self._latent_rank = shapes.latent_rank

    def give_up(self, operator: FusedOp) -> None:
        """Compute by the reference from now on; for the time before a cache is made."""
        self._fused -= {operator}

    def attention_form(self, *, is_latent: bool) -> AttentionForm:
        if is_latent and FusedOp.LATENT_ATTENTION in self._fused:
            return AttentionForm.DECODE_TABLE | AttentionForm.PREFILL_CHUNKS
        if not is_latent and FusedOp.PAGED_ATTENTION in self._fused:
            return AttentionForm.SEQUENCE_TABLE
        return super().attention_form(is_latent=is_latent)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        if FusedOp.RMS_NORM not in self._fused:
            return super().rms_norm(x, weight, eps)
        y: torch.Tensor = torch.ops.npu.npu_rms_norm(x.contiguous(), weight, epsilon=eps)[0]
        return y

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if FusedOp.ADD_RMS_NORM not in self._fused:
            return super().add_rms_norm(x, residual, weight, eps)
        y, _, total = torch.ops.npu.npu_add_rms_norm(x.contiguous(), residual.contiguous(), weight, epsilon=eps)
        return y, total

    def rope(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if FusedOp.ROPE not in self._fused:
            return super().rope(x, cos, sin)
        return _rotary(x, cos, sin, "half")

    def rope_interleaved(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if FusedOp.ROPE_INTERLEAVED not in self._fused:
            return super().rope_interleaved(x, cos, sin)
        half = x.shape[-1] // 2
        # The operator wants the angle of a pair at both of its places; ours stand half a head apart.
        cos, sin = (table[..., :half].repeat_interleave(2, dim=-1) for table in (cos, sin))
        return _rotary(x, cos, sin, "interleave")

    def silu_and_mul(self, x: torch.Tensor) -> torch.Tensor:
        if FusedOp.SILU_AND_MUL not in self._fused:
            return super().silu_and_mul(x)
        y: torch.Tensor = torch.ops.npu.npu_swiglu(x.contiguous(), dim=-1)
        return y

    def store_kv(self, cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        if FusedOp.STORE_KV not in self._fused:
            super().store_kv(cache, key, value, slot_mapping)
            return
        _scatter(cache[0], cache[1], key.to(cache.dtype), value.to(cache.dtype), slot_mapping)

    def paged_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        context: AttentionContext,
        scale: float,
    ) -> torch.Tensor:
        if FusedOp.PAGED_ATTENTION not in self._fused:
            return super().paged_attention(query, key, value, cache, context, scale)
        assert context.table is not None, "the fused attention needs a SequenceTable"
        return attend_paged(query, cache, context.table, scale, self._mask(query.device))

    def store_latent(self, cache: torch.Tensor, latent: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        if FusedOp.LATENT_ATTENTION not in self._fused:
            super().store_latent(cache, latent, slot_mapping)
            return
        split, latent = SplitLatentCache.of(cache, self._latent_rank), latent.to(cache.dtype)[:, None]
        content, rotated = latent[..., : self._latent_rank], latent[..., self._latent_rank :]
        _scatter(split.by_token(split.content), split.by_token(split.rotated), content, rotated, slot_mapping)

    def latent_attention(
        self,
        query: torch.Tensor,
        latent: torch.Tensor,
        cache: torch.Tensor,
        context: AttentionContext,
        scale: float,
        up: LatentUp,
    ) -> torch.Tensor:
        if FusedOp.LATENT_ATTENTION not in self._fused:
            return super().latent_attention(query, latent, cache, context, scale, up)
        return attend_split(query, latent, SplitLatentCache.of(cache, self._latent_rank), context, scale, up)

    def experts(
        self,
        x: torch.Tensor,
        expert_ids: torch.Tensor,
        weights: torch.Tensor,
        experts: Sequence[tuple[Linear, Linear]],
    ) -> torch.Tensor:
        if FusedOp.EXPERTS not in self._fused or not isinstance(experts, StackedExperts):
            return super().experts(x, expert_ids, weights, experts)
        return grouped_experts(x, expert_ids, weights, experts, self.silu_and_mul)

    def _mask(self, device: torch.device) -> torch.Tensor:
        """Return the triangle that hides what lies ahead: True is hidden."""
        if device not in self._masks:
            self._masks[device] = torch.ones(_MASK_SIZE, _MASK_SIZE, dtype=torch.bool, device=device).triu_(1)
        return self._masks[device]


def _rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> torch.Tensor:
    # Four dimensions, [batch, tokens, heads, dim] against [batch, tokens, 1, dim]: what the operator broadcasts.
    y: torch.Tensor = torch.ops.npu.npu_rotary_mul(
        x[None].contiguous(), cos[None].contiguous(), sin[None].contiguous(), rotary_mode=mode
    )
    return y[0]


def _scatter(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write key, value [num_tokens, heads, dim] into caches [num_blocks, block_size, heads, dim]."""
    # The operator's default layout is the fractal one; ours is plain, which it calls Norm.
    torch.ops.npu.npu_scatter_pa_kv_cache(
        key.contiguous(), value.contiguous(), key_cache, value_cache, slot_mapping.int(), cache_mode="Norm"
    )
