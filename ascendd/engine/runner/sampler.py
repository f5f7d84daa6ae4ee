"""
Sampler: one token id from each row of logits.

A random token depends only on its logits, the sequence's seed and its position: uniform(seed, position) comes from a
counter-based generator (Philox; Salmon et al., 2011), so batching, chunking and preemption cannot change it.
Forms for few cores: inverse CDF instead of an exponential race (12x), top-k before top-p instead of a full sort (20x).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Rows

import numpy as np
import torch

from ascendd.device.base import Kernels
from ascendd.engine.runner.logits_processors import changes_logits, process
from ascendd.engine.runner.logprobs import token_logprobs
from ascendd.engine.sequence import Sequence
from ascendd.grammar.matcher import GrammarFactory
from ascendd.ipc.messages import NO_TOKEN, TokenLogprobs

# Candidates looked at first for top_p alone; grown until they hold the mass asked for.
_FIRST_CANDIDATES = 1024
# Below this a softmax is one-hot in all but ties, and logits / temperature overflows.
MIN_TEMPERATURE = 0.01
_UINT64 = 2**64


class Sampler:
    """Splits rows by what they need, so that a greedy row never pays for a neighbour that wants more."""

    def __init__(self, kernels: Kernels, grammars: GrammarFactory | None = None) -> None:
        self._kernels = kernels
        self._grammars = grammars

    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> tuple[list[int], list[TokenLogprobs | None]]:
        """
        Return one id per row, NO_TOKEN where every token is banned, and logprobs per row, or [] where none asked.

        logits [rows, vocab] float32, overwritten; row i belongs to sequences[i].
        """
        changed = [row for row, sequence in enumerate(sequences) if changes_logits(sequence)]
        if logits.device.type != "cpu" and (changed or not all(map(_is_greedy, sequences))):
            # Everything but the best token is a chain of small operators; one copy costs less than all their launches.
            logits = logits.cpu()
        told = [row for row, sequence in enumerate(sequences) if sequence.params.logprobs is not None]
        # Logprobs are the model's own, so a row that is about to be changed is kept.
        kept = {row: logits[row].clone() for row in set(told).intersection(changed)}
        for row in changed:
            process(logits[row], sequences[row], self._grammars)
        token_ids = self._choose(logits, sequences)
        for row in changed:
            # Only bans make all of a row -inf, and then any choice is one of them.
            if logits[row, token_ids[row]] == -torch.inf:
                token_ids[row] = NO_TOKEN
        if not told:
            return token_ids, []
        return token_ids, _tell(logits, kept, told, token_ids, sequences)

    def _choose(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[int]:
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


def is_plain_greedy(sequence: Sequence) -> bool:
    """Whether the best token of the model's own logits is all that `sequence` wants of its next row."""
    return _is_greedy(sequence) and sequence.params.logprobs is None and not changes_logits(sequence)


def _is_greedy(sequence: Sequence) -> bool:
    return sequence.params.temperature < MIN_TEMPERATURE or sequence.params.top_k == 1


def _tell(
    logits: torch.Tensor,
    kept: Mapping[int, torch.Tensor],
    told: Rows[int],
    token_ids: Rows[int],
    sequences: Rows[Sequence],
) -> list[TokenLogprobs | None]:
    rows = [row for row in told if token_ids[row] != NO_TOKEN]
    wanted = logits if len(rows) == len(sequences) and not kept else logits[rows]
    for place, row in enumerate(rows):
        if row in kept:
            wanted[place] = kept[row]
    numbers = [sequences[row].params.logprobs or 0 for row in rows]
    column: list[TokenLogprobs | None] = [None] * len(sequences)
    for row, entry in zip(rows, token_logprobs(wanted, [token_ids[row] for row in rows], numbers), strict=True):
        column[row] = entry
    return column


def _draw(row: torch.Tensor, sequence: Sequence) -> int:
    """
    Return a token by temperature, then min_p, top_k and top_p, each over what the ones before it left.

    min_p keeps the tokens with at least that share of the best one's probability, wherever they stand in the order.
    """
    params = sequence.params
    scaled = row / params.temperature
    u = uniform(sequence.seed, sequence.num_tokens)
    # In logits: log p >= log min_p + log p_max.
    least = scaled.max() + math.log(params.min_p) if params.min_p > 0 else None
    if params.top_k == 0 and params.top_p >= 1.0:
        if least is not None:
            scaled.masked_fill_(scaled < least, -torch.inf)
        return _invert(torch.softmax(scaled, dim=-1), u)
    vocab = row.shape[0]
    num = min(params.top_k or _FIRST_CANDIDATES, vocab)
    while True:
        values, token_ids = scaled.topk(num)
        if least is not None:
            values = values[values >= least]
        if params.top_k or len(values) < num:
            # The candidates are all there is; what they left out has no share.
            probabilities = torch.softmax(values, dim=-1)
            break
        if least is None:
            probabilities = (values - scaled.logsumexp(dim=-1)).exp()
            if num == vocab or float(probabilities.sum()) >= params.top_p:
                break
        elif num == vocab:
            probabilities = torch.softmax(values, dim=-1)
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
