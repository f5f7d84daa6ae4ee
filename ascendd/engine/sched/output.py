"""What the scheduler asks of a step, and what a step gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

from ascendd.engine.sequence import Sequence
from ascendd.ipc.messages import FinishReason, TokenLogprobs


@dataclass(frozen=True, slots=True)
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
    """One step: decodes (one token each) first, then prefill chunks."""

    step_seq: int
    chunks: list[ScheduledChunk] = field(default_factory=list)
    num_preempted: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def sampling_chunks(self) -> list[ScheduledChunk]:
        """The chunks that draw a token, in order."""
        return [chunk for chunk in self.chunks if chunk.samples]


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
