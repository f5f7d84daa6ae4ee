"""RopeFacts: base and scaling of the rotary embedding, from every form in which config.json writes them."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ascendd.errors import ModelUnsupported

ROPE_SCALINGS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
# Names of longrope in early Phi-3 configurations.
_LONGROPE_NAMES = ("su", "yarn", "longrope")


class RopeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    The rotary embedding of one model.

    `scaling` is None or a dict with "rope_type" (or "type") and the numbers of that kind, defaults filled in.
    `context_length` is how far the scaling was made to reach. Sequences longer than `switch_length` tokens are rotated
    by a second set of frequencies from their first token on; None where there is only one set.
    """

    theta: float
    scaling: dict[str, Any] | None
    rotated_share: float
    context_length: int
    switch_length: int | None


def rope_facts(architecture: str, config: dict[str, Any]) -> RopeFacts:
    """
    Read the rotary embedding from a parsed config.json.

    Raises ModelUnsupported for a kind that the engine does not compute, KeyError, TypeError or ValueError for nonsense.
    """
    # transformers 5 writes rope_parameters; earlier versions write rope_theta and rope_scaling.
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta") or 10000.0
    share = rope.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0
    kind = rope.get("rope_type", rope.get("type", "default"))
    if architecture == "Phi3ForCausalLM" and kind in _LONGROPE_NAMES:
        kind = "longrope"
    if kind not in ROPE_SCALINGS:
        raise ModelUnsupported(
            f"rope scaling {kind} is not supported for {architecture}; supported: {', '.join(ROPE_SCALINGS)}"
        )
    context, switch = int(config["max_position_embeddings"]), None
    original = int(
        config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or context
    )
    if kind == "yarn":
        rope = _yarn(rope, original, context)
        context = max(context, int(original * rope["factor"]))
    elif kind == "longrope":
        rope, switch = _longrope(rope, original, context), original
    elif kind == "dynamic":
        # The frequencies for the full reach are used beyond the trained length, whatever a sequence grows to.
        rope, switch = {"rope_type": "dynamic", "factor": float(rope["factor"]), "trained_length": context}, context
        context = int(context * rope["factor"])
    return RopeFacts(
        theta=float(theta),
        scaling=None if kind == "default" else rope,
        rotated_share=float(share),
        context_length=context,
        switch_length=switch if switch is not None and switch < context else None,
    )


def yarn_mscale(factor: float, mscale: float) -> float:
    """Return by how much attention grows sharper when YaRN stretches the context `factor` times."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn(rope: dict[str, Any], original: int, context: int) -> dict[str, Any]:
    factor = float(rope.get("factor") or context / original)
    mscale, mscale_all_dim = float(rope.get("mscale") or 0), float(rope.get("mscale_all_dim") or 0)
    attention = rope.get("attention_factor")
    if attention is None:
        attention = yarn_mscale(factor, 1.0)
        if mscale and mscale_all_dim:
            attention = yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "attention_factor": float(attention),
        "beta_fast": float(rope.get("beta_fast") or 32),
        "beta_slow": float(rope.get("beta_slow") or 1),
        "mscale_all_dim": mscale_all_dim,
        "truncate": bool(rope.get("truncate", True)),
    }


def _longrope(rope: dict[str, Any], original: int, context: int) -> dict[str, Any]:
    factor = float(rope.get("factor") or context / original)
    attention = rope.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return {
        "rope_type": "longrope",
        "short_factor": [float(value) for value in rope["short_factor"]],
        "long_factor": [float(value) for value in rope["long_factor"]],
        "original_max_position_embeddings": original,
        "attention_factor": float(attention),
    }
