"""Fusing and cutting, as names, shapes and ranges."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascendd.artefact.layout import Shard, fused_layout, fused_operators, rank_layout
from ascendd.config.model_facts import ModelFacts, facts_from_config
from ascendd.errors import ModelUnsupported


def make_facts(**changes: object) -> ModelFacts:
    """Facts of a small Llama with 9 heads, 3 KV heads of 4 and an untied head."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 36,
        "intermediate_size": 72,
        "num_hidden_layers": 2,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 101,
        "max_position_embeddings": 64,
        **changes,
    }
    return facts_from_config(config)


def cuts_of(facts: ModelFacts, name: str, tp_size: int) -> list[list[tuple[int, int]]]:
    """Ranges of every source of tensor `name`, rank by rank."""
    tensors = [{tensor.name: tensor for tensor in rank_layout(facts, rank, tp_size)} for rank in range(tp_size)]
    return [[(cut.start, cut.stop) for cut in tensor[name].cuts] for tensor in tensors]


def test_names_are_those_of_the_engine() -> None:
    """A layer has the names that the engine's modules carry, biases only where the model has them."""
    facts = make_facts(attention_bias=True, mlp_bias=True)

    names = [tensor.name for tensor in fused_layout(facts)]

    assert names[0] == "model.embed_tokens.weight"
    assert names[-2:] == ["model.norm.weight", "lm_head.weight"]
    assert [name for name in names if name.startswith("model.layers.1.")] == [
        "model.layers.1.input_layernorm.weight",
        "model.layers.1.self_attn.qkv_proj.weight",
        "model.layers.1.self_attn.qkv_proj.bias",
        "model.layers.1.self_attn.o_proj.weight",
        "model.layers.1.self_attn.o_proj.bias",
        "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.mlp.gate_up_proj.weight",
        "model.layers.1.mlp.gate_up_proj.bias",
        "model.layers.1.mlp.down_proj.weight",
        "model.layers.1.mlp.down_proj.bias",
    ]


def test_tied_model_has_no_head() -> None:
    """With tied embeddings the output head is the embedding and is not stored again."""
    names = [tensor.name for tensor in fused_layout(make_facts(tie_word_embeddings=True))]

    assert "lm_head.weight" not in names
    assert not [name for name in names if name.endswith(".bias")]


def test_qkv_is_cut_by_heads() -> None:
    """Each of three ranks gets three query heads and one KV head of four rows each."""
    cuts = cuts_of(make_facts(), "model.layers.0.self_attn.qkv_proj.weight", 3)

    assert cuts == [
        [(0, 12), (0, 4), (0, 4)],
        [(12, 24), (4, 8), (4, 8)],
        [(24, 36), (8, 12), (8, 12)],
    ]


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    """With four ranks and two KV heads, neighbouring ranks share a KV head."""
    facts = make_facts(num_attention_heads=8, num_key_value_heads=2, hidden_size=32)

    cuts = cuts_of(facts, "model.layers.0.self_attn.qkv_proj.weight", 4)

    assert [rank[0] for rank in cuts] == [(0, 8), (8, 16), (16, 24), (24, 32)]
    assert [rank[1] for rank in cuts] == [(0, 4), (0, 4), (4, 8), (4, 8)]


def test_vocabulary_is_padded() -> None:
    """101 rows over 3 ranks are 34 each; the last rank has 33 and one row of zeros."""
    facts = make_facts()

    last = rank_layout(facts, 2, 3)[0]

    assert last.shape == (34, 36)
    assert last.cuts[0].shape == (33, 36)


def test_row_bias_is_on_the_first_rank() -> None:
    """o_proj's bias is added once, so only rank 0 stores it."""
    facts = make_facts(attention_bias=True)

    has_bias = ["model.layers.0.self_attn.o_proj.bias" in {t.name for t in rank_layout(facts, r, 3)} for r in range(3)]

    assert has_bias == [True, False, False]


def test_size_that_does_not_fit_is_refused() -> None:
    """Nine heads over two ranks is an error that names the sizes that fit."""
    with pytest.raises(ModelUnsupported, match="sizes that do: 1, 3, 9"):
        rank_layout(make_facts(), 0, 2)


@given(
    num_kv_heads=st.sampled_from([1, 2, 3, 4]),
    group=st.sampled_from([1, 2, 3, 4]),
    tp_size=st.integers(1, 12),
    vocab_size=st.integers(1, 50),
)
def test_ranks_cover_every_source(num_kv_heads: int, group: int, tp_size: int, vocab_size: int) -> None:
    """All ranks together hold every row and column of every source, cut ones exactly once."""
    num_heads = num_kv_heads * group
    facts = make_facts(
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        hidden_size=4 * num_heads,
        intermediate_size=tp_size * 2,
        vocab_size=vocab_size,
        attention_bias=True,
        num_hidden_layers=1,
    )
    try:
        ranks = [{tensor.name: tensor for tensor in rank_layout(facts, rank, tp_size)} for rank in range(tp_size)]
    except ModelUnsupported:
        return

    for tensor in fused_layout(facts):
        for index, source in enumerate(tensor.sources):
            cuts = [rank[tensor.name].cuts[index] for rank in ranks if tensor.name in rank]
            covered = [place for cut in cuts for place in range(cut.start, cut.stop)]
            size = source.shape[cuts[0].axis]
            assert set(covered) == set(range(size))
            is_repeated = tensor.shard is Shard.REPLICATED or (index > 0 and num_kv_heads < tp_size)
            assert is_repeated or len(covered) == size


def deepseek_facts(**changes: object) -> ModelFacts:
    """Facts of a small DeepSeek-V2 with query latents, one dense layer and two experts."""
    sizes: dict[str, object] = {
        "architectures": ["DeepseekV2ForCausalLM"], "num_attention_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 6,
        "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 5, "n_routed_experts": 2, "n_shared_experts": 3,
        "num_experts_per_tok": 1, "moe_intermediate_size": 12, "first_k_dense_replace": 1,
    }  # fmt: skip
    return make_facts(**{**sizes, **changes})


def test_fused_projections_of_a_checkpoint_are_cut_part_by_part() -> None:
    """Phi-3 stores q, k and v in one tensor: a rank takes rows of each, and the only rank takes it without a copy."""
    facts = make_facts(architectures=["Phi3ForCausalLM"])

    qkv = cuts_of(facts, "model.layers.0.self_attn.qkv_proj.weight", 3)
    gate_up = cuts_of(facts, "model.layers.0.mlp.gate_up_proj.weight", 3)

    assert qkv == [[(0, 12), (36, 40), (48, 52)], [(12, 24), (40, 44), (52, 56)], [(24, 36), (44, 48), (56, 60)]]
    assert gate_up == [[(0, 24), (72, 96)], [(24, 48), (96, 120)], [(48, 72), (120, 144)]]
    assert cuts_of(facts, "model.layers.0.self_attn.qkv_proj.weight", 1) == [[(0, 60)]]
    assert fused_operators(facts) == ("qkv_proj", "gate_up_proj")


def test_replicated_kv_heads_are_found_within_a_fused_tensor() -> None:
    """With four ranks and two KV heads, K begins behind 32 rows of q and V behind 8 rows of K; the shards are shared."""
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 32}
    facts = make_facts(architectures=["Phi3ForCausalLM"], **sizes)

    cuts = cuts_of(facts, "model.layers.0.self_attn.qkv_proj.weight", 4)

    assert [rank[1] for rank in cuts] == [(32, 36), (32, 36), (36, 40), (36, 40)]
    assert [rank[2] for rank in cuts] == [(40, 44), (40, 44), (44, 48), (44, 48)]


def test_head_norms_of_qwen3_are_replicated() -> None:
    """q_norm and k_norm have one weight for all heads, so every rank holds them whole."""
    facts = make_facts(architectures=["Qwen3ForCausalLM"], head_dim=4)

    for name in ("q_norm", "k_norm"):
        assert cuts_of(facts, f"model.layers.0.self_attn.{name}.weight", 3) == [[(0, 4)]] * 3


def test_latents_are_replicated_and_heads_are_cut() -> None:
    """Two ranks of DeepSeek-V2 both compute the latents, and each has half of the heads of q_b, kv_b and o."""
    facts = deepseek_facts()
    prefix = "model.layers.0.self_attn."

    assert cuts_of(facts, f"{prefix}qkv_a_proj.weight", 2) == [[(0, 6), (0, 10)]] * 2
    assert cuts_of(facts, f"{prefix}q_b_proj.weight", 2) == [[(0, 12)], [(12, 24)]]
    assert cuts_of(facts, f"{prefix}kv_b_proj.weight", 2) == [[(0, 18)], [(18, 36)]]
    assert cuts_of(facts, f"{prefix}o_proj.weight", 2) == [[(0, 10)], [(10, 20)]]


def test_every_rank_has_a_slice_of_every_expert() -> None:
    """Experts and the shared MLP are cut by columns; the router is whole; the first layer is dense."""
    facts = deepseek_facts()
    prefix = "model.layers.1.mlp."

    assert cuts_of(facts, f"{prefix}gate.weight", 2) == [[(0, 2)]] * 2
    assert cuts_of(facts, f"{prefix}experts.1.gate_up_proj.weight", 2) == [[(0, 6), (0, 6)], [(6, 12), (6, 12)]]
    assert cuts_of(facts, f"{prefix}experts.1.down_proj.weight", 2) == [[(0, 6)], [(6, 12)]]
    assert cuts_of(facts, f"{prefix}shared_experts.down_proj.weight", 2) == [[(0, 18)], [(18, 36)]]
    assert "model.layers.0.mlp.gate_up_proj.weight" in {tensor.name for tensor in fused_layout(facts)}


def test_manifest_names_what_is_fused() -> None:
    """Without query latents nothing of latent attention is fused."""
    assert fused_operators(make_facts()) == ("qkv_proj", "gate_up_proj")
    assert fused_operators(deepseek_facts()) == ("qkv_a_proj", "gate_up_proj")
    assert fused_operators(deepseek_facts(q_lora_rank=None)) == ("gate_up_proj",)


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Phi3ForCausalLM", "deepseek"])
def test_layout_holds_the_counted_parameters(architecture: str) -> None:
    """ModelFacts counts by formula what the layout lists tensor by tensor, biases included."""
    changes: dict[str, object] = {"attention_bias": True}
    facts = (
        deepseek_facts(**changes) if architecture == "deepseek" else make_facts(architectures=[architecture], **changes)
    )

    assert sum(tensor.num_elements for tensor in rank_layout(facts)) == facts.num_parameters


def test_layout_and_manifest_need_no_torch() -> None:
    """Processes that never load torch can read manifests and layouts."""
    program = (
        "import sys; from ascendd.artefact import layout, manifest, safetensors_header, inspection; "
        "sys.exit('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], check=False)

    assert done.returncode == 0
