"""Writes a whole Qwen2 folder of random weights: a few hundred kilobytes that load, tokenize and generate for real."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

VOCAB = 320
HIDDEN = 64
LAYERS = 2
HEADS = 4
KV_HEADS = 2
MLP = 128
POSITIONS = 16384
EOS = 256


def write(folder: Path, seed: int = 7) -> Path:
    """Write config, tokenizer and weights into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    save_file(_weights(np.random.default_rng(seed)), folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|end|>",
                "chat_template": "{% for tool in tools or [] %}<tool_call> may call {{ tool.function.name }}\n{% endfor %}"
                "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: ",
            }
        )
    )
    return folder


def _weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(*shape: int) -> np.ndarray:
        return rng.normal(0.0, 0.05, shape).astype(np.float32)

    head = HIDDEN // HEADS
    weights = {
        "model.embed_tokens.weight": matrix(VOCAB, HIDDEN),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights |= {
            at + "input_layernorm.weight": np.ones(HIDDEN, np.float32),
            at + "post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
            at + "self_attn.q_proj.weight": matrix(HIDDEN, HIDDEN),
            at + "self_attn.q_proj.bias": matrix(HIDDEN),
            at + "self_attn.k_proj.weight": matrix(KV_HEADS * head, HIDDEN),
            at + "self_attn.k_proj.bias": matrix(KV_HEADS * head),
            at + "self_attn.v_proj.weight": matrix(KV_HEADS * head, HIDDEN),
            at + "self_attn.v_proj.bias": matrix(KV_HEADS * head),
            at + "self_attn.o_proj.weight": matrix(HIDDEN, HIDDEN),
            at + "mlp.gate_proj.weight": matrix(MLP, HIDDEN),
            at + "mlp.up_proj.weight": matrix(MLP, HIDDEN),
            at + "mlp.down_proj.weight": matrix(HIDDEN, MLP),
        }
    return weights


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    from tokenizers import decoders

    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    assert tokenizer.token_to_id("<|end|>") == EOS
    return tokenizer


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), *map(int, sys.argv[2:])))
