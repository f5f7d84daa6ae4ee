"""Log probabilities of drawn tokens and of prompts, from the model's own logits; only rows that asked pay for them."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch

from ascendd.engine.sched.output import ScheduledChunk
from ascendd.ipc.messages import TokenLogprobs

# Rows taken at once: bounds the temporaries, each as large as the logits of these rows.
_SLICE = 16


def token_logprobs(logits: torch.Tensor, token_ids: Rows[int], num_top: Rows[int]) -> list[TokenLogprobs]:
    """
    Return how likely token_ids[i] is under row i, with the num_top[i] most likely tokens.

    logits [rows, vocab] float32 is left as it is. A log probability is logit - logsumexp(row); nothing is normalised
    that is not told.
    """
    told: list[TokenLogprobs] = []
    for begin in range(0, len(token_ids), _SLICE):
        told += _slice(
            logits[begin : begin + _SLICE], token_ids[begin : begin + _SLICE], num_top[begin : begin + _SLICE]
        )
    return told


def score_prompts(logits: torch.Tensor, chunks: Rows[ScheduledChunk]) -> dict[int, list[TokenLogprobs]]:
    """Return seq_id -> an entry for each scored position of its chunk; logits has their rows in this order."""
    scored: dict[int, list[TokenLogprobs]] = {}
    begin = 0
    for chunk in chunks:
        sequence, positions = chunk.sequence, chunk.scored_positions
        if not positions:
            continue
        end = begin + len(positions)
        num_top = sequence.params.prompt_logprobs or 0
        targets = sequence.token_ids[positions.start + 1 : positions.stop + 1]
        scored[sequence.seq_id] = token_logprobs(logits[begin:end], targets, [num_top] * len(targets))
        begin = end
    assert begin == logits.shape[0], "a row of logits belongs to no prompt token"
    return scored


def _slice(logits: torch.Tensor, token_ids: Rows[int], num_top: Rows[int]) -> list[TokenLogprobs]:
    total = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(1, torch.tensor(token_ids, device=logits.device)[:, None])
    ranks = (logits > chosen).sum(dim=-1).add_(1).tolist()
    top, top_ids = logits.topk(max(num_top), dim=-1)
    columns = zip(
        (chosen - total)[:, 0].tolist(), ranks, top_ids.tolist(), (top - total).tolist(), num_top, strict=True
    )
    return [TokenLogprobs(logprob, rank, ids[:num], values[:num]) for logprob, rank, ids, values, num in columns]
