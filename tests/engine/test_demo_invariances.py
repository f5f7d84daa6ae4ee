"""
The invariances on the demo model, whose logits are close together as those of real models are.

Chunk and batch shapes round fp32 sums differently, which may flip a near tie; so tokens are held to the reference: each
is its best, or within 1e-3 of it, given the tokens before. Sampled tokens are compared as they are: a draw flips only
where the random number falls on the very edge of two tokens.
"""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

pytestmark = [pytest.mark.demo, pytest.mark.timeout(600)]

TEXTS = (
    "Name the planets.",
    "中国的首都是哪里？请用一句话回答，并说明它在中国的什么地方。",
    "You are a patient teacher. Explain to a child of ten, in three short sentences, why the sky is blue by day.",
)
NUM_TOKENS = 10
SEEDED = {"temperature": 0.8, "top_p": 0.95, "seed": 5}


@pytest.fixture(scope="module")
def prompts(demo_reference) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(demo_reference[0] / "tokenizer.json"))
    return [tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids for text in TEXTS]


@pytest.mark.parametrize(
    "engine",
    [
        {"max_num_seqs": 1, "max_num_batched_tokens": 1},
        {"max_num_seqs": 3, "max_num_batched_tokens": 7},
        {"max_num_seqs": 3, "max_num_batched_tokens": 64},
        {"block_size": 128},
        {"kv_cache_dtype": "float32", "max_num_blocks": 8, "max_model_len": 100},
    ],
    ids=["chunks-of-1", "chunks-of-7", "chunks-of-64", "block-128", "preempting"],
)
def test_how_it_is_computed_does_not_change_greedy_tokens(
    make_core, generate, demo_reference, prompts, first_wrong_token, engine
) -> None:
    """Chunks of 1, 7 and 64 tokens, blocks of 128, and a pool that preempts give tokens that the reference agrees with."""
    folder, model = demo_reference
    core = make_core(folder, **{"max_num_blocks": 64, **engine})
    answers = generate(core, prompts, NUM_TOKENS)

    assert [first_wrong_token(model, *pair) for pair in zip(prompts, answers, strict=True)] == [None] * len(prompts)
    assert (core.num_preemptions > 0) == (engine.get("max_num_blocks") == 8)


def test_a_prefix_hit_equals_a_miss(make_core, generate, demo_reference, prompts, first_wrong_token) -> None:
    """The second run reads the first one's blocks."""
    folder, model = demo_reference
    core = make_core(folder, max_num_blocks=64)
    generate(core, prompts, NUM_TOKENS)
    before = core._kv.num_prefix_hits
    answers = generate(core, prompts, NUM_TOKENS)

    assert core._kv.num_prefix_hits > before
    assert [first_wrong_token(model, *pair) for pair in zip(prompts, answers, strict=True)] == [None] * len(prompts)


def test_a_seed_gives_the_same_tokens_alone_batched_and_preempted(make_core, generate, demo_reference, prompts) -> None:
    """Drawn tokens depend on seed and position, not on company or history."""
    folder, _ = demo_reference
    alone_core = make_core(folder, max_num_blocks=64, enable_prefix_caching=False)
    alone = [generate(alone_core, [prompt], NUM_TOKENS, **SEEDED)[0] for prompt in prompts]
    batched = generate(make_core(folder, max_num_blocks=64), prompts, NUM_TOKENS, **SEEDED)
    tight = make_core(folder, max_num_blocks=8, max_model_len=100)
    preempted = generate(tight, prompts, NUM_TOKENS, **SEEDED)

    assert batched == alone
    assert preempted == alone
    assert tight.num_preemptions > 0
