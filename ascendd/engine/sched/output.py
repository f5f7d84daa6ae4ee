"""What the scheduler asks of a step, and what a step gives back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ascendd.engine.sequence import Sequence
from ascendd.ipc.messages import FinishReason, TokenLogprobs


# Not frozen: one is made for each sequence in each step, and a frozen one takes three times as long.
@dataclass(slots=True)
class ScheduledChunk:
    """Tokens [start, start + num_tokens) of `sequence`; it `samples` when the last of them is the newest token."""

    sequence: Sequence
    start: int
    num_tokens: int

    @property
    def samples(self) -> bool:
        """Whether a token is drawn from the chunk's last position."""
        return self.start + self.num_tokens == self.sequence.num_tokens

    @property
    def scored_positions(self) -> range:
        """Positions whose logits tell how likely the prompt token after them was, where that was asked and not told."""
        sequence = self.sequence
        if sequence.params.prompt_logprobs is None:
            return range(0)
        begin = max(self.start, sequence.num_scored_tokens)
        return range(begin, min(self.start + self.num_tokens, sequence.num_prompt_tokens - 1))


@dataclass(slots=True)
class SchedulerOutput:
    """
    One step: decodes (one token each) first, then prefill chunks.

    The first `num_decodes` chunks are known to be decodes, each of which samples; there may be more.
    """

    step_seq: int
    chunks: list[ScheduledChunk] = field(default_factory=list)
    num_preempted: int = 0
    num_decodes: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return self.num_decodes + sum([chunk.num_tokens for chunk in self.chunks[self.num_decodes :]])

    @property
    def sampling_chunks(self) -> list[ScheduledChunk]:
        """The chunks that draw a token, in order."""
        first = self.num_decodes
        return self.chunks[:first] + [chunk for chunk in self.chunks[first:] if chunk.samples]


@dataclass(slots=True)
class ModelRunnerOutput:
    """
    One token id for each of `SchedulerOutput.sampling_chunks`, in their order; NO_TOKEN where none may be drawn.

    `logprobs` is empty or goes with `token_ids`; `prompt_logprobs` has an entry for each scored position of a sequence.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A sequence has a new token; `finish` is RUNNING unless it ended with it."""

    sequence: Sequence
    token_id: int
    finish: FinishReason
    num_cached_tokens: int
    logprobs: TokenLogprobs | None = None


@dataclass(slots=True)
class DrawnTokens:
    """
    The TokenEvents of a step in columns of equal length, as they go on the wire; iterating yields them as events.

    `token_ids` has NO_TOKEN where none was drawn or asked for, `finish` the values of FinishReason, and `logprobs` is
    like the others or empty where nobody asked.
    """

    sequences: list[Sequence] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: list[int] = field(default_factory=list)
    num_cached: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.sequences)

    def __iter__(self) -> Iterator[TokenEvent]:
        logprobs = self.logprobs or [None] * len(self)
        columns = zip(self.sequences, self.token_ids, self.finish, self.num_cached, logprobs, strict=True)
        for sequence, token_id, finish, num_cached, entry in columns:
            yield TokenEvent(sequence, token_id, FinishReason(finish), num_cached, entry)

    def take_errors(self) -> list[Sequence]:
        """Take the sequences that ended with an ERROR out and return them."""
        if FinishReason.ERROR not in self.finish:
            return []
        failed = [seq for seq, finish in zip(self.sequences, self.finish, strict=True) if finish == FinishReason.ERROR]
        kept = [at for at, finish in enumerate(self.finish) if finish != FinishReason.ERROR]
        self.sequences = [self.sequences[at] for at in kept]
        self.token_ids = [self.token_ids[at] for at in kept]
        self.finish = [self.finish[at] for at in kept]
        self.num_cached = [self.num_cached[at] for at in kept]
        self.logprobs = [self.logprobs[at] for at in kept] if self.logprobs else []
        return failed
