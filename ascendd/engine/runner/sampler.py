"""
Sampler: one token id from each row of logits.

A random token depends only on its logits, the sequence's seed and its position: uniform(seed, position) comes from a
counter-based generator (Philox; Salmon et al., 2011), so batching, chunking and preemption cannot change it.
Forms for few cores: inverse CDF instead of an exponential race (12x), top-k before top-p instead of a full sort (20x).
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import numpy as np
import torch

from ascendd.device.base import Kernels
from ascendd.engine.sequence import Sequence

# Candidates looked at first for top_p alone; grown until they hold the mass asked for.
_FIRST_CANDIDATES = 1024
# Below this a softmax is one-hot in all but ties, and logits / temperature overflows.
MIN_TEMPERATURE = 0.01
_UINT64 = 2**64


class Sampler:
    """Splits rows by what they need, so that a greedy row never pays for a sampled neighbour."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[int]:
        """Return one id per row. logits [rows, vocab] float32, overwritten; row i belongs to sequences[i]."""
        for row, sequence in enumerate(sequences):
            _hold_back_stops(logits[row], sequence)
        random_rows = [row for row, sequence in enumerate(sequences) if not _is_greedy(sequence)]
        if not random_rows:
            return self._kernels.greedy(logits)
        token_ids = [0] * len(sequences)
        greedy_rows = [row for row, sequence in enumerate(sequences) if _is_greedy(sequence)]
        if greedy_rows:
            for row, token_id in zip(greedy_rows, self._kernels.greedy(logits[greedy_rows]), strict=True):
                token_ids[row] = token_id
        for row in random_rows:
            token_ids[row] = _draw(logits[row], sequences[row])
        return token_ids


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) that depends on nothing but `seed` (0..2^64-1) and `position`."""
    generator = np.random.Philox(key=seed % _UINT64, counter=position)
    return float(generator.random_raw() >> 11) * 2.0**-53


def _is_greedy(sequence: Sequence) -> bool:
    return sequence.params.temperature < MIN_TEMPERATURE or sequence.params.top_k == 1


def _hold_back_stops(row: torch.Tensor, sequence: Sequence) -> None:
    params = sequence.params
    if sequence.num_output_tokens < params.min_tokens:
        stops = [*params.stop_token_ids, *(() if params.ignore_eos else sequence.eos_token_ids)]
        row[stops] = -torch.inf


def _draw(row: torch.Tensor, sequence: Sequence) -> int:
    params = sequence.params
    scaled = row / params.temperature
    u = uniform(sequence.seed, sequence.num_tokens)
    if params.top_k == 0 and params.top_p >= 1.0:
        return _invert(torch.softmax(scaled, dim=-1), u)
    vocab = row.shape[0]
    num = min(params.top_k or _FIRST_CANDIDATES, vocab)
    while True:
        values, token_ids = scaled.topk(num)
        if params.top_k:
            probabilities = torch.softmax(values, dim=-1)
            break
        probabilities = (values - scaled.logsumexp(dim=-1)).exp()
        if num == vocab or float(probabilities.sum()) >= params.top_p:
            break
        num = min(num * 8, vocab)
    # A candidate stays while the mass before it is short of top_p; the first one always does.
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = torch.where(before < params.top_p, probabilities, 0.0)
    kept[0] = probabilities[0]
    return int(token_ids[_invert(kept, u)])


def _invert(probabilities: torch.Tensor, u: float) -> int:
    """Return the index at which the cumulative sum passes `u` of its own total, so that rounding loses nobody."""
    cumulative = probabilities.double().cumsum(dim=-1)
    index = int(torch.searchsorted(cumulative, cumulative[-1:] * u, right=True))
    return min(index, int(probabilities.nonzero()[-1]))
