"""Qwen2 (Yang et al., 2024): Llama with biases on q, k and v, which the weights themselves bring along."""

from __future__ import annotations

from ascendd.engine.models.llama import LlamaForCausalLM


class Qwen2ForCausalLM(LlamaForCausalLM):
    """The linear layers take a bias where the checkpoint has one, so nothing differs in the computation."""
