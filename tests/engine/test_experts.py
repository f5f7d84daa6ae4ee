"""Routing and experts beside the rules written out."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from ascendd.config.expert_facts import ExpertFacts
from ascendd.device.kernels.reference import ReferenceKernels
from ascendd.engine.layers.moe import ExpertRouter


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class OneTensor:
    """A scope that holds the router's weight."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._weight = weight

    def tensor(self, name: str) -> torch.Tensor:
        assert name == "gate.weight"
        return self._weight


def route(x: torch.Tensor, weight: torch.Tensor, **changes: object) -> list[dict[int, float]]:
    """Return what each token chose: weight by expert id."""
    values = {
        "num_routed": 8, "num_per_token": 2, "num_shared": 0, "intermediate_size": 4, "first_layer": 0,
        "topk_method": "greedy", "num_groups": 4, "num_limited_groups": 1, "routed_scaling_factor": 1.5,
        "norm_topk_prob": False,
    }  # fmt: skip
    router = ExpertRouter(OneTensor(weight), ExpertFacts(**{**values, **changes}))  # type: ignore[arg-type]
    ids, weights = router.forward(x)
    return [dict(zip(row, found, strict=True)) for row, found in zip(ids.tolist(), weights.tolist(), strict=True)]


def test_greedy_takes_the_best_experts_and_scales() -> None:
    """The two largest probabilities of the softmax over all eight, times the factor."""
    x, weight = rand(5, 6), rand(8, 6, seed=1)
    scores = (x @ weight.T).softmax(dim=-1)

    for chosen, row in zip(route(x, weight), scores.tolist(), strict=True):
        best = sorted(range(8), key=lambda index: -row[index])[:2]
        assert chosen == pytest.approx({index: 1.5 * row[index] for index in best})


@pytest.mark.parametrize("num_limited_groups", [1, 2, 4])
def test_groups_limit_the_choice(num_limited_groups: int) -> None:
    """Only experts of the groups with the best single expert are chosen from; with all groups it is greedy."""
    x, weight = rand(40, 6), rand(8, 6, seed=1)
    scores = (x @ weight.T).softmax(dim=-1)
    found = route(x, weight, topk_method="group_limited_greedy", num_limited_groups=num_limited_groups)
    is_limited = False

    for chosen, row in zip(found, scores.tolist(), strict=True):
        groups = sorted(range(4), key=lambda group: -max(row[2 * group : 2 * group + 2]))[:num_limited_groups]
        allowed = [index for index in range(8) if index // 2 in groups]
        best = sorted(allowed, key=lambda index: -row[index])[:2]
        assert chosen == pytest.approx({index: 1.5 * row[index] for index in best})
        is_limited |= set(best) != set(sorted(range(8), key=lambda index: -row[index])[:2])
    assert is_limited is (num_limited_groups == 1)


def test_normed_weights_sum_to_one_and_are_not_scaled() -> None:
    """norm_topk_prob divides by the sum of the chosen, in place of the factor."""
    x, weight = rand(5, 6), rand(8, 6, seed=1)
    plain, normed = route(x, weight), route(x, weight, norm_topk_prob=True)

    for before, after in zip(plain, normed, strict=True):
        assert sum(after.values()) == pytest.approx(1.0)
        assert after == pytest.approx({index: value / sum(before.values()) for index, value in before.items()})


def test_each_active_expert_runs_once_over_all_its_tokens() -> None:
    """The weighted sum of chosen MLPs; one call an expert that somebody chose, none for the others."""
    x, calls = rand(6, 4), []
    gates, downs = rand(5, 6, 4, seed=1), rand(5, 4, 3, seed=2)
    ids, weights = torch.tensor([[0, 3], [3, 0], [1, 3], [3, 1], [0, 1], [3, 0]]), rand(6, 2, seed=3).abs()

    def linear(index: int, weight: torch.Tensor):
        def run(rows: torch.Tensor) -> torch.Tensor:
            calls.append((index, rows.shape[0]))
            return functional.linear(rows, weight)

        return run

    experts = [(linear(index, gates[index]), linear(index, downs[index])) for index in range(5)]
    out = ReferenceKernels().experts(x, ids, weights, experts)

    expected = torch.zeros(6, 4)
    for token in range(6):
        for index, weight in zip(ids[token].tolist(), weights[token], strict=True):
            gate, up = (gates[index] @ x[token]).chunk(2)
            expected[token] += weight * (downs[index] @ (functional.silu(gate) * up))
    assert torch.allclose(out, expected, atol=1e-5)
    assert calls == [(0, 4), (0, 4), (1, 3), (1, 3), (3, 5), (3, 5)]
