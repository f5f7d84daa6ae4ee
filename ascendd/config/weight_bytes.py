"""What a model's weights take once they are loaded and packed: not every tensor is kept in one dtype, or once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ascendd.config.model_facts import ModelFacts

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


@dataclass(frozen=True)
class WeightBytes:
    """The bytes of one rank's weights, and the sum that they come from; no sum where all are alike."""

    num_bytes: int
    sum_of: str = ""


def weight_bytes(
    facts: ModelFacts,
    *,
    elements: int,
    dtype: str,
    weight_dtype: str | None = None,
    tp_size: int = 1,
    pp_size: int = 1,
    is_cpu: bool = False,
) -> WeightBytes:
    """
    Return what `elements` weights of one rank take.

    With `weight_dtype` projections are kept in it, embedding and routed experts in `dtype`. A CPU packs a head that is
    tied to the embedding as a copy of it. Norms and scales are below 1 %.
    """
    table = math.ceil(facts.vocab_size * facts.hidden_size / tp_size)
    copy = table if is_cpu and facts.tie_word_embeddings else 0
    if weight_dtype is None and not copy:
        return WeightBytes(elements * DTYPE_BYTES[dtype])
    kept = weight_dtype or dtype
    parts = [(copy, kept, "of the head, packed beside the tied embedding")]
    if weight_dtype is None:
        parts.insert(0, (elements, dtype, "weights"))
    else:
        experts = 0
        if facts.experts is not None:
            one = 3 * facts.hidden_size * facts.experts.intermediate_size
            layers = math.ceil(facts.num_expert_layers / pp_size)
            experts = math.ceil(layers * facts.experts.num_routed * one / tp_size)
        rest = min(elements, table + experts)
        what = "of embedding and routed experts" if experts else "of the embedding"
        parts = [(elements - rest, kept, "in projections"), (rest, dtype, what), *parts]
    return WeightBytes(
        sum(number * DTYPE_BYTES[name] for number, name, _ in parts),
        " + ".join(f"{number:,} {what} x {DTYPE_BYTES[name]}" for number, name, what in parts if number) + " bytes",
    )
