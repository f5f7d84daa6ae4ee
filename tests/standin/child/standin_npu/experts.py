"""Experts: sorting tokens by expert, products of groups of rows, and bringing rows back. Unquantised forms only."""

from __future__ import annotations

from typing import Any

import torch

from standin_npu.meaning import described
from standin_npu.refusal import FLOATS, require

CUMULATIVE, COUNTS = 0, 1
MAX_CHOICES = 512


def init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: list[int] | None = None,
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    Return rows of x sorted by expert (stable), where each (token, choice) went, and how many rows each expert has.

    Row i of expert_idx [num_rows, k] lists the experts of token i; (token i, choice j) is number i * k + j.
    """
    num_choices = expert_idx.numel()
    require(x.dim() == expert_idx.dim() == 2 and x.shape[0] == expert_idx.shape[0], "x [rows, h], expert_idx [rows, k]")
    require(expert_idx.dtype == torch.int32, f"expert_idx int32, not {expert_idx.dtype}")
    require(quant_mode == -1 and scale is None and offset is None, f"quant_mode -1 in the stand-in, not {quant_mode}")
    require(drop_pad_mode == 0, f"drop_pad_mode 0 in the stand-in, not {drop_pad_mode}")
    require(active_num in {-1, 0, num_choices}, f"all rows active in the stand-in, not {active_num}")
    require(list(active_expert_range or [0, expert_num]) == [0, expert_num], "all experts active in the stand-in")
    require(expert_tokens_num_type in {CUMULATIVE, COUNTS}, f"counts or sums, not type {expert_tokens_num_type}")
    require(row_idx_type in {0, 1}, f"row_idx_type 0 or 1, not {row_idx_type}")
    chosen = expert_idx.flatten().long()
    require(not num_choices or 0 <= int(chosen.min()) <= int(chosen.max()) < expert_num, f"experts below {expert_num}")
    order = chosen.argsort(stable=True)  # sortedRowIdx
    places = order
    if row_idx_type == 0:
        places = torch.empty_like(order)
        places[order] = torch.arange(num_choices)
    counts = chosen.bincount(minlength=expert_num)
    if expert_tokens_num_type == CUMULATIVE:
        counts = counts.cumsum(0)
    rows = x.index_select(0, order // expert_idx.shape[1])
    return rows, places.int(), counts, torch.empty(num_choices, dtype=torch.float32)


def grouped_matmul(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    *,
    group_list: torch.Tensor | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    **more: Any,
) -> list[torch.Tensor]:
    """Return [y]: consecutive rows of x [rows, k] times weight[g] [k, n], as many as `group_list` gives group g."""
    given = sorted(name for name, value in more.items() if value is not None)
    require(not given and not act_type, f"no bias, quantisation or activation in the stand-in, not {given}")
    require(len(x) == len(weight) == 1 and weight[0].dim() == 3, "one x and one stacked weight in the stand-in")
    require(split_item in {2, 3} and group_type == 0, f"one output, split by rows, not {split_item}, {group_type}")
    require(group_list is not None, "group_list tells each group's rows")
    assert group_list is not None
    rows, stacked = x[0], weight[0]
    require(group_list.dtype == torch.int64, f"group_list int64, not {group_list.dtype}")
    require(tuple(group_list.shape) == (stacked.shape[0],), f"a group for each of {stacked.shape[0]} weights")
    require(rows.dtype in FLOATS and rows.dtype == stacked.dtype, f"one dtype, not {rows.dtype}, {stacked.dtype}")
    require(rows.dim() == 2 and rows.shape[1] == stacked.shape[1], f"x {tuple(rows.shape)} fits {tuple(stacked.shape)}")
    require(group_list_type in {CUMULATIVE, COUNTS}, f"group_list_type 0 or 1, not {group_list_type}")
    ends = group_list.cumsum(0) if group_list_type == COUNTS else group_list
    require(
        not ends.numel() or int(ends[-1]) <= rows.shape[0], f"groups end at {ends[-1:].tolist()} of {rows.shape[0]}"
    )
    # Rows behind the last group are left as they are: whatever was in that memory.
    out, begin = torch.full((rows.shape[0], stacked.shape[2]), float("nan"), dtype=rows.dtype), 0
    for index, end in enumerate(ends.tolist()):
        require(end >= begin, "groups that do not overlap")
        out[begin:end] = (rows[begin:end].float() @ stacked[index].float()).to(rows.dtype)
        begin = end
    return [out]


def token_unpermute(
    permuted_tokens: torch.Tensor,
    sorted_indices: torch.Tensor,
    probs: torch.Tensor | None = None,
    padded_mode: bool = False,
    restore_shape: list[int] | None = None,
) -> torch.Tensor:
    """Return, for token i, the sum over its choices j of probs[i, j] * permuted_tokens[sorted_indices[i * k + j]]."""
    require(not padded_mode and restore_shape is None, "no padded_mode in the stand-in")
    require(permuted_tokens.dim() == 2 and sorted_indices.dim() == 1, "permuted_tokens [n, h], sorted_indices [n]")
    require(sorted_indices.dtype == torch.int32, f"sorted_indices int32, not {sorted_indices.dtype}")
    require(
        permuted_tokens.dtype in FLOATS, f"permuted_tokens float16, bfloat16 or float32, not {permuted_tokens.dtype}"
    )
    places = sorted_indices.long()
    require(
        not places.numel() or 0 <= int(places.min()) <= int(places.max()) < permuted_tokens.shape[0],
        f"rows of {permuted_tokens.shape[0]}",
    )
    require(places.unique().numel() == places.numel(), "no row twice")
    require(probs is None or probs.dim() == 2, "probs [tokens, choices]")
    num_choices = 1 if probs is None else probs.shape[1]
    require(num_choices <= MAX_CHOICES, f"at most {MAX_CHOICES} choices a token, not {num_choices}")
    gathered = permuted_tokens.float().index_select(0, places)
    gathered = gathered.view(-1, num_choices, permuted_tokens.shape[1])
    if probs is not None:
        require(probs.dtype in FLOATS, f"probs float16, bfloat16 or float32, not {probs.dtype}")
        require(probs.numel() == sorted_indices.numel(), f"a weight for each of {sorted_indices.numel()} rows")
        gathered = gathered * probs.float()[..., None]
    return gathered.sum(1).to(permuted_tokens.dtype)


MEANINGS = {
    "npu_moe_init_routing_v2": described(init_routing_v2, "torch_npu-npu_moe_init_routing_v2"),
    "npu_grouped_matmul": described(grouped_matmul, "torch_npu-npu_grouped_matmul"),
    "npu_moe_token_unpermute": described(token_unpermute, "torch_npu-npu_moe_token_unpermute"),
}
