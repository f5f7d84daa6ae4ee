"""
Attention over a plain or paged cache.

The document's limits of layouts, head sizes and blocks are demanded here, too. Unquantised forms only. Scores and sums in fp32.
"""

from __future__ import annotations

from typing import Any

import torch

from standin_npu.meaning import Meaning, described
from standin_npu.refusal import HALVES, require

LATENT_RANK = 512
ROPE_DIM = 64
MASK_SIZE = 2048
LATENT_HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
TND_DIMS = (128, 192)
LEFT_UP, RIGHT_DOWN = 2, 3


def fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: list[int] | None = None,
    actual_seq_lengths_kv: list[int] | None = None,
    block_table: torch.Tensor | None = None,
    query_rope: torch.Tensor | None = None,
    key_rope: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    block_size: int = 0,
    softmax_lse_flag: bool = False,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(scale * q k^T + mask) v in the layout of query, and an empty tensor for the sums."""
    given = sorted(name for name, entry in more.items() if isinstance(entry, torch.Tensor))
    require(
        not given and not softmax_lse_flag, f"no quantisation, prefix, padding or sums in the stand-in, not {given}"
    )
    require(
        input_layout in {"BSH", "BSND", "BNSD", "TND"},
        f"layouts BSH, BSND, BNSD, TND in the stand-in, not {input_layout}",
    )
    kv_heads = num_key_value_heads or num_heads
    require(num_heads % kv_heads == 0, f"num_heads {num_heads} is a multiple of num_key_value_heads {kv_heads}")
    require((query_rope is None) == (key_rope is None), "query_rope and key_rope both or neither")
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        require(tensor.dtype in HALVES, f"{name} float16 or bfloat16, not {tensor.dtype}")
        require(tensor.dtype == query.dtype, f"{name} has query's dtype {query.dtype}, not {tensor.dtype}")
        require(tensor.is_contiguous(), f"{name} is contiguous")
    rows = _split(query, input_layout, num_heads, actual_seq_lengths)
    head_dim = rows[0].shape[-1]
    _check_form(input_layout, head_dim, num_heads, kv_heads, query_rope, key_rope)
    require(head_dim * query.element_size() % 16 == 0, f"head size {head_dim} in whole 16 bytes")
    _check_mask(atten_mask, sparse_mode)
    if query_rope is not None and key_rope is not None:
        ropes = _split(query_rope, input_layout, num_heads, actual_seq_lengths)
        rows = [torch.cat(pair, -1) for pair in zip(rows, ropes, strict=True)]
    if block_table is not None:
        is_decode = all(row.shape[1] == 1 for row in rows)
        _check_pages(block_table, block_size, actual_seq_lengths_kv, len(rows), is_decode, head_dim, input_layout)
        assert actual_seq_lengths_kv is not None
        keys, values, key_ropes = (
            None
            if cache is None
            else _gather(cache, block_table, block_size, kv_heads, actual_seq_lengths_kv, input_layout)
            for cache in (key, value, key_rope)
        )
    else:
        keys, values, key_ropes = (
            None if tensor is None else _split(tensor, input_layout, kv_heads, actual_seq_lengths_kv, is_query=False)
            for tensor in (key, value, key_rope)
        )
    assert keys is not None
    assert values is not None
    if key_ropes is not None:
        keys = [torch.cat(pair, -1) for pair in zip(keys, key_ropes, strict=True)]
    out = [
        _attend(q, k, v, scale, _hidden(q, k, index, atten_mask, sparse_mode, query_rope is not None))
        for index, (q, k, v) in enumerate(zip(rows, keys, values, strict=True))
    ]
    return _join(out, query, input_layout), torch.empty(0, dtype=torch.float32)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, hidden: torch.Tensor | None
) -> torch.Tensor:
    """Attend q [heads, new, dim] over k, v [kv_heads, length, dim]; True in hidden [new, length] is not seen."""
    repeats = q.shape[0] // k.shape[0]
    k, v = (tensor.float().repeat_interleave(repeats, 0) for tensor in (k, v))
    scores = q.float() @ k.transpose(1, 2) * scale
    if hidden is not None:
        scores = scores.masked_fill(hidden, float("-inf"))
    # A row that sees nothing is zero: "invalid rows" of the document.
    return (scores.softmax(-1).nan_to_num(0.0) @ v).to(q.dtype)


def _hidden(
    q: torch.Tensor, k: torch.Tensor, index: int, mask: torch.Tensor | None, sparse_mode: int, has_rope: bool
) -> torch.Tensor | None:
    new, length = q.shape[1], k.shape[1]
    if sparse_mode in {LEFT_UP, RIGHT_DOWN}:
        if new == 1 and not has_rope and sparse_mode == LEFT_UP:
            return None  # the document: with one query token, sparse_mode has no effect
        ahead = length - new if sparse_mode == RIGHT_DOWN else 0
        return torch.ones(new, length, dtype=torch.bool).triu(ahead + 1)
    if mask is None:
        return None
    whole = mask.bool()
    if whole.dim() > 2 and whole.shape[0] > 1:
        whole = whole[index]
    elif whole.dim() == 2 and new == 1 and whole.shape[0] > 1:
        whole = whole[index : index + 1]
    return whole.reshape(whole.shape[-2:])[:new, :length]


def _check_form(
    layout: str,
    head_dim: int,
    num_heads: int,
    kv_heads: int,
    query_rope: torch.Tensor | None,
    key_rope: torch.Tensor | None,
) -> None:
    if query_rope is not None and key_rope is not None:
        require(head_dim in {LATENT_RANK, 128}, f"a head size of {LATENT_RANK} or 128 with rope, not {head_dim}")
        require(query_rope.shape[-1] == key_rope.shape[-1] == ROPE_DIM or layout == "BSH", f"a rope size of {ROPE_DIM}")
        if head_dim == LATENT_RANK:
            require(num_heads in LATENT_HEADS, f"heads in {LATENT_HEADS} over latents, not {num_heads}")
            require(kv_heads == 1, f"one head of latents, not {kv_heads}")
    else:
        require(head_dim <= 512, f"a head size up to 512, not {head_dim}")
        require(layout != "TND" or head_dim in TND_DIMS, f"a head size in {TND_DIMS} with TND, not {head_dim}")


def _check_mask(mask: torch.Tensor | None, sparse_mode: int) -> None:
    require(sparse_mode in {0, 1, LEFT_UP, RIGHT_DOWN}, f"sparse_mode 0 .. 3 in the stand-in, not {sparse_mode}")
    if mask is not None:
        require(mask.dtype in {torch.bool, torch.int8, torch.uint8}, f"a mask of bool, int8, uint8, not {mask.dtype}")
    if sparse_mode in {LEFT_UP, RIGHT_DOWN}:
        require(mask is not None, f"a mask with sparse_mode {sparse_mode}")
        assert mask is not None
        require(
            tuple(mask.shape[-2:]) == (MASK_SIZE, MASK_SIZE), f"a mask of {MASK_SIZE} x {MASK_SIZE}, not {mask.shape}"
        )
        # Two corners tell a triangle that hides what lies ahead from any other mask.
        corner = mask.reshape(MASK_SIZE, MASK_SIZE)
        require(
            bool(corner[0, 1]) and not bool(corner[1, 0]) and not bool(corner[0, 0]),
            "a mask that hides what lies ahead",
        )
    require(sparse_mode != 1 or mask is not None, "a whole mask with sparse_mode 1")


def _check_pages(
    table: torch.Tensor,
    block_size: int,
    lengths: list[int] | None,
    num_rows: int,
    is_decode: bool,
    head_dim: int,
    layout: str,
) -> None:
    require(table.dtype == torch.int32, f"block_table int32, not {table.dtype}")
    require(
        table.dim() == 2 and table.shape[0] == num_rows, f"block_table [{num_rows}, blocks], not {tuple(table.shape)}"
    )
    require(lengths is not None and len(lengths) == num_rows, f"actual_seq_lengths_kv of {num_rows} with a block_table")
    if head_dim == LATENT_RANK or layout == "TND":
        require(0 < block_size <= 1024 and block_size % 16 == 0, f"block_size 16 .. 1024 in sixteens, not {block_size}")
    elif is_decode:
        require(0 < block_size <= 512 and block_size % 16 == 0, f"block_size 16 .. 512 in sixteens, not {block_size}")
    else:
        require(
            block_size in {128, 256, 384, 512}, f"block_size 128 .. 512 in 128s for several tokens, not {block_size}"
        )


def _split(
    tensor: torch.Tensor, layout: str, heads: int, lengths: list[int] | None, *, is_query: bool = True
) -> list[torch.Tensor]:
    """Return [heads, tokens, dim] for each sequence."""
    if layout == "TND":
        require(lengths is not None, "actual_seq_lengths with TND")
        assert lengths is not None
        require(
            tensor.dim() == 3 and tensor.shape[1] == heads,
            f"[tokens, {heads}, dim] with TND, not {tuple(tensor.shape)}",
        )
        require(
            list(lengths) == sorted(lengths) and lengths[-1] <= tensor.shape[0], f"ends that rise to {tensor.shape[0]}"
        )
        require(
            not is_query or lengths[-1] == tensor.shape[0],
            f"the last end is {tensor.shape[0]} tokens, not {lengths[-1]}",
        )
        return [tensor[begin:end].transpose(0, 1) for begin, end in zip([0, *lengths[:-1]], lengths, strict=True)]
    if layout == "BSH":
        require(
            tensor.dim() == 3 and tensor.shape[2] % heads == 0,
            f"[batch, tokens, {heads} * dim], not {tuple(tensor.shape)}",
        )
        tensor = tensor.view(*tensor.shape[:2], heads, -1).transpose(1, 2)
    elif layout == "BSND":
        tensor = tensor.transpose(1, 2)
    require(tensor.dim() == 4 and tensor.shape[1] == heads, f"{heads} heads in {layout}, not {tuple(tensor.shape)}")
    lengths = [tensor.shape[2]] * tensor.shape[0] if lengths is None or is_query else list(lengths)
    return [row[:, :length] for row, length in zip(tensor, lengths, strict=True)]


def _gather(
    cache: torch.Tensor, table: torch.Tensor, block_size: int, kv_heads: int, lengths: list[int], layout: str
) -> list[torch.Tensor]:
    """Return [kv_heads, length, dim] for each sequence out of [blocks, size, heads * dim] or [blocks, heads, size, dim]."""
    if cache.dim() == 3:
        require(
            cache.shape[1] == block_size and cache.shape[2] % kv_heads == 0, f"[blocks, {block_size}, {kv_heads} * dim]"
        )
        cache = cache.view(cache.shape[0], block_size, kv_heads, -1).transpose(1, 2)
    else:
        require(layout in {"BNSD", "TND"}, f"caches [blocks, size, heads * dim] with {layout}")
    require(
        cache.dim() == 4 and tuple(cache.shape[1:3]) == (kv_heads, block_size),
        f"a cache [blocks, {kv_heads}, {block_size}, dim], not {tuple(cache.shape)}",
    )
    found = []
    for row, length in zip(table, lengths, strict=True):
        blocks = row[: -(-length // block_size)].long()
        require(length <= row.numel() * block_size, f"block_table covers {length} tokens")
        require(
            not blocks.numel() or 0 <= int(blocks.min()) <= int(blocks.max()) < cache.shape[0], "blocks of the cache"
        )
        found.append(cache[blocks].transpose(0, 1).flatten(1, 2)[:, :length])
    return found


def _join(rows: list[torch.Tensor], query: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "TND":
        return torch.cat([row.transpose(0, 1) for row in rows])
    stacked = torch.stack(rows)
    if layout == "BNSD":
        return stacked
    stacked = stacked.transpose(1, 2).contiguous()
    return stacked if layout == "BSND" else stacked.flatten(2)


def fused_infer_attention_score_out(
    *args: Any, out: list[torch.Tensor], workspace: torch.Tensor | None = None, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Write the same into out[0], as graphs want it; `workspace` is what get_max_workspace gave."""
    require(workspace is not None and len(out) == 2, "a workspace and two tensors in out")
    attended, sums = fused_infer_attention_score(*args, **kwargs)
    require(out[0].shape == attended.shape, f"out of shape {tuple(attended.shape)}, not {tuple(out[0].shape)}")
    out[0].copy_(attended)
    return out[0], sums


def fused_infer_attention_score_get_max_workspace(*_: Any, **__: Any) -> torch.Tensor:
    """Return scratch memory for any lengths; its size is the vendor's affair."""
    return torch.zeros(1024, dtype=torch.uint8)


# Its example captures the attention with `out` and `workspace`, and gives it new lengths.
_GRAPH_PAGE = "gitcode.com/Ascend/op-plugin docs/context/torch_npu-npu-graph_task_update_begin.md"
MEANINGS = {
    "npu_fused_infer_attention_score": described(
        fused_infer_attention_score, "torch_npu-npu_fused_infer_attention_score"
    ),
    "npu_fused_infer_attention_score.out": Meaning(fused_infer_attention_score_out, _GRAPH_PAGE),
    "_npu_fused_infer_attention_score_get_max_workspace": Meaning(
        fused_infer_attention_score_get_max_workspace, _GRAPH_PAGE
    ),
}
