"""ShardedSampler: tokens from logits that are cut over the vocabulary, with as little of them gathered as will do."""

from __future__ import annotations

import torch

from ascendd.device.base import Kernels
from ascendd.engine.layers.vocabulary import VocabularyShards
from ascendd.engine.runner.logprobs import score_prompts
from ascendd.engine.runner.sampler import Sampler, is_plain_greedy
from ascendd.engine.sched.output import ModelRunnerOutput, SchedulerOutput


class ShardedSampler:
    """
    Rows that want no more than the best token never leave their rank; the others are gathered for the rank that draws.

    Every rank sorts the rows alike, since all know all sequences, so all enter the same collectives.
    """

    def __init__(self, vocabulary: VocabularyShards, sampler: Sampler, kernels: Kernels, *, draws: bool) -> None:
        self._vocabulary = vocabulary
        self._sampler = sampler
        self._kernels = kernels
        self._draws = draws

    def choose(self, logits: torch.Tensor, drawn: torch.Tensor | None, output: SchedulerOutput) -> ModelRunnerOutput:
        """
        Draw from logits [rows, part of vocab]; the rank that does not draw returns nothing of use.

        `drawn` [rows] says which of the rows draw a token, where the others only score a prompt.
        """
        sequences = [chunk.sequence for chunk in output.sampling_chunks]
        rows = torch.arange(logits.shape[0]) if drawn is None else drawn.cpu().nonzero()[:, 0]
        is_plain = torch.tensor([is_plain_greedy(sequence) for sequence in sequences], dtype=torch.bool)
        plain_rows = rows[is_plain]
        best: list[int] = []
        if plain_rows.shape[0]:
            best = self._vocabulary.greedy(logits[plain_rows.to(logits.device)], self._kernels)
        is_needed = torch.ones(logits.shape[0], dtype=torch.bool)
        is_needed[plain_rows] = False
        if not bool(is_needed.any()):
            return ModelRunnerOutput(best)
        whole = self._vocabulary.gather(logits[is_needed.to(logits.device)])
        if not self._draws:
            return ModelRunnerOutput([])
        prompt_logprobs, rest = {}, whole
        if drawn is not None:
            is_drawn = drawn.cpu()[is_needed].to(whole.device)
            prompt_logprobs = score_prompts(whole[~is_drawn], output.chunks)
            rest = whole[is_drawn]
        others = [sequence for sequence in sequences if not is_plain_greedy(sequence)]
        token_ids, logprobs = self._sampler.sample(rest, others)
        # Back into the order of the chunks.
        greedy, chosen = iter(best), iter(zip(token_ids, logprobs or [None] * len(token_ids), strict=True))
        merged = [(next(greedy), None) if plain else next(chosen) for plain in is_plain.tolist()]
        return ModelRunnerOutput(
            [token for token, _ in merged], [told for _, told in merged] if logprobs else [], prompt_logprobs
        )
