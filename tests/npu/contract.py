"""
Run with the real torch_npu: every call of the NPU kernels on `meta` tensors, checked and listed.

    python contract.py OUT     write the calls to OUT as JSON, then make each again with one argument renamed

torch_npu's own schemas refuse wrong names and wrong types of arguments, and its shape functions give the results'
shapes. They pass most wrong shapes, dtypes and layouts in silence, so what the operators' documents ask for is asserted
here (RULES). The forward pass of every architecture runs through the same kernels at the sizes of real models.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch_npu

from ascendd.artefact.layout import rank_layout
from ascendd.config.model_facts import ModelFacts, facts_from_config
from ascendd.device.base import KVCacheSpec
from ascendd.device.kernel_shapes import kernel_shapes
from ascendd.device.kernels.npu import NpuKernels
from ascendd.device.npu import NpuDevice
from ascendd.device.soc import SOC_PROFILES
from ascendd.engine.layers.forward_context import ForwardContext
from ascendd.engine.layers.rotary import RotaryTable
from ascendd.engine.layers.weight_scope import WeightScope
from ascendd.engine.models.registry import build_model
from ascendd.engine.runner.input_batch import InputBatch
from ascendd.engine.sched.output import ScheduledChunk
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.ipc.messages import SamplingParams

HALF = (torch.float16, torch.bfloat16)
BLOCK_SIZE = 128
COMMON = {
    "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "vocab_size": 32000,
    "num_hidden_layers": 2,
}  # fmt: skip
# Sizes of published models, two layers each.
MODELS: dict[str, dict[str, Any]] = {
    "Llama-3-8B": {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "Qwen2-7B": {
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
    "Qwen3-8B": {
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128,
    },
    "Phi-3-mini": {
        "architectures": ["Phi3ForCausalLM"], "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
    "DeepSeek-V2-Lite": {
        "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "intermediate_size": 10944, "num_attention_heads": 16,
        "num_key_value_heads": 16, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "moe_intermediate_size": 1408,
        "first_k_dense_replace": 1,
    },
    "DeepSeek-V2": {
        "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 5120, "intermediate_size": 12288, "num_attention_heads": 128,
        "num_key_value_heads": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "n_routed_experts": 160, "num_experts_per_tok": 6, "n_shared_experts": 2, "moe_intermediate_size": 1536,
        "first_k_dense_replace": 1, "topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3,
        "routed_scaling_factor": 16.0,
    },
}  # fmt: skip


# --- what the operators' documents ask for and shape functions let pass ----------------------------------------------


def _norm(x, gamma, *, epsilon):
    assert gamma.shape == x.shape[-1:], f"gamma {tuple(gamma.shape)} beside x {tuple(x.shape)}"
    assert gamma.dtype == x.dtype
    assert x.is_contiguous()
    assert 0 < epsilon < 1


def _add_norm(x1, x2, gamma, *, epsilon):
    assert x1.shape == x2.shape
    assert x1.dtype == x2.dtype
    _norm(x1, gamma, epsilon=epsilon)


def _rotary(x, cos, sin, *, rotary_mode):
    assert rotary_mode in ("half", "interleave")
    assert x.dim() == cos.dim() == sin.dim() == 4
    assert cos.shape == sin.shape == (1, x.shape[1], 1, x.shape[3])
    assert cos.dtype == sin.dtype == x.dtype
    assert x.shape[3] % 2 == 0
    assert x.shape[3] < 896


def _swiglu(x, *, dim):
    assert dim == -1
    assert x.shape[-1] % 2 == 0
    assert x.is_contiguous()


def _scatter(key, value, key_cache, value_cache, slot_mapping, *, cache_mode):
    assert cache_mode == "Norm"
    for new, cache in ((key, key_cache), (value, value_cache)):
        assert cache.dim() == 4
        assert cache.is_contiguous()
        assert new.is_contiguous()
        assert new.shape == (slot_mapping.shape[0], *cache.shape[2:])
        assert new.dtype == cache.dtype
    assert slot_mapping.dim() == 1
    assert slot_mapping.dtype in (torch.int32, torch.int64)


def _attention(query, key, value, *, block_table, block_size, actual_seq_lengths_kv, input_layout, num_heads, **rest):
    assert query.dtype in HALF
    assert key.dtype == value.dtype == query.dtype
    assert query.is_contiguous()
    assert key.is_contiguous()
    assert block_table.dtype == torch.int32
    assert block_size % 128 == 0
    assert block_size <= 512
    assert block_table.shape[1] * block_size >= max(actual_seq_lengths_kv), "a table narrower than its longest sequence"
    assert len(actual_seq_lengths_kv) == block_table.shape[0]
    assert num_heads % rest["num_key_value_heads"] == 0
    forms = {"TND": _all_tokens, "BSH": _batch, "BNSD": _latent_decode}
    forms[input_layout](query, key, num_heads, block_size, block_table, rest)


def _batch(query, key, num_heads, block_size, block_table, rest):
    assert query.dim() == 3
    assert query.shape[0] == block_table.shape[0]
    assert query.shape[2] % num_heads == 0
    assert query.shape[2] // num_heads <= 512
    assert query.shape[2] // num_heads % 16 == 0
    assert key.shape[1:] == (block_size, rest["num_key_value_heads"] * query.shape[2] // num_heads)
    assert query.shape[1] == 1 or query.shape[0] == 1, "prompts of different lengths in one batch"
    assert rest["sparse_mode"] == (0 if query.shape[1] == 1 and rest["atten_mask"] is None else 3)
    assert rest["sparse_mode"] == 0 or rest["atten_mask"].shape == (2048, 2048)


def _all_tokens(query, key, num_heads, block_size, block_table, rest):
    ends = rest["actual_seq_lengths"]
    assert query.shape[1] == num_heads
    assert query.shape[2] in (128, 192)
    assert key.shape[1:] == (block_size, rest["num_key_value_heads"] * query.shape[2])
    assert len(ends) == block_table.shape[0]
    assert ends == sorted(ends)
    assert ends[-1] == query.shape[0]
    assert rest["sparse_mode"] == 3
    assert rest["atten_mask"].shape == (2048, 2048)
    assert rest["atten_mask"].dtype == torch.bool


def _latent_decode(query, key, num_heads, block_size, block_table, rest):
    assert query.shape == (block_table.shape[0], num_heads, 1, 512)
    assert num_heads in (32, 64, 128)
    assert rest["num_key_value_heads"] == 1
    assert rest["query_rope"].shape == (*query.shape[:3], 64)
    assert key.shape[1:] == (1, block_size, 512)
    assert rest["key_rope"].shape == (key.shape[0], 1, block_size, 64)
    assert rest["key_rope"].is_contiguous()
    assert rest["sparse_mode"] == 0


def _routing(x, expert_idx, *, active_num, expert_num, active_expert_range, **rest):
    assert x.dim() == 2
    assert expert_idx.dtype == torch.int32
    assert expert_idx.shape[0] == x.shape[0]
    assert active_num == expert_idx.numel()
    assert active_expert_range == [0, expert_num]
    assert rest["expert_tokens_num_flag"]
    assert rest["expert_tokens_num_type"] == 1
    assert rest["quant_mode"] == -1


def _grouped(x, weight, *, group_list, split_item, group_type, group_list_type):
    assert (split_item, group_type, group_list_type) == (2, 0, 1)
    assert len(x) == len(weight) == 1
    assert x[0].dim() == 2
    assert weight[0].dim() == 3
    assert x[0].shape[1] == weight[0].shape[1]
    assert group_list.dtype == torch.int64
    assert group_list.shape == (weight[0].shape[0],)
    assert x[0].dtype == weight[0].dtype


def _unpermute(rows, places, *, probs):
    assert places.dim() == 1
    assert places.dtype == torch.int32
    assert probs.dtype == rows.dtype
    assert probs.numel() == places.shape[0] == rows.shape[0]


RULES: dict[str, Callable[..., None]] = {
    "npu_rms_norm": _norm,
    "npu_add_rms_norm": _add_norm,
    "npu_rotary_mul": _rotary,
    "npu_swiglu": _swiglu,
    "npu_scatter_pa_kv_cache": _scatter,
    "npu_fused_infer_attention_score": _attention,
    "npu_moe_init_routing_v2": _routing,
    "npu_grouped_matmul": _grouped,
    "npu_moe_token_unpermute": _unpermute,
}


# --- listing ---------------------------------------------------------------------------------------------------------


class Calls:
    """Stands between the kernels and each operator: holds a call to its rule, notes it, and makes it."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, tuple[str, ...]], dict[str, Any]] = {}
        self.model = ""
        # (operator, argument) that are passed under another name.
        self.renamed = ("", "")
        for operator in RULES:
            setattr(torch.ops.npu, operator, self._between(operator, getattr(torch.ops.npu, operator)))

    def _between(self, operator: str, packet: Any) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            RULES[operator](*args, **kwargs)
            entry = self.seen.setdefault(
                (operator, tuple(sorted(kwargs))),
                {
                    "operator": operator,
                    "schema": str(packet.default._schema),
                    "positional": len(args),
                    "keywords": sorted(kwargs),
                    "models": [],
                },
            )
            if self.model not in entry["models"]:
                entry["models"].append(self.model)
            if operator == self.renamed[0] and self.renamed[1] in kwargs:
                kwargs[f"{self.renamed[1]}_renamed"] = kwargs.pop(self.renamed[1])
            return packet(*args, **kwargs)

        return call


class MetaNpu(NpuDevice):
    """A 910B without a device: tensors have shapes and no memory."""

    def __init__(self) -> None:
        profile = next(profile for profile in SOC_PROFILES if profile.family == "910b")
        self.kernels = NpuKernels(profile.fused)
        self._weight_format = 0  # npu_format_cast has no shape function

    def torch_device(self) -> str:
        return "meta"


class MetaWeights:
    """Every tensor of a rank, as shapes."""

    def __init__(self, facts: ModelFacts) -> None:
        self._shapes = {tensor.name: tensor.shape for tensor in rank_layout(facts)}
        self.names = self._shapes.keys()

    def read(self, name: str) -> torch.Tensor:
        return torch.empty(self._shapes[name], dtype=torch.bfloat16, device="meta")


def steps() -> list[list[ScheduledChunk]]:
    """Return a prompt, a decode of three, and a step with decodes, the rest of a long prompt and a new prompt."""

    def chunk(index: int, start: int, num_tokens: int) -> ScheduledChunk:
        sequence = Sequence(
            seq_id=index, token_ids=[0] * (start + num_tokens), params=SamplingParams(max_tokens=1), seed=0
        )
        sequence.status = SequenceStatus.RUNNING
        sequence.block_ids = list(range(1, 2 + (start + num_tokens) // BLOCK_SIZE))
        return ScheduledChunk(sequence, start, num_tokens)

    return [
        [chunk(0, 0, 300)],
        [chunk(1, 130, 1), chunk(2, 5, 1), chunk(3, 2000, 1)],
        [chunk(4, 130, 1), chunk(5, 600, 1), chunk(6, 256, 200), chunk(7, 700, 3), chunk(8, 0, 64)],
    ]


def forward(name: str, dtype: torch.dtype) -> None:
    """Run the steps through one model and check the shape of its logits."""
    facts, device = facts_from_config({**COMMON, **MODELS[name]}), MetaNpu()
    name_of_dtype = str(dtype).partition(".")[2]
    device.kernels.choose(kernel_shapes(facts, dtype=name_of_dtype, tp_size=1, block_size=BLOCK_SIZE))
    model = build_model(WeightScope(MetaWeights(facts), device, dtype), facts)
    rotary = RotaryTable(facts, 4096, dtype, "meta")
    latent = facts.latent
    caches = device.allocate_kv(
        KVCacheSpec(
            num_layers=facts.num_layers,
            num_kv_heads=1 if latent else facts.num_kv_heads,
            head_dim=latent.cached_dim if latent else facts.head_dim,
            block_size=BLOCK_SIZE,
            num_blocks=64,
            dtype=name_of_dtype,
            is_latent=latent is not None,
        )
    )
    batch = InputBatch(
        16, 32, BLOCK_SIZE, rotary.long_offset, device.kernels.attention_form(is_latent=latent is not None)
    )
    for chunks in steps():
        inputs = batch.prepare(chunks).to("meta")
        cos, sin = rotary.rows(inputs.rotary_rows)
        context = ForwardContext(cos, sin, caches, inputs.attention, inputs.sample_rows)
        x, residual = model.forward(model.enter(inputs.token_ids), None, context)
        logits = model.logits(x, residual, context)
        assert logits.shape == (len(chunks), facts.vocab_size), f"{name}: logits {tuple(logits.shape)}"
        assert logits.dtype == torch.float32
        for part in chunks:
            part.sequence.status = SequenceStatus.FINISHED


def unrefused(calls: Calls) -> list[str]:
    """Pass each keyword under another name, one at a time; return those that torch_npu took all the same."""
    taken = []
    for entry in list(calls.seen.values()):
        for keyword in entry["keywords"]:
            calls.renamed = (entry["operator"], keyword)
            try:
                forward(entry["models"][0], torch.float16)
            except RuntimeError as error:
                if f"'{keyword}_renamed'" in str(error) or "failed to match any schema" in str(error):
                    continue
            taken.append(f"{entry['operator']}.{keyword}")
    return taken


def main(out: Path) -> None:
    """Write every call that the kernels make."""
    calls = Calls()
    with torch.inference_mode():
        for dtype in (*HALF, torch.float32):
            for name in MODELS:
                if dtype is torch.float32 and name.startswith("DeepSeek"):
                    continue  # the reference's loop over experts reads counts, which shapes do not have
                calls.model = name
                forward(name, dtype)
        listed = sorted(calls.seen.values(), key=lambda entry: (entry["operator"], entry["keywords"]))
        made_with = {"torch": torch.__version__.partition("+")[0], "torch_npu": torch_npu.__version__}
        text = json.dumps({**made_with, "calls": listed}, indent=1)
        out.write_text(text + "\n", encoding="utf-8")
        print("\n" + json.dumps({"unrefused": unrefused(calls)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
