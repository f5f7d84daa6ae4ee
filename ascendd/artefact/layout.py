"""
How a model's weights are fused and cut into ranks; no torch.

The engine, the converter and the tests all take the layout from here, so that what is written is what is read.

    checkpoint                 fused                          cut for a rank
    q_proj, k_proj, v_proj     qkv_proj [q; k; v] rows        QKV: whole heads; KV heads replicated when tp exceeds them
    gate_proj, up_proj         gate_up_proj [gate; up] rows   COLUMN: rows of each part
    o_proj, down_proj          unchanged                      ROW: columns; the bias is on rank 0 alone
    embed_tokens, lm_head      unchanged                      VOCAB: rows, padded with zeros to a multiple of tp
    norms, router              unchanged                      REPLICATED
  Phi-3 stores qkv_proj and gate_up_proj fused already; their parts are cut out of the one tensor.
  DeepSeek-V2
    q_a_proj, kv_a_proj        qkv_a_proj [q; kv] rows        REPLICATED: every rank computes the latents
    q_proj or q_b_proj, kv_b   unchanged                      COLUMN: whole heads
    experts.N, shared_experts  as an MLP each                 COLUMN and ROW: every rank has a slice of every expert
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from itertools import accumulate

import msgspec

from ascendd.config.model_facts import ModelFacts
from ascendd.config.rank_place import RankPlace


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
    """One tensor of the engine: its parts are cut one by one, then stacked along axis 0 in this order."""

    name: str
    parts: tuple[Cut, ...]
    shard: Shard

    @property
    def sources(self) -> tuple[Source, ...]:
        """The checkpoint's tensor of each part."""
        return tuple(part.source for part in self.parts)


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
        tensors.extend(_layer(facts, index))
    tensors.append(_single("model.norm.weight", (hidden,), Shard.REPLICATED))
    if not facts.tie_word_embeddings:
        tensors.append(_single("lm_head.weight", vocab, Shard.VOCAB))
    return tensors


def fused_operators(facts: ModelFacts) -> tuple[str, ...]:
    """Return the names of the projections that hold several of the architecture's in one."""
    if facts.latent is None:
        return ("qkv_proj", "gate_up_proj")
    return ("gate_up_proj",) if facts.latent.q_rank is None else ("qkv_a_proj", "gate_up_proj")


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


def stage_layout(facts: ModelFacts, place: RankPlace) -> list[RankTensor]:
    """
    Return the tensors that the rank at `place` holds: its slices of the layers of its stage.

    The first stage has the embedding, the last one norm and head; a tied head brings the embedding along.
    """
    layers = place.layers(facts.num_layers)

    def is_here(name: str) -> bool:
        if name.startswith("model.layers."):
            return int(name.split(".", 3)[2]) in layers
        if name == "model.embed_tokens.weight":
            return place.is_first_stage or (place.is_last_stage and facts.tie_word_embeddings)
        return place.is_last_stage

    return [tensor for tensor in rank_layout(facts, place.tp_rank, place.tp_size) if is_here(tensor.name)]


def _layer(facts: ModelFacts, index: int) -> Iterator[FusedTensor]:
    hidden, prefix = facts.hidden_size, f"model.layers.{index}."
    yield _single(f"{prefix}input_layernorm.weight", (hidden,), Shard.REPLICATED)
    attention = _attention if facts.latent is None else _latent_attention
    yield from attention(facts, f"{prefix}self_attn.")
    yield _single(f"{prefix}post_attention_layernorm.weight", (hidden,), Shard.REPLICATED)
    if facts.experts is None or index < facts.experts.first_layer:
        yield from _mlp(facts, f"{prefix}mlp.", facts.intermediate_size)
    else:
        yield from _experts(facts, f"{prefix}mlp.")


def _attention(facts: ModelFacts, prefix: str) -> Iterator[FusedTensor]:
    q_size, kv_size = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    qkv = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    if _is_stored_fused(facts):
        yield _unfused(f"{prefix}qkv_proj.weight", tuple(qkv.values()), facts.hidden_size, Shard.QKV)
    else:
        yield from _linear(prefix, "qkv_proj", qkv, facts.hidden_size, Shard.QKV, bias=facts.qkv_bias)
    if facts.qk_norm:
        yield _single(f"{prefix}q_norm.weight", (facts.head_dim,), Shard.REPLICATED)
        yield _single(f"{prefix}k_norm.weight", (facts.head_dim,), Shard.REPLICATED)
    yield from _linear(prefix, "o_proj", {"o_proj": facts.hidden_size}, q_size, Shard.ROW, bias=facts.o_bias)


def _latent_attention(facts: ModelFacts, prefix: str) -> Iterator[FusedTensor]:
    latent, heads, hidden = facts.latent, facts.num_heads, facts.hidden_size
    assert latent is not None
    kv_a, bias = {"kv_a_proj_with_mqa": latent.cached_dim}, facts.qkv_bias
    queries = heads * latent.query_dim
    if latent.q_rank is None:
        yield from _linear(prefix, "q_proj", {"q_proj": queries}, hidden, Shard.COLUMN, bias=False)
        yield from _linear(prefix, "kv_a_proj_with_mqa", kv_a, hidden, Shard.REPLICATED, bias=bias)
    else:
        qkv_a = {"q_a_proj": latent.q_rank, **kv_a}
        yield from _linear(prefix, "qkv_a_proj", qkv_a, hidden, Shard.REPLICATED, bias=bias)
        yield _single(f"{prefix}q_a_layernorm.weight", (latent.q_rank,), Shard.REPLICATED)
        yield from _linear(prefix, "q_b_proj", {"q_b_proj": queries}, latent.q_rank, Shard.COLUMN, bias=False)
    yield _single(f"{prefix}kv_a_layernorm.weight", (latent.kv_rank,), Shard.REPLICATED)
    kv_b = {"kv_b_proj": heads * (latent.nope_dim + latent.value_dim)}
    yield from _linear(prefix, "kv_b_proj", kv_b, latent.kv_rank, Shard.COLUMN, bias=False)
    out = {"o_proj": hidden}
    yield from _linear(prefix, "o_proj", out, heads * latent.value_dim, Shard.ROW, bias=facts.o_bias)


def _mlp(facts: ModelFacts, prefix: str, inner: int) -> Iterator[FusedTensor]:
    gate_up = {"gate_proj": inner, "up_proj": inner}
    if _is_stored_fused(facts):
        yield _unfused(f"{prefix}gate_up_proj.weight", tuple(gate_up.values()), facts.hidden_size, Shard.COLUMN)
    else:
        yield from _linear(prefix, "gate_up_proj", gate_up, facts.hidden_size, Shard.COLUMN, bias=facts.mlp_bias)
    yield from _linear(prefix, "down_proj", {"down_proj": facts.hidden_size}, inner, Shard.ROW, bias=facts.mlp_bias)


def _experts(facts: ModelFacts, prefix: str) -> Iterator[FusedTensor]:
    experts = facts.experts
    assert experts is not None
    yield _single(f"{prefix}gate.weight", (experts.num_routed, facts.hidden_size), Shard.REPLICATED)
    for index in range(experts.num_routed):
        yield from _mlp(facts, f"{prefix}experts.{index}.", experts.intermediate_size)
    if experts.num_shared:
        yield from _mlp(facts, f"{prefix}shared_experts.", experts.shared_size)


def _is_stored_fused(facts: ModelFacts) -> bool:
    return facts.architecture == "Phi3ForCausalLM"


def _single(name: str, shape: tuple[int, ...], shard: Shard) -> FusedTensor:
    return FusedTensor(name, (Source(name, shape).whole(),), shard)


def _unfused(name: str, rows: tuple[int, ...], columns: int, shard: Shard) -> FusedTensor:
    """Return a tensor that the checkpoint stores fused, so that its parts can be cut each for itself."""
    source, stops = Source(name, (sum(rows), columns)), accumulate(rows)
    return FusedTensor(
        name, tuple(Cut(source, 0, stop - size, stop) for size, stop in zip(rows, stops, strict=True)), shard
    )


def _linear(
    prefix: str, name: str, parts: dict[str, int], columns: int, shard: Shard, *, bias: bool
) -> Iterator[FusedTensor]:
    """Yield weight [rows of all parts, columns] and, if there is one, bias [rows of all parts]."""
    yield FusedTensor(
        f"{prefix}{name}.weight",
        tuple(Source(f"{prefix}{part}.weight", (rows, columns)).whole() for part, rows in parts.items()),
        shard,
    )
    if bias:
        yield FusedTensor(
            f"{prefix}{name}.bias",
            tuple(Source(f"{prefix}{part}.bias", (rows,)).whole() for part, rows in parts.items()),
            shard,
        )


def _rank_tensor(tensor: FusedTensor, facts: ModelFacts, tp_rank: int, tp_size: int) -> RankTensor:
    cuts = tuple(_cut(tensor, index, facts, tp_rank, tp_size) for index in range(len(tensor.parts)))
    rows = sum(cut.shape[0] for cut in cuts)
    if tensor.shard is Shard.VOCAB:
        rows = -(-facts.vocab_size // tp_size)
    return RankTensor(tensor.name, _joined(cuts), (rows, *cuts[0].shape[1:]))


def _cut(tensor: FusedTensor, index: int, facts: ModelFacts, tp_rank: int, tp_size: int) -> Cut:
    part = tensor.parts[index]
    if tensor.shard is Shard.COLUMN:
        return _even(part, tp_rank, tp_size)
    if tensor.shard is Shard.ROW and len(part.source.shape) > 1:
        return _even(Cut(part.source, 1, 0, part.source.shape[1]), tp_rank, tp_size)
    if tensor.shard is Shard.QKV:
        if index == 0 or facts.num_kv_heads % tp_size == 0:
            return _even(part, tp_rank, tp_size)
        head = tp_rank * facts.num_kv_heads // tp_size  # tp_size / num_kv_heads neighbouring ranks share a head
        start = part.start + head * facts.head_dim
        return Cut(part.source, 0, start, start + facts.head_dim)
    if tensor.shard is Shard.VOCAB:
        size = part.source.shape[0]
        rows = -(-size // tp_size)
        return Cut(part.source, 0, min(tp_rank * rows, size), min((tp_rank + 1) * rows, size))
    return part


def _even(part: Cut, tp_rank: int, tp_size: int) -> Cut:
    share, rest = divmod(part.stop - part.start, tp_size)
    assert rest == 0, f"{part.source.name} axis {part.axis} is not a multiple of {tp_size}"
    return Cut(part.source, part.axis, part.start + tp_rank * share, part.start + (tp_rank + 1) * share)


def _joined(cuts: tuple[Cut, ...]) -> tuple[Cut, ...]:
    """Make one cut of neighbouring rows of one source, so that one rank reads a fused tensor without copying it."""
    joined = [cuts[0]]
    for cut in cuts[1:]:
        last = joined[-1]
        if cut.source == last.source and cut.axis == last.axis == 0 and cut.start == last.stop:
            joined[-1] = Cut(cut.source, 0, last.start, cut.stop)
        else:
            joined.append(cut)
    return tuple(joined)
