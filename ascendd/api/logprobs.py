"""Logprobs as the two dialects write them. No number in them is one that JSON does not have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ascendd.api.logit_fields import LogprobSpec
from ascendd.api.prompts import Prompt
from ascendd.api.protocol import ChatLogprobs, ChatTokenLogprob, CompletionLogprobs, PromptLogprob, TopLogprob
from ascendd.api.token_bytes import TokenBytes
from ascendd.ipc.messages import TokenLogprobs

# Stands for -inf, which JSON does not have, and for anything below; OpenAI-compatible servers agree on it.
LEAST_LOGPROB = -9999.0


class TokenEntry(NamedTuple):
    """What is told of one token: `text` is its part of the answer's text, which begins at character `offset`."""

    token_id: int
    text: str
    offset: int
    scores: TokenLogprobs


def finite(logprob: float) -> float:
    """Return `logprob` as JSON can write it; what is no number becomes the least as well."""
    return logprob if LEAST_LOGPROB < logprob < math.inf else LEAST_LOGPROB


class LogprobReport:
    """Writes what one request asked to be told of its tokens."""

    def __init__(self, spec: LogprobSpec, tokens: TokenBytes) -> None:
        self._spec = spec
        self._tokens = tokens

    def completion(self, entries: Sequence[TokenEntry], shift: int = 0) -> CompletionLogprobs | None:
        """Return the columns of `entries`, whose offsets grow by `shift`; None where nothing is to be told."""
        if self._spec.output is None or not entries:
            return None
        return CompletionLogprobs(
            tokens=[entry.text for entry in entries],
            token_logprobs=[finite(entry.scores.logprob) for entry in entries],
            top_logprobs=[self._by_text(entry) for entry in entries],
            text_offset=[entry.offset + shift for entry in entries],
        )

    def echo(self, prompt: Prompt, scores: Sequence[TokenLogprobs]) -> CompletionLogprobs | None:
        """Return the columns of an echoed prompt: of its first token nobody can say how likely it was."""
        if self._spec.output is None:
            return None
        offset = len(prompt.pieces[0])
        entries = []
        for token_id, piece, score in zip(prompt.token_ids[1:], prompt.pieces[1:], scores, strict=True):
            entries.append(TokenEntry(token_id, piece, offset, score))
            offset += len(piece)
        columns = self.completion(entries) or CompletionLogprobs([], [], [], [])
        columns.tokens.insert(0, prompt.pieces[0])
        columns.token_logprobs.insert(0, None)
        columns.top_logprobs.insert(0, None)
        columns.text_offset.insert(0, 0)
        return columns

    def chat(self, entries: Sequence[TokenEntry]) -> ChatLogprobs | None:
        """Return an item for each of `entries`; None where nothing is to be told."""
        if self._spec.output is None or not entries:
            return None
        return ChatLogprobs(
            [
                ChatTokenLogprob(
                    token=self._tokens.text(entry.token_id),
                    logprob=finite(entry.scores.logprob),
                    bytes=list(self._tokens.of(entry.token_id)),
                    top_logprobs=[
                        TopLogprob(self._tokens.text(token_id), finite(logprob), list(self._tokens.of(token_id)))
                        for token_id, logprob in self._top(entry.scores, self._spec.output)
                    ],
                )
                for entry in entries
            ]
        )

    def prompt(self, prompt: Prompt, scores: Sequence[TokenLogprobs]) -> list[dict[str, PromptLogprob] | None] | None:
        """Return vLLM's prompt_logprobs: token id -> logprob, rank and text, None for the first; None if not asked."""
        if self._spec.prompt is None:
            return None
        listed: list[dict[str, PromptLogprob] | None] = [None]
        for token_id, score in zip(prompt.token_ids[1:], scores, strict=True):
            own = PromptLogprob(finite(score.logprob), score.rank, self._tokens.text(token_id))
            by_id = {str(token_id): own}
            for rank, (top_id, logprob) in enumerate(self._top(score, self._spec.prompt), start=1):
                by_id.setdefault(str(top_id), PromptLogprob(finite(logprob), rank, self._tokens.text(top_id)))
            listed.append(by_id)
        return listed

    def _by_text(self, entry: TokenEntry) -> dict[str, float]:
        """Return text -> logprob of the alternatives, best first, and of the token itself as it stands in `tokens`."""
        by_text: dict[str, float] = {}
        own = entry.text or self._tokens.key(entry.token_id)
        for token_id, logprob in self._top(entry.scores, self._spec.output or 0):
            by_text.setdefault(own if token_id == entry.token_id else self._tokens.key(token_id), finite(logprob))
        by_text.setdefault(own, finite(entry.scores.logprob))
        return by_text

    @staticmethod
    def _top(scores: TokenLogprobs, num: int) -> list[tuple[int, float]]:
        return list(zip(scores.top_token_ids, scores.top_logprobs, strict=True))[:num]


def joined(first: CompletionLogprobs | None, second: CompletionLogprobs | None) -> CompletionLogprobs | None:
    """Return the columns of `first` followed by those of `second`."""
    if first is None or second is None:
        return first or second
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )
