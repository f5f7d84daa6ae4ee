"""Qwen3 (Yang et al., 2025): Llama with a norm over every query and key head in place of Qwen2's biases."""

from __future__ import annotations

from ascendd.engine.models.llama import LlamaForCausalLM


class Qwen3ForCausalLM(LlamaForCausalLM):
    """
    q_norm and k_norm, one weight of head_dim each for all heads, stand between projection and rotation.

    They keep attention scores in bounds, which is what the biases had been for. Attention has them where
    `facts.qk_norm` says so; heads times head_dim need not be the hidden size.
    """
