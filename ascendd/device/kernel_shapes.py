"""The sizes that one rank's kernels are called with, from what config.json says. No torch."""

from __future__ import annotations

from ascendd.config.model_facts import ModelFacts
from ascendd.config.plan import kv_heads_per_rank
from ascendd.device.base import KernelShapes

# Where no model is named: sizes of Qwen2-7B and of DeepSeek-V2 on four ranks, which together use every kernel.
USUAL_SHAPES = (
    KernelShapes("float16", 3584, 18944, 28, 4, 128, 128, 1e-6, 128),
    KernelShapes("bfloat16", 5120, 3072, 32, 32, 192, 64, 1e-6, 128, 512, 128, 128, 160, 6, 384),
)


def kernel_shapes(facts: ModelFacts, *, dtype: str, tp_size: int, block_size: int) -> KernelShapes:
    """Return the sizes for one of `tp_size` ranks."""
    latent, experts = facts.latent, facts.experts
    return KernelShapes(
        dtype=dtype,
        hidden_size=facts.hidden_size,
        intermediate_size=facts.intermediate_size // tp_size,
        num_heads=facts.num_heads // tp_size,
        num_kv_heads=kv_heads_per_rank(facts, tp_size),
        head_dim=facts.head_dim,
        rotary_dim=facts.rotary_dim,
        eps=facts.rms_norm_eps,
        block_size=block_size,
        latent_rank=latent.kv_rank if latent else 0,
        latent_nope_dim=latent.nope_dim if latent else 0,
        latent_value_dim=latent.value_dim if latent else 0,
        num_experts=experts.num_routed if experts else 0,
        num_experts_per_token=experts.num_per_token if experts else 0,
        expert_size=experts.intermediate_size // tp_size if experts else 0,
    )
