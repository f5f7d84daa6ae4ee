"""Experts of a layer in two stacked tensors, and the three operators that run all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import overload

import torch
from torch.nn import functional

from ascendd.device.base import Linear

_BY_TOKENS = 0  # group_type: the rows of x are split among the weights
_ONE_OUTPUT = 2  # split_item: all results in one tensor
_COUNTS = 1  # group_list_type, expert_tokens_num_type: how many rows each expert has, not where they end


class StackedExperts(Sequence[tuple[Linear, Linear]]):
    """
    Weights of all experts: `gate_up` [experts, hidden, 2 * size] and `down` [experts, size, hidden].

    As a sequence it holds (gate_up, down) of each expert over views, which is what the reference takes.
    """

    def __init__(self, num: int, weights: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        stacked: tuple[torch.Tensor, torch.Tensor] | None = None
        for index, pair in enumerate(weights):
            if stacked is None:
                stacked = (self._room(num, pair[0]), self._room(num, pair[1]))
            for room, weight in zip(stacked, pair, strict=True):
                room[index].copy_(weight.t())
        assert stacked is not None, "a layer of experts has at least one"
        self.gate_up, self.down = stacked

    @staticmethod
    def _room(num: int, weight: torch.Tensor) -> torch.Tensor:
        return weight.new_empty((num, weight.shape[1], weight.shape[0]))

    def __len__(self) -> int:
        return self.gate_up.shape[0]

    @overload
    def __getitem__(self, index: int) -> tuple[Linear, Linear]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[Linear, Linear]]: ...
    def __getitem__(self, index: int | slice) -> tuple[Linear, Linear] | Sequence[tuple[Linear, Linear]]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        gate_up, down = self.gate_up[index].t(), self.down[index].t()
        return (lambda x: functional.linear(x, gate_up)), (lambda x: functional.linear(x, down))


def grouped_experts(
    x: torch.Tensor,
    expert_ids: torch.Tensor,
    weights: torch.Tensor,
    experts: StackedExperts,
    silu_and_mul: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """See device.base.Kernels.experts; tokens are sorted by expert, and each weight meets its own rows."""
    num_experts = len(experts)
    rows, places, counts, _ = torch.ops.npu.npu_moe_init_routing_v2(
        x.contiguous(),
        expert_ids.int(),
        active_num=expert_ids.numel(),
        expert_num=num_experts,
        drop_pad_mode=0,
        expert_tokens_num_type=_COUNTS,
        expert_tokens_num_flag=True,
        quant_mode=-1,
        active_expert_range=[0, num_experts],
        row_idx_type=0,
    )
    hidden = silu_and_mul(_grouped(rows, experts.gate_up, counts))
    # places[i]: where row i of (token, choice) went, so that a gather brings each token's choices back together.
    return torch.ops.npu.npu_moe_token_unpermute(  # type: ignore[no-any-return]
        _grouped(hidden, experts.down, counts), places, probs=weights.to(x.dtype)
    )


def _grouped(x: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Multiply consecutive rows of x [rows, in] by weight [experts, in, out], counts[e] of them by expert e's."""
    y: torch.Tensor = torch.ops.npu.npu_grouped_matmul(
        [x],
        [weight],
        group_list=counts.long(),
        split_item=_ONE_OUTPUT,
        group_type=_BY_TOKENS,
        group_list_type=_COUNTS,
    )[0]
    return y
