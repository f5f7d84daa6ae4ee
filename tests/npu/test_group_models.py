"""Greedy text of whole daemons over several stand-in NPUs beside the same model on one CPU, in float32."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

# A group starts twice in most of them: minutes, where other tests run beside it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROMPT = "hello there"
DEMO_PROMPT = "The capital of France is"
# Of DeepSeek-V2: latents, shared and routed experts in groups, one dense layer.
DEEPSEEK_V2 = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 1024, "tie_word_embeddings": False, "first_k_dense_replace": 1,
    "kv_lora_rank": 24, "q_lora_rank": 20, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "n_group": 4,
    "topk_group": 2, "topk_method": "group_limited_greedy", "routed_scaling_factor": 1.7, "eos_token_id": 256,
}  # fmt: skip


@pytest.fixture(scope="session")
def deepseek_folder(qwen2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random DeepSeek-V2 with the small Qwen2's tokenizer."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(**DEEPSEEK_V2)).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    folder = tmp_path_factory.mktemp("deepseek_v2")
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(qwen2_folder / name, folder / name)
    return folder


def test_two_stages(make_machine, serve, qwen2_folder, text_on_cpu) -> None:
    """Activations travel from device 0 to device 1 by HCCL's send and receive."""
    machine = make_machine(num_devices=2)
    expected = text_on_cpu(machine, qwen2_folder, PROMPT)
    npu = serve(machine, qwen2_folder, "npu", parallel={"pipeline_parallel_size": 2})
    npu.wait_ready()

    assert npu.text(PROMPT) == expected


@pytest.mark.torch
def test_deepseek_v2_on_two_tensor_ranks(make_machine, serve, deepseek_folder, text_on_cpu, pack) -> None:
    """Latents on both ranks, heads and experts halved."""
    machine = make_machine(num_devices=2)
    expected = text_on_cpu(machine, deepseek_folder, PROMPT)
    npu = serve(machine, pack(deepseek_folder, 2), "npu", parallel={"tensor_parallel_size": 2})
    npu.wait_ready()

    assert npu.text(PROMPT) == expected


@pytest.mark.demo
def test_the_demo_model_in_two_stages(make_machine, serve, demo_model, text_on_cpu) -> None:
    """Fifteen layers a device."""
    machine = make_machine(num_devices=2, hbm_bytes=4 << 30)
    expected = text_on_cpu(machine, demo_model, DEMO_PROMPT)
    npu = serve(machine, demo_model, "npu", parallel={"pipeline_parallel_size": 2})
    npu.wait_ready()

    assert npu.text(DEMO_PROMPT) == expected


@pytest.mark.demo
def test_the_demo_model_on_three_tensor_ranks(make_machine, serve, demo_model, demo_folder, text_on_cpu, pack) -> None:
    """Three query heads and one key-value head a device."""
    (source,) = demo_folder.glob("*.gguf")
    machine = make_machine(num_devices=3, hbm_bytes=4 << 30)
    expected = text_on_cpu(machine, demo_model, DEMO_PROMPT)
    npu = serve(machine, pack(source, 3), "npu", parallel={"tensor_parallel_size": 3})
    npu.wait_ready()

    assert npu.text(DEMO_PROMPT) == expected
