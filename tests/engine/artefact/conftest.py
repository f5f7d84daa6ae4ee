"""Tiny random models on disk: as transformers saves them, and as GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

SIZES = {
    "hidden_size": 36,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 101,
    "max_position_embeddings": 64,
}
ModelMaker = Callable[..., Any]
GgufMaker = Callable[..., Path]
_GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


@pytest.fixture
def save_model() -> ModelMaker:
    """`save_model(folder, family="llama", shards=False, dtype=float32, **config)` saves and returns a random model."""

    def save(
        folder: Path, family: str = "llama", *, shards: bool = False, dtype: torch.dtype = torch.float32, **changes: Any
    ) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

        torch.manual_seed(7)
        config_class, model_class = {
            "llama": (LlamaConfig, LlamaForCausalLM),
            "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        }[family]
        model = model_class(config_class(**{**SIZES, **changes}))
        for parameter in model.parameters():  # transformers leaves biases at 0 and norms at 1
            torch.nn.init.normal_(parameter, std=0.5)
        model.to(dtype).save_pretrained(folder, max_shard_size="20KB" if shards else "1GB")
        return model

    return save


@pytest.fixture
def write_gguf() -> GgufMaker:
    """`write_gguf(path, model, kind=..., **metadata)` writes a model of transformers the way llama.cpp stores it."""

    def write(
        path: Path,
        model: Any,
        kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
        architecture: str = "llama",
        add: Callable[[gguf.GGUFWriter], None] | None = None,
    ) -> Path:
        config = model.config
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(10000.0)
        add_byte_level_tokenizer(writer, config.vocab_size)
        if add is not None:
            add(writer)
        for name, tensor in model.state_dict().items():
            if name == "lm_head.weight" and config.tie_word_embeddings:
                continue
            _add_tensor(writer, name, tensor, kind, config, is_permuted=architecture == "llama")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def add_byte_level_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """Give the file a vocabulary of printable bytes and one merge."""
    tokens = ["<|end|>", "he", *(chr(33 + index) for index in range(vocab_size - 2))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (vocab_size - 1))
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(0)


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a tensor."""
    base, _, suffix = name.rpartition(".")
    if base in _GGUF_NAMES:
        return f"{_GGUF_NAMES[base]}.{suffix}"
    _, _, layer, rest = base.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[rest]}.{suffix}"


def _add_tensor(
    writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor, kind: Any, config: Any, *, is_permuted: bool
) -> None:
    data = tensor.float().numpy()
    for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
        if is_permuted and part in name:
            halves = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:])
            data = halves.swapaxes(1, 2).reshape(data.shape)
    kind = kind if data.ndim > 1 else gguf.GGMLQuantizationType.F32
    plain = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
    if kind in plain:
        writer.add_tensor(gguf_name(name), np.ascontiguousarray(data, dtype=plain[kind]))
    else:
        writer.add_tensor(gguf_name(name), gguf.quantize(np.ascontiguousarray(data), kind), raw_dtype=kind)
