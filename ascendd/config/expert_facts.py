"""ExpertFacts: the sizes and the routing rule of a mixture of experts as DeepSeek-V2 has it (2024)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ascendd.errors import ModelUnsupported

Size = Annotated[int, msgspec.Meta(ge=1)]
TOPK_METHODS = ("greedy", "group_limited_greedy")


class ExpertFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    Each token passes `num_per_token` of `num_routed` small MLPs, and one that all tokens share (`num_shared` as wide).

    With `group_limited_greedy` the experts stand in `num_groups` groups and only the `num_limited_groups` groups with
    the best expert are chosen from. The first `first_layer` layers have a plain MLP instead.
    """

    num_routed: Size
    num_per_token: Size
    num_shared: Annotated[int, msgspec.Meta(ge=0)]
    intermediate_size: Size
    first_layer: Annotated[int, msgspec.Meta(ge=0)]
    topk_method: str
    num_groups: Size
    num_limited_groups: Size
    routed_scaling_factor: float
    norm_topk_prob: bool

    @property
    def shared_size(self) -> int:
        """Width of the shared MLP, 0 where there is none."""
        return self.num_shared * self.intermediate_size

    def num_parameters(self, hidden_size: int) -> int:
        """Return the weights of one layer's experts and router."""
        return (self.num_routed + self.num_shared) * 3 * hidden_size * self.intermediate_size + self.num_router(
            hidden_size
        )

    def num_router(self, hidden_size: int) -> int:
        """Return the weights of one layer's router, which every rank holds whole."""
        return self.num_routed * hidden_size


def expert_facts(config: dict[str, Any], origin: str) -> ExpertFacts | None:
    """
    Read the sizes from a parsed config.json; None for a model without experts.

    Raises ModelUnsupported for a routing rule that the engine does not compute, KeyError or msgspec.ValidationError.
    """
    if not config.get("n_routed_experts"):
        return None
    method = config.get("topk_method") or "greedy"
    method = "greedy" if method == "gready" else method  # as the first published configurations spell it
    scoring = config.get("scoring_func") or "softmax"
    if method not in TOPK_METHODS:
        raise ModelUnsupported(f"{origin}: topk_method {method} is not supported; supported: {', '.join(TOPK_METHODS)}")
    if scoring != "softmax":
        raise ModelUnsupported(f"{origin}: scoring_func {scoring} is not supported; supported: softmax")
    if (config.get("moe_layer_freq") or 1) != 1:
        raise ModelUnsupported(f"{origin}: moe_layer_freq {config['moe_layer_freq']} is not supported; supported: 1")
    facts = msgspec.convert(
        {
            "num_routed": config["n_routed_experts"],
            "num_per_token": config["num_experts_per_tok"],
            "num_shared": config.get("n_shared_experts") or 0,
            "intermediate_size": config["moe_intermediate_size"],
            "first_layer": config.get("first_k_dense_replace") or 0,
            "topk_method": method,
            "num_groups": config.get("n_group") or 1,
            "num_limited_groups": config.get("topk_group") or 1,
            "routed_scaling_factor": float(config.get("routed_scaling_factor", 1.0)),
            "norm_topk_prob": bool(config.get("norm_topk_prob", False)),
        },
        ExpertFacts,
    )
    choice = facts.num_routed
    if method == "group_limited_greedy":
        if facts.num_routed % facts.num_groups or facts.num_limited_groups > facts.num_groups:
            raise ValueError(
                f"{facts.num_routed} experts cannot stand in n_group {facts.num_groups} with topk_group "
                f"{facts.num_limited_groups}"
            )
        choice = facts.num_routed // facts.num_groups * facts.num_limited_groups
    if facts.num_per_token > choice:
        raise ValueError(f"num_experts_per_tok {facts.num_per_token} is more than the {choice} experts to choose from")
    return facts
