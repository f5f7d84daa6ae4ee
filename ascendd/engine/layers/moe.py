"""Mixture of experts (DeepSeek-V2, 2024): a router sends each token through a few of many small MLPs."""

from __future__ import annotations

import torch
from torch.nn import functional

from ascendd.config.expert_facts import ExpertFacts
from ascendd.config.model_facts import ModelFacts
from ascendd.engine.layers.mlp import GatedMLP
from ascendd.engine.layers.weight_scope import WeightScope


class ExpertRouter:
    """Scores are a softmax over all experts, in float32 because near ties decide which MLP runs."""

    def __init__(self, scope: WeightScope, experts: ExpertFacts) -> None:
        self._experts = experts
        self._weight = scope.tensor("gate.weight").float()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return expert ids int64 and weights float32, each [num_tokens, num_per_token]. x [num_tokens, hidden]."""
        experts = self._experts
        scores = functional.linear(x.float(), self._weight).softmax(dim=-1)
        if experts.topk_method == "group_limited_greedy":
            scores = self._limited_to_groups(scores)
        weights, expert_ids = scores.topk(experts.num_per_token, dim=-1, sorted=False)
        if experts.norm_topk_prob and experts.num_per_token > 1:
            # As in the model's published code, weights that sum to one are not scaled as well.
            return expert_ids, weights / weights.sum(dim=-1, keepdim=True).add(1e-20)
        return expert_ids, weights * experts.routed_scaling_factor

    def _limited_to_groups(self, scores: torch.Tensor) -> torch.Tensor:
        """Set the scores of all but the best groups to 0; a group is as good as its best expert."""
        grouped = scores.view(scores.shape[0], self._experts.num_groups, -1)
        best = grouped.amax(dim=-1).topk(self._experts.num_limited_groups, dim=-1, sorted=False).indices
        is_allowed = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=scores.device).scatter_(1, best, True)
        return grouped.masked_fill(~is_allowed[..., None], 0.0).flatten(1)


class MixtureOfExperts:
    """
    Routed experts, plus one MLP that every token passes.

    Every rank has a slice of each expert and routes alike, since router and hidden states are whole everywhere; what
    the experts of a token give is added up over the ranks once, at the end.
    """

    def __init__(self, scope: WeightScope, facts: ModelFacts) -> None:
        assert facts.experts is not None
        self._kernels = scope.device.kernels
        self._group = scope.group
        self._router = ExpertRouter(scope, facts.experts)
        routed = (scope.child(f"experts.{index}") for index in range(facts.experts.num_routed))
        self._experts = scope.device.pack_experts(
            facts.experts.num_routed,
            ((expert.tensor("gate_up_proj.weight"), expert.tensor("down_proj.weight")) for expert in routed),
        )
        self._shared = GatedMLP(scope.child("shared_experts"), is_partial=True) if facts.experts.num_shared else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [num_tokens, hidden] to [num_tokens, hidden]."""
        expert_ids, weights = self._router.forward(x)
        out = self._kernels.experts(x, expert_ids, weights, self._experts)
        if self._shared is not None:
            out.add_(self._shared.forward(x))
        return self._group.all_reduce(out)
