"""Sampling: distribution, truncation, seeds, and rows that do not disturb each other."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from ascendd.device.kernels.cpu import CpuKernels
from ascendd.device.kernels.reference import ReferenceKernels
from ascendd.engine.runner.sampler import Sampler, uniform
from ascendd.engine.sequence import Sequence
from ascendd.ipc.messages import SamplingParams


def sequence(seed: int = 0, position: int = 5, *, eos: tuple[int, ...] = (), **params: object) -> Sequence:
    sampling = SamplingParams(**{"max_tokens": 16, **params})  # type: ignore[arg-type]
    return Sequence(seq_id=seed, token_ids=[1] * position, params=sampling, seed=seed, eos_token_ids=frozenset(eos))


def choose(row: torch.Tensor, one: Sequence) -> int:
    """The id that is chosen for `one` from its row of logits."""
    return Sampler(CpuKernels()).sample(row[None].clone(), [one])[0][0]


def draw_many(logits: torch.Tensor, num: int = 4000, **params: object) -> Counter[int]:
    return Counter(choose(logits, sequence(seed, **params)) for seed in range(num))


def test_uniform_depends_on_seed_and_position_alone() -> None:
    """The same pair gives the same number, another pair another; the mean is near one half."""
    values = [uniform(seed, position) for seed in range(40) for position in range(50)]

    assert values == [uniform(seed, position) for seed in range(40) for position in range(50)]
    assert len(set(values)) == len(values)
    assert abs(sum(values) / len(values) - 0.5) < 0.02
    assert all(0.0 <= value < 1.0 for value in values)
    assert uniform(2**64 - 1, 3) != uniform(0, 3)


def test_frequencies_follow_the_softmax() -> None:
    """4,000 draws of four tokens lie within four standard deviations of their probabilities."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    counts = draw_many(logits, temperature=1.0)

    for token_id, probability in enumerate(torch.softmax(logits, -1).tolist()):
        assert abs(counts[token_id] - 4000 * probability) < 4 * math.sqrt(4000 * probability * (1 - probability))


def test_temperature_sharpens() -> None:
    """A lower temperature gives the best token more of the draws."""
    logits = torch.tensor([1.0, 0.0, 0.0])

    assert draw_many(logits, temperature=0.3)[0] > draw_many(logits, temperature=1.5)[0] + 500


def test_top_k_keeps_k_tokens() -> None:
    """No token outside the k best is ever drawn, and each of the k is."""
    assert set(draw_many(torch.tensor([0.0, 3.0, 2.9, 2.8, -1.0]), temperature=1.0, top_k=3)) == {1, 2, 3}


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    """Probabilities 0.5, 0.3, 0.15, 0.05: top_p 0.7 keeps two, 0.81 three."""
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()

    assert set(draw_many(logits, temperature=1.0, top_p=0.7)) == {0, 1}
    assert set(draw_many(logits, temperature=1.0, top_p=0.81)) == {0, 1, 2}
    assert set(draw_many(logits, 200, temperature=1.0, top_p=1e-6)) == {0}


def test_top_p_looks_beyond_the_first_candidates_where_the_mass_is_flat() -> None:
    """On 5,000 equal tokens top_p 0.9 must reach about 4,500 of them, more than the first look holds."""
    counts = draw_many(torch.zeros(5000), 3000, temperature=1.0, top_p=0.9)

    assert len(counts) > 1500
    assert max(counts.values()) < 12


def test_a_tiny_temperature_is_greedy() -> None:
    """Logits / 1e-5 would overflow; the best token is what it stands for (case B49)."""
    for temperature in (1e-5, 1e-4, 1e-3, 0.0):
        assert set(draw_many(torch.tensor([1.0, 50.0, 49.0]), 20, temperature=temperature)) == {1}


def test_greedy_and_sampled_rows_of_one_step_do_not_disturb_each_other() -> None:
    """A row with -inf logits beside a sampled row: no NaN, and each row is what it is alone (case B50)."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 50, generator=generator)
    logits[0, 10:] = -torch.inf
    sequences = [sequence(1, temperature=0.0), sequence(2, temperature=1.0), sequence(3, temperature=0.7, top_k=5)]
    together, _ = Sampler(CpuKernels()).sample(logits.clone(), sequences)

    assert together == [choose(logits[row], sequences[row]) for row in range(3)]
    assert together[0] < 10


def test_min_tokens_holds_back_every_stop() -> None:
    """Neither an EOS id of the model nor a stop id of the request before min_tokens (case B18)."""
    logits = torch.tensor([0.0, 9.0, 8.0, 7.0, 1.0])
    early = sequence(temperature=0.0, eos=(1, 2), stop_token_ids=(3,), min_tokens=1)

    assert choose(logits, early) == 4
    early.token_ids.append(4)
    assert choose(logits, early) == 1


@pytest.mark.parametrize("rows", [1, 5])
def test_the_fast_argmax_equals_the_reference(rows) -> None:
    """Numpy's and torch's argmax agree, also on ties (the first wins)."""
    logits = torch.randint(0, 50, (rows, 3000), generator=torch.Generator().manual_seed(rows)).float()

    assert CpuKernels().greedy(logits) == [int((row == row.max()).nonzero()[0]) for row in logits]
    assert ReferenceKernels().greedy(torch.randn(2, 9).sort().values) == [8, 8]
