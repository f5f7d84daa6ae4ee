"""RankPlace: where one rank stands in the grid of tensor x pipeline parallelism. Pure."""

from __future__ import annotations

import msgspec


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """
    Rank = pp_rank x tp_size + tp_rank: the ranks of one stage follow each other, as do the devices they use.

    The ranks of a stage hold slices of the same layers; the stages hold the layers one after the other.
    """

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1

    @classmethod
    def of(cls, rank: int, tp_size: int, pp_size: int) -> RankPlace:
        """Return the place of `rank` in 0 .. tp_size x pp_size - 1."""
        assert 0 <= rank < tp_size * pp_size, f"rank {rank} of {tp_size * pp_size}"
        return cls(tp_rank=rank % tp_size, tp_size=tp_size, pp_rank=rank // tp_size, pp_size=pp_size)

    @property
    def rank(self) -> int:
        """Number among all ranks."""
        return self.pp_rank * self.tp_size + self.tp_rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp_size * self.pp_size

    @property
    def is_first_stage(self) -> bool:
        """Whether tokens enter here."""
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether logits leave here."""
        return self.pp_rank == self.pp_size - 1

    @property
    def draws(self) -> bool:
        """Whether this one rank of all draws the tokens."""
        return self.is_last_stage and self.tp_rank == 0

    def layers(self, num_layers: int) -> range:
        """Return the layers of this stage; the first stages take one more where the division leaves a rest."""
        share, rest = divmod(num_layers, self.pp_size)
        start = self.pp_rank * share + min(self.pp_rank, rest)
        return range(start, start + share + (self.pp_rank < rest))

    def __str__(self) -> str:
        parts = []
        if self.tp_size > 1:
            parts.append(f"tensor {self.tp_rank} of {self.tp_size}")
        if self.pp_size > 1:
            parts.append(f"stage {self.pp_rank} of {self.pp_size}")
        return f"rank {self.rank}" + (f" ({', '.join(parts)})" if parts else "")
