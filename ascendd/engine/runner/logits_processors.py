"""
What changes a sequence's logits before a token is chosen: allowed ids, grammar, bad words, min_tokens, bias,
penalties.

In this order, which is vLLM's. Each touches only the ids it is about; no history of the size of the vocabulary is kept.
"""

from __future__ import annotations

import numpy as np
import torch

from ascendd.engine.sequence import Sequence
from ascendd.grammar.matcher import GrammarFactory, Matcher


def changes_logits(sequence: Sequence) -> bool:
    """Whether `process` would do anything to the next row of `sequence`."""
    params = sequence.params
    return bool(
        sequence.num_output_tokens < params.min_tokens
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
        or params.logit_bias
        or params.bad_words
        or params.allowed_token_ids
        or params.grammar is not None
    )


def process(row: torch.Tensor, sequence: Sequence, grammars: GrammarFactory | None = None) -> None:
    """Change row [vocab] in place. Tokens that may not be drawn become -inf; `grammars` knows those of requests."""
    params = sequence.params
    state = _state_of(sequence, row.device, grammars)
    if state.allowed is not None:
        kept = row[state.allowed]
        row.fill_(-torch.inf)
        row[state.allowed] = kept
    if state.matcher is not None:
        state.matcher.update(sequence.token_ids, sequence.num_prompt_tokens)
        row.masked_fill_(torch.from_numpy(~state.matcher.allowed()).to(row.device), -torch.inf)
    if params.bad_words:
        row[_ends_of_bad_words(sequence)] = -torch.inf
    if sequence.num_output_tokens < params.min_tokens:
        row[[*params.stop_token_ids, *(() if params.ignore_eos else sequence.eos_token_ids)]] = -torch.inf
    if state.bias is not None:
        token_ids, values = state.bias
        row.index_add_(0, token_ids, values)
    if state.counts is not None:
        state.counts.update(sequence)
        _penalise(row, state.counts, sequence)


class TokenCounts:
    """
    The distinct tokens of a sequence and how often each is in its output; grows with the sequence.

    Valid across preemption, because tokens are never taken back. `with_prompt` adds prompt tokens with a count of 0.
    """

    def __init__(self, *, with_prompt: bool) -> None:
        self._with_prompt = with_prompt
        self._place: dict[int, int] = {}
        self._token_ids = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float32)
        self._num_taken = 0

    @property
    def token_ids(self) -> torch.Tensor:
        """Distinct ids, int64, in order of appearance."""
        return torch.from_numpy(self._token_ids[: len(self._place)])

    @property
    def counts(self) -> torch.Tensor:
        """How often each of `token_ids` is in the output, float32."""
        return torch.from_numpy(self._counts[: len(self._place)])

    def update(self, sequence: Sequence) -> None:
        """Take in the tokens that came since the last call."""
        num_prompt = sequence.num_prompt_tokens
        begin = self._num_taken if self._with_prompt else max(self._num_taken, num_prompt)
        for position in range(begin, sequence.num_tokens):
            place = self._place_of(sequence.token_ids[position])
            self._counts[place] += position >= num_prompt
        self._num_taken = sequence.num_tokens

    def _place_of(self, token_id: int) -> int:
        place = self._place.setdefault(token_id, len(self._place))
        if place == len(self._token_ids):
            self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._token_ids[place] = token_id
        return place


class _State:
    """The constant tensors of a sequence, made once, its counts, and its place in its grammar."""

    def __init__(self, sequence: Sequence, device: torch.device, grammars: GrammarFactory | None) -> None:
        params = sequence.params
        self.matcher: Matcher | None = None
        if params.grammar is not None:
            assert grammars is not None, "the sampler has no tokenizer to compile grammars for"
            self.matcher = grammars.matcher(params.grammar)
        self.allowed = torch.tensor(params.allowed_token_ids, device=device) if params.allowed_token_ids else None
        self.bias: tuple[torch.Tensor, torch.Tensor] | None = None
        if params.logit_bias:
            self.bias = (
                torch.tensor(list(params.logit_bias), device=device),
                torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=device),
            )
        self.counts: TokenCounts | None = None
        if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
            self.counts = TokenCounts(with_prompt=params.repetition_penalty != 1.0)


def _state_of(sequence: Sequence, device: torch.device, grammars: GrammarFactory | None) -> _State:
    if sequence.sampling_state is None:
        sequence.sampling_state = _State(sequence, device, grammars)
    state: _State = sequence.sampling_state
    return state


def _ends_of_bad_words(sequence: Sequence) -> list[int]:
    """Return the last token of each bad word whose other tokens the output ends with."""
    num_output = sequence.num_output_tokens
    ends = []
    for word in sequence.params.bad_words:
        num_before = len(word) - 1
        if num_before <= num_output and (
            num_before == 0 or tuple(sequence.token_ids[-num_before:]) == tuple(word[:-1])
        ):
            ends.append(word[-1])
    return ends


def _penalise(row: torch.Tensor, counts: TokenCounts, sequence: Sequence) -> None:
    params = sequence.params
    token_ids, times = counts.token_ids.to(row.device), counts.counts.to(row.device)
    values = row[token_ids]
    if params.repetition_penalty != 1.0:
        penalty = params.repetition_penalty
        values = torch.where(values > 0, values / penalty, values * penalty)
    if params.frequency_penalty:
        values = values - params.frequency_penalty * times
    if params.presence_penalty:
        values = values - params.presence_penalty * (times > 0)
    row[token_ids] = values
