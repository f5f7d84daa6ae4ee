"""VocabularyShards: logits that are cut over the vocabulary, one part a rank, put together as far as needed."""

from __future__ import annotations

import torch

from ascendd.device.base import Kernels
from ascendd.engine.parallel.rank_group import TensorGroup


class VocabularyShards:
    """Rank r has the logits of tokens [r x num_rows, (r + 1) x num_rows); the last rank's may end in padding."""

    def __init__(self, group: TensorGroup, vocab_size: int) -> None:
        self._group = group
        self._vocab_size = vocab_size
        self._num_rows = -(-vocab_size // group.size)
        self._offset = group.rank * self._num_rows
        self._num_real = max(0, min(self._num_rows, vocab_size - self._offset))

    def gather(self, logits: torch.Tensor) -> torch.Tensor:
        """Return logits [rows, vocab] on every rank. logits [rows, num_rows] are this rank's."""
        return torch.cat(self._group.all_gather(logits), dim=1)[:, : self._vocab_size]

    def greedy(self, logits: torch.Tensor, kernels: Kernels) -> list[int]:
        """
        Return the best token of each row, from one pair of numbers a rank and row instead of the logits.

        Of equal logits the lowest token wins, as it does on one rank.
        """
        # float32 holds every integer up to 2**24, more than any vocabulary, so one gather carries both.
        pairs = torch.empty((logits.shape[0], 2), dtype=torch.float32, device=logits.device)
        if self._num_real:
            best = torch.tensor(kernels.greedy(logits[:, : self._num_real]), device=logits.device)
            pairs[:, 0] = logits.gather(1, best[:, None])[:, 0]
            pairs[:, 1] = best + self._offset
        else:
            pairs[:, 0], pairs[:, 1] = -torch.inf, self._vocab_size - 1
        everybody = torch.stack(self._group.all_gather(pairs))  # [ranks, rows, 2]
        winner = everybody[:, :, 0].argmax(dim=0)
        return [
            int(token) for token in everybody[winner, torch.arange(logits.shape[0], device=logits.device), 1].tolist()
        ]
