"""One request as sequences: prompts x n of them, each with its own text; what the answers are made of."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

from msgspec import UNSET

from ascendd.api.engine_client import EngineClient, NewSequence, OutputStream, TokenEvent
from ascendd.api.logprobs import TokenEntry
from ascendd.api.parameters import GenerationSpec
from ascendd.api.prompts import Prompt
from ascendd.api.protocol import PromptTokensDetails, Usage
from ascendd.api.sequence_text import FINISH_REASONS, SequenceText
from ascendd.api.tokenizer import ModelTokenizer
from ascendd.errors import InternalError
from ascendd.ipc.messages import NO_TOKEN, TokenLogprobs
from ascendd.telemetry.metrics import MetricStore


class Delta(NamedTuple):
    """New text of sequence number `choice`; `finish_reason` (stop, length) with its last one."""

    choice: int
    text: str
    finish_reason: str | None
    entries: tuple[TokenEntry, ...] = ()


@dataclass
class WholeText:
    """All of one choice: made of sequence number `sequence` of prompt number `prompt`."""

    prompt: int
    sequence: int
    text: str = ""
    finish_reason: str | None = None
    entries: list[TokenEntry] = field(default_factory=list)


class Generation:
    """Runs the sequences of one request; a context manager that aborts on leaving whatever has not ended."""

    def __init__(
        self,
        prompts: Sequence[Prompt],
        spec: GenerationSpec,
        num_tokens: Sequence[int],
        tokenizer: ModelTokenizer,
        *,
        metrics: MetricStore,
        received_at: float,
        adapter: str = "",
    ) -> None:
        self.prompts = prompts
        self.num_samples = spec.best_of
        self._adapter = adapter
        self._spec = spec
        self._num_tokens = num_tokens
        self._texts = [SequenceText(spec, tokenizer) for _ in range(len(prompts) * spec.best_of)]
        self._num_cached = [0] * len(self._texts)
        self._stream: OutputStream | None = None
        self._metrics = metrics
        self._received_at = received_at
        self._last_token_at: list[float | None] = [None] * len(self._texts)
        self.first_token_s: float | None = None

    @property
    def num_sequences(self) -> int:
        """Prompts x best_of, which is n unless more are made than are answered."""
        return len(self._texts)

    @property
    def num_choices(self) -> int:
        """Answers to each prompt, the field `n`."""
        return self._spec.n

    @property
    def finish_reasons(self) -> list[str | None]:
        """The reason of each sequence, None while it runs."""
        return [text.finish_reason for text in self._texts]

    @property
    def num_completion_tokens(self) -> int:
        """Tokens generated so far, over all sequences."""
        return sum(text.num_tokens for text in self._texts)

    @property
    def usage(self) -> Usage:
        """Tokens so far: each prompt counts once however many samples it has."""
        num_prompt = sum(len(prompt.token_ids) for prompt in self.prompts)
        num_cached = sum(self._num_cached[:: self.num_samples])
        completion = self.num_completion_tokens
        removed: Counter[str] = Counter()
        for prompt in self.prompts:
            removed.update(prompt.removed)
        details = PromptTokensDetails(num_cached, dict(removed) or UNSET)
        return Usage(num_prompt, completion, num_prompt + completion, details)

    def submit(self, engine: EngineClient, request_id: str, deadline: float) -> None:
        """Give all sequences to the engine; `deadline` is CLOCK_MONOTONIC, as loop time is. Raises EngineRestarting."""
        sequences = [
            NewSequence(prompt.token_ids, self._spec.params_for(sample, max_tokens), self._adapter)
            for prompt, max_tokens in zip(self.prompts, self._num_tokens, strict=True)
            for sample in range(self.num_samples)
            if max_tokens > 0 or self._spec.logprobs.scored_prompt is not None
        ]
        if not sequences:
            for text in self._texts:
                text.finish_reason = "length"
            return
        self._metrics.observe("ascendd_request_queue_seconds", time.monotonic() - self._received_at)
        self._stream = engine.submit(sequences, request_id=request_id, deadline=deadline, priority=self._spec.priority)

    async def deltas(self) -> AsyncGenerator[list[Delta], None]:
        """
        Yield what is new, one Delta for a sequence at most, until all sequences have ended.

        Raises DeadlineExceeded at the deadline of `submit`, or the error that ended the request.
        """
        if self._stream is None:
            yield [Delta(index, "", "length") for index in range(self.num_sequences)]
            return
        while None in self.finish_reasons:
            yield self._collect(await self._stream.next_events())

    async def whole_texts(self) -> list[WholeText]:
        """
        Run to the end and return the choices in the order of their index.

        Of more candidates than n the n with the highest sum of logprobs are chosen, the best first.
        """
        wholes = [WholeText(index // self.num_samples, index) for index in range(self.num_sequences)]
        async for deltas in self.deltas():
            for delta in deltas:
                whole = wholes[delta.choice]
                whole.text += delta.text
                whole.entries += delta.entries
                whole.finish_reason = delta.finish_reason
        if self.num_samples == self._spec.n:
            return wholes
        chosen: list[WholeText] = []
        for begin in range(0, self.num_sequences, self.num_samples):
            candidates = wholes[begin : begin + self.num_samples]
            candidates.sort(key=lambda whole: self._texts[whole.sequence].sum_of_logprobs, reverse=True)
            chosen += candidates[: self._spec.n]
        return chosen

    def prompt_logprobs(self, sequence: int) -> list[TokenLogprobs]:
        """Return those of a sequence's prompt, from the second token on; all are there once it has a Delta."""
        return [] if self._stream is None else self._stream.prompt_logprobs(sequence)

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def _collect(self, events: Sequence[TokenEvent]) -> list[Delta]:
        now = time.monotonic()
        if len(events) == 1:
            # Nearly always so, and made for it: this runs for every token of every stream.
            delta = self._take(events[0], now)
            return [] if delta is None else [delta]
        found: dict[int, list[Delta]] = {}
        for event in events:
            if (delta := self._take(event, now)) is not None:
                found.setdefault(event.choice, []).append(delta)
        return [
            Delta(
                index,
                "".join(delta.text for delta in deltas),
                deltas[-1].finish_reason,
                tuple(entry for delta in deltas for entry in delta.entries),
            )
            for index, deltas in found.items()
        ]

    def _take(self, event: TokenEvent, now: float) -> Delta | None:
        """Return what one token makes; None for one made before the engine heard of the stop string."""
        text = self._texts[event.choice]
        if text.has_ended():
            return None
        if event.finish and event.finish not in FINISH_REASONS:
            raise InternalError("the engine gave this request up without a reason")
        if event.token_id != NO_TOKEN:
            self._note_token(event, now)
        piece, told = text.push(event.token_id, event.finish, event.logprobs)
        if text.has_ended() and self._stream is not None:
            self._stream.end(event.choice)
        return Delta(event.choice, piece, text.finish_reason, tuple(told))

    def _note_token(self, event: TokenEvent, now: float) -> None:
        if self.first_token_s is None:
            self.first_token_s = now - self._received_at
            self._metrics.observe("ascendd_request_time_to_first_token_seconds", self.first_token_s)
        last = self._last_token_at[event.choice]
        if last is None:
            self._num_cached[event.choice] = event.num_cached
        else:
            self._metrics.observe("ascendd_request_inter_token_seconds", now - last)
        self._last_token_at[event.choice] = now
