"""Our logits and tokens beside those of transformers, on random models of every supported shape."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer

SHAPES = [
    ("llama", {}),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"num_key_value_heads": 4}),
    ("llama", {"num_key_value_heads": 1, "head_dim": 24}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64, "rope_theta": 500000.0,
            }
        },
    ),
    ("qwen2", {}),
    ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    (
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128, "rope_theta": 10000.0,
            }
        },
    ),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    ("phi3", {}),
    ("phi3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    ("deepseek_v2", {}),
    ("deepseek_v2", {"q_lora_rank": None, "topk_method": "greedy", "n_group": 1, "topk_group": 1}),
    ("deepseek_v2", {"attention_bias": True, "first_k_dense_replace": 0}),
    ("deepseek_v2", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "num_hidden_layers": 3}),
]  # fmt: skip
IDS = [f"{family}-{'-'.join(shape) or 'plain'}" for family, shape in SHAPES]


@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
def test_logits_of_every_position_are_within_1e_4(make_core, logits_of, tiny_model, family, shape) -> None:
    """Chunked through the paged cache, fp32 logits equal those of one dense forward pass."""
    folder, reference = tiny_model(family, **shape)
    token_ids = torch.randint(0, 320, (43,), generator=torch.Generator().manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0]

    logits = logits_of(make_core(folder, max_num_blocks=32), token_ids, [20] + [1] * 23)  # a chunk, then lone decodes

    assert logits.sub(expected[19:]).abs().max() < 1e-4


@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
@pytest.mark.parametrize("sizes", [[100], [1] * 16 + [84], [64, 36], [33, 17, 50], [7] * 14 + [2]], ids=len)
def test_logits_do_not_depend_on_chunks(make_core, logits_of, tiny_model, family, shape, sizes) -> None:
    """However a prompt of 100 tokens is cut, the logits at every cut are those of the dense forward pass."""
    folder, reference = tiny_model(family, **shape)
    token_ids = torch.randint(0, 320, (100,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0]

    logits = logits_of(make_core(folder, max_num_blocks=32), token_ids, sizes)

    assert logits.sub(expected[torch.tensor(sizes).cumsum(0) - 1]).abs().max() < 1e-4


@pytest.mark.parametrize(("family", "shape"), SHAPES, ids=IDS)
def test_greedy_tokens_equal_those_of_transformers(make_core, generate, tiny_model, family, shape) -> None:
    """Eight prompts around block borders, batched, against generate() of each alone."""
    folder, reference = tiny_model(family, **shape)
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(0, 320, (size,), generator=generator).tolist() for size in (1, 2, 15, 16, 17, 31, 33, 90)]
    expected = [
        reference.generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]

    assert generate(make_core(folder, max_num_blocks=64), prompts) == expected


def test_a_converted_artefact_serves_the_same_tokens_as_its_source(make_core, generate, tiny_model, tmp_path) -> None:
    """Fusing at conversion and fusing on the fly give the same model."""
    folder, _ = tiny_model("qwen2")
    destination = tmp_path / "artefact"
    command = [sys.executable, "-m", "ascendd", "convert", "--without-tokenizer", str(folder), str(destination)]
    command += ["--dtype", "float32"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    prompts = [[5, 6, 7, 8], list(range(40))]

    assert result.returncode == 0, result.stderr
    assert generate(make_core(destination, max_num_blocks=16), prompts) == generate(
        make_core(folder, max_num_blocks=16), prompts
    )


@pytest.mark.demo
@pytest.mark.timeout(600)
def test_the_demo_model_gives_the_text_of_transformers(make_core, generate, demo_reference, first_wrong_token) -> None:
    """20 prompts x 32 greedy tokens, alone and eight at once; where the two best logits lie within 1e-3 either is right."""
    folder, model = demo_reference
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    core = make_core(folder, max_num_blocks=600)
    prompts = [
        tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids for text in DEMO_PROMPTS
    ]
    alone = [generate(core, [prompt], max_tokens=32)[0] for prompt in prompts]
    batched = [
        tokens for begin in range(0, 20, 8) for tokens in generate(core, prompts[begin : begin + 8], max_tokens=32)
    ]

    assert len(prompts) == 20
    for prompt, *candidates in zip(prompts, alone, batched, strict=True):
        for tokens in candidates:
            assert first_wrong_token(model, prompt, tokens) is None


DEMO_PROMPTS = (
    "What is the capital of France?", "Write a haiku about rain.", "Explain gravity to a child.", "List three prime numbers.",
    "Who wrote Hamlet?", "Translate 'good morning' to Spanish.", "What is 12 times 8?", "Name the planets.",
    "Give me a recipe for pancakes.", "Why is the sky blue?", "What does a database index do?", "Say hello.",
    "你好，请介绍一下你自己。", "中国的首都是哪里？", "请写一首关于春天的诗。", "什么是机器学习？", "1到5的数字是什么？",
    "Define entropy in one sentence.", "How do I boil an egg?", "Tell me a short story about a cat and a dog who become friends.",
)  # fmt: skip
