"""What changes the logits, beside dense forms written here: one row of the whole vocabulary, one history of all tokens."""

from __future__ import annotations

import math

import pytest
import torch

from ascendd.device.kernels.cpu import CpuKernels
from ascendd.engine.runner.logits_processors import changes_logits, process
from ascendd.engine.runner.sampler import Sampler, uniform
from ascendd.engine.sequence import Sequence
from ascendd.ipc.messages import NO_TOKEN, SamplingParams

VOCAB = 400


def sequence_of(prompt: list[int], output: list[int], seed: int = 3, **params: object) -> Sequence:
    sampling = SamplingParams(**{"max_tokens": 64, **params})  # type: ignore[arg-type]
    sequence = Sequence(seq_id=1, token_ids=list(prompt), params=sampling, seed=seed, eos_token_ids=frozenset({2}))
    sequence.token_ids += output
    return sequence


def dense(row: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    """The same rules with masks and counts over the whole vocabulary."""
    params, num_prompt = sequence.params, sequence.num_prompt_tokens
    prompt, output = sequence.token_ids[:num_prompt], sequence.token_ids[num_prompt:]
    row = row.clone()
    if params.allowed_token_ids:
        mask = torch.ones(VOCAB, dtype=torch.bool)
        mask[list(params.allowed_token_ids)] = False
        row[mask] = -math.inf
    for word in params.bad_words:
        if len(word) == 1 or output[len(output) - len(word) + 1 :] == list(word[:-1]):
            row[word[-1]] = -math.inf
    if len(output) < params.min_tokens:
        row[[*params.stop_token_ids, *sequence.eos_token_ids]] = -math.inf
    bias = torch.zeros(VOCAB)
    for token_id, value in params.logit_bias.items():
        bias[token_id] = value
    row = row + bias
    counts = torch.bincount(torch.tensor(output, dtype=torch.int64), minlength=VOCAB)
    seen = (counts + torch.bincount(torch.tensor(prompt), minlength=VOCAB)) > 0
    penalised = torch.where(row > 0, row / params.repetition_penalty, row * params.repetition_penalty)
    row = torch.where(seen, penalised, row)
    return row - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)


CASES = {
    "presence": {"presence_penalty": 0.7},
    "frequency": {"frequency_penalty": -0.4},
    "repetition": {"repetition_penalty": 1.3},
    "all penalties": {"presence_penalty": -1.0, "frequency_penalty": 0.3, "repetition_penalty": 0.8},
    "bias": {"logit_bias": {0: 5.0, 7: -100.0, 399: 0.25}},
    "bad words": {"bad_words": ((5,), (9, 9, 4), (8, 1), tuple(range(40)))},
    "allowed": {"allowed_token_ids": (3, 9, 17, 200)},
    "min_tokens": {"min_tokens": 30, "stop_token_ids": (11, 12)},
    "everything": {
        "presence_penalty": 0.5, "frequency_penalty": 0.2, "repetition_penalty": 1.1, "logit_bias": {9: 3.0},
        "bad_words": ((9, 9, 4),), "allowed_token_ids": tuple(range(2, 300)), "min_tokens": 30,
    },
}  # fmt: skip


@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
def test_touched_ids_give_the_dense_row(params) -> None:
    """Step by step over 150 tokens, the row is that of the dense form; the state is carried from step to step."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 60, (150,), generator=generator).tolist()
    tokens[20:22] = [9, 9]
    sequence = sequence_of([9, 9, 4, 8, 300, 300], [], **params)
    for length in range(151):
        row = torch.randn(VOCAB, generator=generator) * 4
        expected = dense(row, sequence)
        process(row, sequence)

        torch.testing.assert_close(row, expected, rtol=0, atol=1e-5)
        if length < 150:
            sequence.token_ids.append(tokens[length])


def test_a_row_without_such_fields_is_left_alone() -> None:
    """Plain sequences are known as such and keep no state."""
    plain = sequence_of([1], [], temperature=0.7, top_p=0.5, logprobs=3)

    assert not changes_logits(plain)
    assert changes_logits(sequence_of([1], [], min_tokens=1))
    assert not changes_logits(sequence_of([1], [5], min_tokens=1))
    Sampler(CpuKernels()).sample(torch.randn(1, VOCAB), [plain])
    assert plain.sampling_state is None


def test_bad_words_of_several_tokens_hold_in_the_output_only() -> None:
    """A word's last token is banned behind its others, and not where these stand in the prompt."""
    logits = torch.zeros(1, VOCAB)
    logits[0, 4] = 5.0
    words = ((9, 8, 4),)

    def greedy(prompt: list[int], output: list[int]) -> int:
        sequence = sequence_of(prompt, output, temperature=0.0, bad_words=words)
        return Sampler(CpuKernels()).sample(logits.clone(), [sequence])[0][0]

    assert greedy([1], [9, 8]) != 4
    assert greedy([1], [8, 9]) == 4
    assert greedy([1], [8]) == 4
    assert greedy([9], [8]) == 4
    assert greedy([9, 8], []) == 4


@pytest.mark.parametrize("extra", [{"temperature": 0.0}, {}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}, {"min_p": 0.1, "top_p": 0.5}], ids=repr)  # fmt: skip
def test_no_token_left_is_told_and_neighbours_are_unharmed(extra) -> None:
    """Bans that leave nothing give NO_TOKEN for that row, without NaN, and the row beside it its own token."""
    empty = sequence_of([1], [], allowed_token_ids=(2,), min_tokens=3, logprobs=1, **extra)
    plain = sequence_of([1], [], logprobs=1, **extra)
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(1))
    alone = Sampler(CpuKernels()).sample(logits[1:].clone(), [plain])
    token_ids, logprobs = Sampler(CpuKernels()).sample(logits.clone(), [empty, plain])

    assert token_ids == [NO_TOKEN, alone[0][0]]
    assert logprobs == [None, alone[1][0]]


def dense_support(row: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Probabilities [vocab] after temperature, min_p, top_k and top_p, by a full sort."""
    scaled = (row / params.temperature).double()
    probabilities = torch.softmax(scaled, -1)
    scaled = scaled.masked_fill(probabilities < params.min_p * probabilities.max(), -math.inf)
    order = scaled.argsort(descending=True, stable=True)
    if params.top_k:
        scaled[order[params.top_k :]] = -math.inf
    ordered = torch.softmax(scaled[order], -1)
    kept = ordered.cumsum(-1) - ordered < params.top_p
    kept[0] = True
    result = torch.zeros(len(row), dtype=torch.float64)
    result[order] = torch.where(kept, ordered, 0.0)
    return result / result.sum()


@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("top_k", [0, 1, 7, 300])
@pytest.mark.parametrize("min_p", [0.0, 0.02, 0.4, 1.0])
def test_truncation_equals_a_full_sort(monkeypatch, top_p, top_k, min_p) -> None:
    """Over an even grid of uniforms the share of each token is its probability after a full sort, to one draw."""
    num = 300
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(8)) * 2
    one = sequence_of([1], [], temperature=0.8, top_p=top_p, top_k=top_k, min_p=min_p)
    expected = dense_support(row, one.params)
    sampler = Sampler(CpuKernels())
    monkeypatch.setattr("ascendd.engine.runner.sampler.uniform", lambda seed, _: (seed + 0.5) / num)
    drawn = torch.zeros(VOCAB)
    for number in range(num):
        one.seed = number
        drawn[sampler.sample(row[None].clone(), [one])[0][0]] += 1

    assert not drawn[expected == 0].any()
    assert (drawn - num * expected).abs().max() < 1.01


def test_a_draw_is_the_inverse_of_the_cumulative_sum() -> None:
    """With min_p alone the token is the one at which the masked probabilities, in order of id, pass uniform(seed, position)."""
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    for seed in range(200):
        one = sequence_of([1, 5], [], seed=seed, temperature=1.0, min_p=0.1)
        cumulative = dense_support(row, one.params).cumsum(-1)
        u = uniform(seed, 2)
        token_id = Sampler(CpuKernels()).sample(row[None].clone(), [one])[0][0]

        assert cumulative[token_id] >= u - 1e-6
        assert token_id == 0 or cumulative[token_id - 1] <= u + 1e-6
