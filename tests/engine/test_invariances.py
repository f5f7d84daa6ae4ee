"""What must not change the tokens of a sequence: batch, chunks, cache, preemption, block size, seed of a neighbour."""

from __future__ import annotations

import pytest
import torch

PROMPTS = [
    torch.randint(0, 320, (size,), generator=torch.Generator().manual_seed(size)).tolist()
    for size in (3, 16, 17, 40, 70, 100)
]
SAMPLED = {"temperature": 0.9, "top_p": 0.9, "seed": 11}
# All that has a memory of the tokens before: penalties, bans and the bounds of length.
PENALISED = {
    "temperature": 0.9, "min_p": 0.02, "seed": 12, "presence_penalty": 0.5, "frequency_penalty": 0.3,
    "repetition_penalty": 1.2, "logit_bias": {7: 2.0, 8: -5.0}, "bad_words": ((9,), (10, 11)), "min_tokens": 4,
    "allowed_token_ids": tuple(range(3, 200)),
}  # fmt: skip


@pytest.fixture(params=["llama", "qwen2", "qwen3", "phi3", "deepseek_v2"])
def folder(request, tiny_model):
    return tiny_model(request.param)[0]


@pytest.fixture(params=[{}, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"])
def alone(request, make_core, generate, folder):
    """Tokens of each prompt alone in an engine of its own size, and the parameters they were drawn with."""
    core = make_core(folder, max_num_blocks=64, enable_prefix_caching=False)
    return [generate(core, [prompt], 12, **request.param)[0] for prompt in PROMPTS], request.param


def test_a_batch_does_not_change_tokens(make_core, generate, folder, alone) -> None:
    """All prompts at once give each the tokens it has alone."""
    expected, params = alone

    assert generate(make_core(folder, max_num_blocks=64), PROMPTS, 12, **params) == expected


@pytest.mark.parametrize("budget", [7, 16, 17, 64])
def test_chunk_size_does_not_change_tokens(make_core, generate, folder, alone, budget) -> None:
    """Prompts cut into chunks of any size, also across block borders, give the same tokens (case B92)."""
    expected, params = alone
    core = make_core(folder, max_num_blocks=64, max_num_seqs=6, max_num_batched_tokens=budget)

    assert generate(core, PROMPTS, 12, **params) == expected


def test_one_token_chunks_do_not_change_tokens(make_core, generate, folder, alone) -> None:
    """A prompt fed token by token is the same prompt."""
    expected, params = alone
    core = make_core(folder, max_num_blocks=64, max_num_seqs=1, max_num_batched_tokens=1)

    assert generate(core, PROMPTS[:3], 12, **params) == expected[:3]


def test_a_prefix_hit_does_not_change_tokens(make_core, generate, folder, alone) -> None:
    """The second and third run read cached blocks and give the tokens of the first (cases B41, B42)."""
    expected, params = alone
    core = make_core(folder, max_num_blocks=64)
    runs = [generate(core, PROMPTS, 12, **params) for _ in range(3)]

    assert runs == [expected] * 3
    assert core._kv.num_prefix_hits > 0


def test_preemption_does_not_change_tokens(make_core, generate, folder, alone) -> None:
    """A pool too small for all at once preempts and recomputes, and nothing is lost or doubled (cases B44, B45)."""
    expected, params = alone
    core = make_core(folder, max_num_blocks=8, max_model_len=120)

    assert generate(core, PROMPTS, 12, **params) == expected
    assert core.num_preemptions > 0
    assert core._kv.pool.num_free_blocks == 8


@pytest.mark.parametrize("block_size", [32, 64, 128])
def test_block_size_does_not_change_tokens(make_core, generate, folder, alone, block_size) -> None:
    """How the cache is cut is invisible."""
    expected, params = alone

    assert generate(make_core(folder, max_num_blocks=20, block_size=block_size), PROMPTS, 12, **params) == expected


def test_packed_linears_compute_the_same_tokens(make_core, generate, folder, alone) -> None:
    """Whatever form the load-time measurement picks, the tokens are those of plain linears."""
    expected, params = alone

    assert generate(make_core(folder, max_num_blocks=64, pack=False), PROMPTS, 12, **params) == expected


def test_a_half_precision_cache_stays_close(make_core, generate, folder) -> None:
    """kv_cache_dtype float16 rounds keys and values and still serves every request to its end."""
    core = make_core(folder, max_num_blocks=64, kv_cache_dtype="float16")
    tokens = generate(core, PROMPTS, 12)

    assert [len(ids) for ids in tokens] == [12] * len(PROMPTS)
    assert core.executor.runner._kv_caches[0].dtype is torch.float16
