"""LatentFacts: the sizes of multi-head latent attention (MLA, DeepSeek-V2, 2024), and what they cost."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

Size = Annotated[int, msgspec.Meta(ge=1)]


class LatentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    K and V of all heads come out of one latent vector a token, which is all that the cache holds.

    A key has `nope_dim` dimensions made from the latent and `rope_dim` rotated ones that all heads share. `q_rank` is
    None where queries come straight from the hidden state.
    """

    kv_rank: Size
    q_rank: Size | None
    nope_dim: Size
    rope_dim: Size
    value_dim: Size

    @property
    def query_dim(self) -> int:
        """Dimensions of a head's query and key."""
        return self.nope_dim + self.rope_dim

    @property
    def cached_dim(self) -> int:
        """Numbers that one token has in the cache of one layer."""
        return self.kv_rank + self.rope_dim

    def num_replicated(self, hidden_size: int, *, bias: bool) -> int:
        """Return the weights of one layer that every rank holds whole: the projections into the latents, and norms."""
        down = (self.q_rank or 0) + self.cached_dim
        norms = (self.q_rank or 0) + self.kv_rank
        return down * (hidden_size + bias) + norms

    def num_parameters(self, hidden_size: int, num_heads: int, *, bias: bool) -> int:
        """Return the weights of one layer's attention, output projection included."""
        up = num_heads * (
            (self.q_rank or hidden_size) * self.query_dim + self.kv_rank * (self.nope_dim + self.value_dim)
        )
        out = num_heads * self.value_dim * hidden_size + bias * hidden_size
        return self.num_replicated(hidden_size, bias=bias) + up + out


def latent_facts(config: dict[str, Any]) -> LatentFacts:
    """Read the sizes from a parsed config.json. Raises KeyError or msgspec.ValidationError."""
    return msgspec.convert(
        {
            "kv_rank": config["kv_lora_rank"],
            "q_rank": config.get("q_lora_rank"),
            "nope_dim": config["qk_nope_head_dim"],
            "rope_dim": config["qk_rope_head_dim"],
            "value_dim": config["v_head_dim"],
        },
        LatentFacts,
    )
