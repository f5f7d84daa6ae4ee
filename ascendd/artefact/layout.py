"""
How a model's weights are fused and cut into ranks; no torch.

The engine, the converter and the tests all take the layout from here, so that what is written is what is read.

    checkpoint                 fused                          cut for a rank
    q_proj, k_proj, v_proj     qkv_proj [q; k; v] rows        QKV: whole heads; KV heads replicated when tp exceeds them
    gate_proj, up_proj         gate_up_proj [gate; up] rows   COLUMN: rows of each part
    o_proj, down_proj          unchanged                      ROW: columns; the bias is on rank 0 alone
    embed_tokens, lm_head      unchanged                      VOCAB: rows, padded with zeros to a multiple of tp
    norms                      unchanged                      REPLICATED
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from ascendd.config.model_facts import ModelFacts

FUSED_OPERATORS = ("qkv_proj", "gate_up_proj")


class Shard(enum.Enum):
    """How one tensor is cut over the ranks of a tensor-parallel group."""

    REPLICATED = "replicated"  # whole on every rank
    COLUMN = "column"  # output features: rows of the weight, elements of the bias
    ROW = "row"  # input features: columns of the weight; the bias is rank 0's alone
    QKV = "qkv"  # whole heads
    VOCAB = "vocab"  # rows, padded with zero rows to a multiple of the group's size


class Source(msgspec.Struct, frozen=True):
    """One tensor of the checkpoint: its name and the shape it must have."""

    name: str
    shape: tuple[int, ...]

    def whole(self) -> Cut:
        """Return the cut that takes all of it."""
        return Cut(self, 0, 0, self.shape[0])


class FusedTensor(msgspec.Struct, frozen=True):
    """One tensor of the engine: its sources are cut one by one, then stacked along axis 0 in this order."""

    name: str
    sources: tuple[Source, ...]
    shard: Shard


class Cut(msgspec.Struct, frozen=True):
    """The part `start:stop` along `axis` of one source; `stop - start` may be 0 for a rank that holds padding only."""

    source: Source
    axis: int
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return (*self.source.shape[: self.axis], self.stop - self.start, *self.source.shape[self.axis + 1 :])


class RankTensor(msgspec.Struct, frozen=True):
    """One fused tensor as one rank holds it: `cuts` stacked along axis 0, then zero rows up to `shape[0]`."""

    name: str
    cuts: tuple[Cut, ...]
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Number of elements, padding included."""
        count = 1
        for size in self.shape:
            count *= size
        return count


def fused_layout(facts: ModelFacts) -> list[FusedTensor]:
    """Return every tensor of the model in the order in which the layers use them."""
    hidden, vocab = facts.hidden_size, (facts.vocab_size, facts.hidden_size)
    tensors = [_single("model.embed_tokens.weight", vocab, Shard.VOCAB)]
    for index in range(facts.num_layers):
        tensors.extend(_layer(facts, f"model.layers.{index}."))
    tensors.append(_single("model.norm.weight", (hidden,), Shard.REPLICATED))
    if not facts.tie_word_embeddings:
        tensors.append(_single("lm_head.weight", vocab, Shard.VOCAB))
    return tensors


def rank_layout(facts: ModelFacts, tp_rank: int = 0, tp_size: int = 1) -> list[RankTensor]:
    """Return the tensors that rank `tp_rank` of `tp_size` holds. Raises ModelUnsupported if the size does not fit."""
    facts.check_tensor_parallel(tp_size)
    if not 0 <= tp_rank < tp_size:
        raise ValueError(f"tp_rank {tp_rank} is not in 0..{tp_size - 1}")
    return [
        _rank_tensor(tensor, facts, tp_rank, tp_size)
        for tensor in fused_layout(facts)
        if not (tensor.shard is Shard.ROW and tensor.name.endswith(".bias") and tp_rank > 0)
    ]


def _layer(facts: ModelFacts, prefix: str) -> Iterator[FusedTensor]:
    hidden, inner = facts.hidden_size, facts.intermediate_size
    q_size, kv_size = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    yield _single(f"{prefix}input_layernorm.weight", (hidden,), Shard.REPLICATED)
    qkv = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    yield from _linear(f"{prefix}self_attn.", "qkv_proj", qkv, hidden, Shard.QKV, bias=facts.qkv_bias)
    yield from _linear(f"{prefix}self_attn.", "o_proj", {"o_proj": hidden}, q_size, Shard.ROW, bias=facts.o_bias)
    yield _single(f"{prefix}post_attention_layernorm.weight", (hidden,), Shard.REPLICATED)
    gate_up = {"gate_proj": inner, "up_proj": inner}
    yield from _linear(f"{prefix}mlp.", "gate_up_proj", gate_up, hidden, Shard.COLUMN, bias=facts.mlp_bias)
    yield from _linear(f"{prefix}mlp.", "down_proj", {"down_proj": hidden}, inner, Shard.ROW, bias=facts.mlp_bias)


def _single(name: str, shape: tuple[int, ...], shard: Shard) -> FusedTensor:
    return FusedTensor(name, (Source(name, shape),), shard)


def _linear(
    prefix: str, name: str, parts: dict[str, int], columns: int, shard: Shard, *, bias: bool
) -> Iterator[FusedTensor]:
    """Yield weight [rows of all parts, columns] and, if there is one, bias [rows of all parts]."""
    yield FusedTensor(
        f"{prefix}{name}.weight",
        tuple(Source(f"{prefix}{part}.weight", (rows, columns)) for part, rows in parts.items()),
        shard,
    )
    if bias:
        yield FusedTensor(
            f"{prefix}{name}.bias",
            tuple(Source(f"{prefix}{part}.bias", (rows,)) for part, rows in parts.items()),
            shard,
        )


def _rank_tensor(tensor: FusedTensor, facts: ModelFacts, tp_rank: int, tp_size: int) -> RankTensor:
    cuts = tuple(_cut(tensor, index, facts, tp_rank, tp_size) for index in range(len(tensor.sources)))
    rows = sum(cut.shape[0] for cut in cuts)
    if tensor.shard is Shard.VOCAB:
        rows = -(-facts.vocab_size // tp_size)
    return RankTensor(tensor.name, cuts, (rows, *cuts[0].shape[1:]))


def _cut(tensor: FusedTensor, index: int, facts: ModelFacts, tp_rank: int, tp_size: int) -> Cut:
    source = tensor.sources[index]
    size = source.shape[0]
    if tensor.shard is Shard.COLUMN:
        return _even(source, 0, tp_rank, tp_size)
    if tensor.shard is Shard.ROW and len(source.shape) > 1:
        return _even(source, 1, tp_rank, tp_size)
    if tensor.shard is Shard.QKV:
        if index == 0 or facts.num_kv_heads % tp_size == 0:
            return _even(source, 0, tp_rank, tp_size)
        head = tp_rank * facts.num_kv_heads // tp_size  # tp_size / num_kv_heads neighbouring ranks share a head
        return Cut(source, 0, head * facts.head_dim, (head + 1) * facts.head_dim)
    if tensor.shard is Shard.VOCAB:
        rows = -(-size // tp_size)
        return Cut(source, 0, min(tp_rank * rows, size), min((tp_rank + 1) * rows, size))
    return source.whole()


def _even(source: Source, axis: int, tp_rank: int, tp_size: int) -> Cut:
    share, rest = divmod(source.shape[axis], tp_size)
    assert rest == 0, f"{source.name} axis {axis} is not a multiple of {tp_size}"
    return Cut(source, axis, tp_rank * share, (tp_rank + 1) * share)
