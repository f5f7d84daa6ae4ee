"""Facts of the architectures that are not plain Llama: published sizes, long context, what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ascendd.config.model_facts import facts_from_config
from ascendd.config.plan import kv_arithmetic, weights_bytes_per_rank
from ascendd.errors import ModelUnsupported, WeightsCorrupt

# From the public config.json of deepseek-ai/DeepSeek-V2-Lite.
DEEPSEEK_V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "vocab_size": 102400, "hidden_size": 2048,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27, "num_attention_heads": 16,
    "num_key_value_heads": 16, "n_shared_experts": 2, "n_routed_experts": 64, "num_experts_per_tok": 6,
    "moe_layer_freq": 1, "first_k_dense_replace": 1, "norm_topk_prob": False, "scoring_func": "softmax",
    "topk_method": "greedy", "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "kv_lora_rank": 512,
    "q_lora_rank": None, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "hidden_act": "silu",
    "max_position_embeddings": 163840, "rms_norm_eps": 1e-06, "rope_theta": 10000, "tie_word_embeddings": False,
    "attention_bias": False, "torch_dtype": "bfloat16", "bos_token_id": 100000, "eos_token_id": 100001,
    "rope_scaling": {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 0.707, "mscale_all_dim": 0.707,
    },
}  # fmt: skip
# What differs in the public config.json of deepseek-ai/DeepSeek-V2.
DEEPSEEK_V2: dict[str, Any] = {
    **DEEPSEEK_V2_LITE, "hidden_size": 5120, "intermediate_size": 12288, "moe_intermediate_size": 1536,
    "num_hidden_layers": 60, "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 160,
    "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3, "routed_scaling_factor": 16.0,
    "q_lora_rank": 1536,
}  # fmt: skip
# From the public config.json of Qwen/Qwen3-0.6B.
QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
    "tie_word_embeddings": True, "attention_bias": False, "use_sliding_window": False, "hidden_act": "silu",
}  # fmt: skip
# From the public config.json of microsoft/Phi-3-mini-128k-instruct, the 48 factors apart.
PHI3_MINI_128K: dict[str, Any] = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072,
    "intermediate_size": 8192, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 131072, "original_max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0, "sliding_window": 262144, "tie_word_embeddings": False, "attention_bias": False,
    "hidden_act": "silu", "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
}  # fmt: skip


def test_deepseek_v2_lite_has_its_published_size() -> None:
    """15,706,484,224 parameters, and 27 layers x (512 + 64) numbers of latent cache: 31,104 bytes a token in 16 bit."""
    facts = facts_from_config(DEEPSEEK_V2_LITE)

    assert facts.num_parameters == 15_706_484_224
    assert facts.kv_bytes_per_token(2) == 31_104
    assert facts.kv_bytes_per_token(2, tp_size=4) == 31_104
    assert kv_arithmetic(facts, 1, 2) == "27 layers x (512 latent + 64 rotary) x 2 bytes"


def test_deepseek_v2_has_its_published_size() -> None:
    """236B, query latents and all: 235,741,434,880 parameters, 69,120 bytes a token."""
    facts = facts_from_config(DEEPSEEK_V2)

    assert facts.num_parameters == 235_741_434_880
    assert facts.kv_bytes_per_token(2) == 69_120


def test_ranks_hold_latent_projections_and_routers_whole() -> None:
    """Eight ranks of the Lite model: 1/8 of what is cut, and all of kv_a_proj, its norm and the routers."""
    facts = facts_from_config({**DEEPSEEK_V2_LITE, "num_attention_heads": 8, "num_key_value_heads": 8})
    whole = 27 * (576 * 2048 + 512) + 26 * 64 * 2048

    assert facts.num_replicated_parameters == whole
    assert weights_bytes_per_rank(facts, "float16", 8) == 2 * (whole + math.ceil((facts.num_parameters - whole) / 8))


def test_qwen3_has_its_published_size() -> None:
    """Qwen3-0.6B: 596,049,920 parameters with norms over query and key heads, heads wider than the hidden size."""
    facts = facts_from_config(QWEN3_06B)

    assert facts.num_parameters == 596_049_920
    assert facts.kv_bytes_per_token(2) == 114_688
    assert (facts.qk_norm, facts.qkv_bias) == (True, False)


def test_phi3_has_its_published_size() -> None:
    """Phi-3-mini: 3,821,079,552 parameters; a sliding window wider than the context changes nothing."""
    facts = facts_from_config(PHI3_MINI_128K)

    assert facts.num_parameters == 3_821_079_552
    assert (facts.max_position_embeddings, facts.rope_switch_length, facts.rotary_dim) == (131072, 4096, 96)


def test_phi3_is_served_as_far_as_its_window_changes_nothing() -> None:
    """Phi-3-mini-4k sees 2,047 tokens back; up to that length this is plain attention, so that is the context."""
    facts = facts_from_config(
        {**PHI3_MINI_128K, "rope_scaling": None, "max_position_embeddings": 4096, "sliding_window": 2047}
    )

    assert (facts.max_position_embeddings, facts.rope_switch_length) == (2047, None)


def test_longrope_grows_attention_with_the_stretch() -> None:
    """The factor of cos and sin is sqrt(1 + ln(32) / ln(4096)) for 32 times the original context."""
    scaling = facts_from_config(PHI3_MINI_128K).rope_scaling

    assert scaling is not None
    assert scaling["attention_factor"] == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_attention_of_deepseek_is_as_sharp_as_yarn_says() -> None:
    """With mscale equal to mscale_all_dim cos and sin stay as they are and the scores grow by mscale squared."""
    facts = facts_from_config(DEEPSEEK_V2_LITE)
    mscale = 0.1 * 0.707 * math.log(40) + 1

    assert facts.rope_scaling is not None
    assert facts.rope_scaling["attention_factor"] == 1.0
    assert facts.attention_scale == pytest.approx(192**-0.5 * mscale**2)


@pytest.mark.parametrize(
    ("scaling", "context", "switch"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072, None),
        ({"rope_type": "dynamic", "factor": 2.0}, 81920, 40960),
        ({"rope_type": "linear", "factor": 2.0}, 40960, None),
    ],
    ids=["yarn", "dynamic", "linear"],
)
def test_scaling_reaches_as_far_as_it_was_made_to(scaling: dict[str, Any], context: int, switch: int | None) -> None:
    """Yarn and dynamic scaling lengthen the context by their factor; linear is written into the length already."""
    facts = facts_from_config({**QWEN3_06B, "rope_scaling": scaling})

    assert (facts.max_position_embeddings, facts.rope_switch_length) == (context, switch)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"topk_method": "noaux_tc"}, "topk_method noaux_tc is not supported; supported: greedy, group_limited_greedy"),
        ({"scoring_func": "sigmoid"}, "scoring_func sigmoid is not supported"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported"),
        ({"mlp_bias": True}, "mlp_bias is not supported with experts"),
    ],
)
def test_routing_that_is_not_computed_is_refused(change: dict[str, Any], expected: str) -> None:
    """A router of another kind would send tokens to wrong experts, so it is named instead."""
    with pytest.raises(ModelUnsupported, match=expected):
        facts_from_config({**DEEPSEEK_V2_LITE, **change})


@pytest.mark.parametrize(
    ("base", "change", "expected"),
    [
        (DEEPSEEK_V2, {"n_group": 7}, "160 experts cannot stand in n_group 7"),
        (DEEPSEEK_V2, {"num_experts_per_tok": 61}, "num_experts_per_tok 61 is more than the 60 experts"),
        (DEEPSEEK_V2, {"kv_lora_rank": None}, "kv_rank"),
        (PHI3_MINI_128K, {"partial_rotary_factor": 0.5}, "short_factor has 48 numbers for 24 pairs"),
        (PHI3_MINI_128K, {"partial_rotary_factor": 1.5}, "144 rotated dimensions of a head of 96"),
    ],
)
def test_sizes_that_do_not_fit_together_are_named(base: dict[str, Any], change: dict[str, Any], expected: str) -> None:
    """A file that contradicts itself is corrupt, and the numbers that clash are in the message."""
    with pytest.raises(WeightsCorrupt, match=expected):
        facts_from_config({**base, **change})


def test_experts_limit_tensor_parallelism() -> None:
    """Every expert's MLP is cut, so its width must be a multiple, and KV heads do not matter."""
    facts = facts_from_config({**DEEPSEEK_V2_LITE, "moe_intermediate_size": 1404})

    facts.check_tensor_parallel(4)
    with pytest.raises(ModelUnsupported, match="does not fit 16 heads and an MLP of 10944 and experts of 1404"):
        facts.check_tensor_parallel(8)
