"""Phi-3 (Abdin et al., 2024): Llama, stored fused, whose long versions have a second set of rotary frequencies."""

from __future__ import annotations

from ascendd.engine.models.llama import LlamaForCausalLM


class Phi3ForCausalLM(LlamaForCausalLM):
    """
    The layers are Llama's; all that differs lies before them.

    qkv_proj and gate_up_proj come fused in the checkpoint, in the order that the layers here use, so one rank takes
    them as they are. LongRoPE: a sequence of up to `facts.rope_switch_length` tokens is rotated by the short factors, a
    longer one by the long factors from its first token on; the scheduler computes a sequence again as it grows longer.
    """
