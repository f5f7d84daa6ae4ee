"""One request as sequences: prompts x n of them, each with its own text; what the answers are made of."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import NamedTuple

from ascendd.api.engine_client import EngineClient, NewSequence, OutputStream, TokenEvent
from ascendd.api.parameters import GenerationSpec
from ascendd.api.prompts import Prompt
from ascendd.api.protocol import PromptTokensDetails, Usage
from ascendd.api.stop_strings import StopMatcher
from ascendd.api.tokenizer import ModelTokenizer
from ascendd.errors import InternalError
from ascendd.ipc.messages import FinishReason
from ascendd.telemetry.metrics import MetricStore

_FINISH = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Delta(NamedTuple):
    """New text of sequence number `choice`; `finish_reason` (stop, length) with its last one."""

    choice: int
    text: str
    finish_reason: str | None


class SequenceText:
    """The text of one sequence: detokenized, cut at stop strings."""

    def __init__(self, spec: GenerationSpec, tokenizer: ModelTokenizer) -> None:
        self._spec = spec
        self._detokenizer = tokenizer.detokenizer(skip_special_tokens=spec.skip_special_tokens)
        self._matcher = StopMatcher(spec.stop_strings, include_in_output=spec.include_stop)
        self.num_tokens = 0
        self.finish_reason: str | None = None

    def has_ended(self) -> bool:
        """Whether no more text comes."""
        return self.finish_reason is not None

    def push(self, token_id: int, finish: int) -> str:
        """Add a token and return the text it makes certain; sets `finish_reason` with the last one."""
        self.num_tokens += 1
        is_stop_text = token_id in self._spec.stop_texts and self.num_tokens > self._spec.min_tokens
        ends_by_token = finish == FinishReason.STOP or is_stop_text
        if not ends_by_token:
            text = self._detokenizer.push(token_id)
        elif not self._spec.include_stop:
            text = ""
        elif is_stop_text:
            text = self._spec.stop_texts[token_id]
        else:
            text = self._detokenizer.push(token_id)
        if ends_by_token or finish:
            held = self._detokenizer.flush()
            text = held + text if is_stop_text else text + held
            self.finish_reason = "stop" if ends_by_token else _FINISH[FinishReason(finish)]
        if self.num_tokens <= self._spec.min_tokens:
            out = self._matcher.pass_through(text)
        else:
            out, stop_string = self._matcher.push(text)
            if stop_string is not None:
                self.finish_reason = "stop"
        return out + self._matcher.flush() if self.finish_reason is not None else out


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
    ) -> None:
        self.prompts = prompts
        self.num_samples = spec.n
        self._spec = spec
        self._num_tokens = num_tokens
        self._texts = [SequenceText(spec, tokenizer) for _ in range(len(prompts) * spec.n)]
        self._num_cached = [0] * len(self._texts)
        self._stream: OutputStream | None = None
        self._metrics = metrics
        self._received_at = received_at
        self._last_token_at: list[float | None] = [None] * len(self._texts)
        self.first_token_s: float | None = None

    @property
    def num_sequences(self) -> int:
        """Prompts x n."""
        return len(self._texts)

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
        return Usage(num_prompt, completion, num_prompt + completion, PromptTokensDetails(num_cached))

    def submit(self, engine: EngineClient, request_id: str, deadline: float) -> None:
        """Give all sequences to the engine; `deadline` is CLOCK_MONOTONIC, as loop time is. Raises EngineRestarting."""
        sequences = [
            NewSequence(prompt.token_ids, self._spec.params_for(sample, max_tokens))
            for prompt, max_tokens in zip(self.prompts, self._num_tokens, strict=True)
            for sample in range(self.num_samples)
            if max_tokens > 0
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

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()

    def _collect(self, events: Sequence[TokenEvent]) -> list[Delta]:
        pieces: dict[int, list[str]] = {}
        now = time.monotonic()
        for event in events:
            text = self._texts[event.choice]
            if text.has_ended():
                continue  # tokens made before the engine heard of the stop string
            if event.finish not in (FinishReason.RUNNING, FinishReason.STOP, FinishReason.LENGTH):
                raise InternalError("the engine gave this request up without a reason")
            self._note_token(event, now)
            pieces.setdefault(event.choice, []).append(text.push(event.token_id, event.finish))
            if text.has_ended() and self._stream is not None:
                self._stream.end(event.choice)
        return [Delta(index, "".join(parts), self._texts[index].finish_reason) for index, parts in pieces.items()]

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
