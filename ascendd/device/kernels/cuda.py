"""Kernels of an NVIDIA GPU: the reference, whose attention is torch's SDPA, and its form for captured decodes."""

from __future__ import annotations

import torch

from ascendd.device.base import AttentionContext, AttentionForm, DecodeGroup, LatentUp, SequenceTable
from ascendd.device.kernels.reference import ReferenceKernels

# At least the rows of the largest graph (runner.graph_runner).
MAX_GRAPH_ROWS = 512


class CudaKernels(ReferenceKernels):
    """
    Eager steps attend in groups of like length. A captured decode has one group of all rows at full width.

    In a graph every shape is fixed, so the blocks of the longest sequence possible are gathered for each row and masked
    by its length. The lengths lie in a tensor that outlives the capture.
    """

    def __init__(self) -> None:
        self._lengths: torch.Tensor | None = None

    def attention_form(self, *, is_latent: bool) -> AttentionForm:
        return AttentionForm.DECODE_GROUPS | AttentionForm.PREFILL_CHUNKS | AttentionForm.DECODE_TABLE

    def open_lengths(self, device: str) -> None:
        """Make the tensor of lengths, once, before the first capture."""
        if self._lengths is None:
            self._lengths = torch.ones(MAX_GRAPH_ROWS, dtype=torch.int64, device=device)

    def set_lengths(self, kv_lengths: list[int]) -> None:
        """Have the next replay attend over `kv_lengths` tokens, one for each row of its graph."""
        assert self._lengths is not None, "no graph was captured"
        self._lengths[: len(kv_lengths)].copy_(torch.tensor(kv_lengths, dtype=torch.int64))

    def paged_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        context: AttentionContext,
        scale: float,
    ) -> torch.Tensor:
        slots = cache.shape[3] // query.shape[2]
        return super().paged_attention(query, key, value, cache, self._grouped(context, slots), scale)

    def latent_attention(
        self,
        query: torch.Tensor,
        latent: torch.Tensor,
        cache: torch.Tensor,
        context: AttentionContext,
        scale: float,
        up: LatentUp,
    ) -> torch.Tensor:
        return super().latent_attention(query, latent, cache, self._grouped(context, cache.shape[1]), scale, up)

    def _grouped(self, context: AttentionContext, block_size: int) -> AttentionContext:
        """Return `context` as the reference reads it; only a step that is captured comes with a table alone."""
        if context.table is None or context.decode_groups or context.prefill_chunks:
            return context
        return AttentionContext(context.slot_mapping, [self._group(context.table, block_size)])

    def _group(self, table: SequenceTable, block_size: int) -> DecodeGroup:
        assert self._lengths is not None, "a table alone is for captured steps"
        num_rows, num_blocks = table.block_table.shape
        positions = torch.arange(num_blocks * block_size, device=table.block_table.device)
        return DecodeGroup(
            rows=torch.arange(num_rows, device=table.block_table.device),
            block_table=table.block_table.long(),
            mask=positions[None, :] < self._lengths[:num_rows, None],
        )
