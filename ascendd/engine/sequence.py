"""Sequence: one line of tokens being generated, and what the scheduler knows of it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from ascendd.ipc.messages import NO_TOKEN, FinishReason, SamplingParams


class SequenceStatus(enum.Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """
    Prompt and output in one list; `num_computed_tokens` of them have their K and V in the cache.

    `seed` is final: the request's own, or one drawn when it arrived, so that a recomputed token is the same token.
    `order` is the arrival number; a preempted sequence keeps it and so its place in the queue.
    `cache_key` names what besides the tokens decides their K and V or who may share them: an adapter, a tenant's salt.
    Sequences with different keys never share a block. `adapter_id` is 0 for the model as it is, else that of
    the copy of a LoRA adapter in host memory; `num_overtakes` counts who took a place before it for want of a slot.
    Beyond `rope_switch_length` tokens all keys of the sequence, the earlier ones too, are rotated otherwise.
    `num_scored_tokens` prompt tokens, from the second on, had their logprobs told; `sampling_state` is the sampler's.
    The three times are monotonic seconds, set as they become known: arrival, begin of the first step, first token.
    `in_flight` says that a step that is not booked yet computes tokens of it.
    """

    seq_id: int
    token_ids: list[int]
    params: SamplingParams
    seed: int
    eos_token_ids: frozenset[int] = frozenset()
    request_id: str = ""
    priority: int = 0
    deadline_s: float = 0.0
    order: int = 0
    cache_key: bytes = b""
    adapter_id: int = 0
    max_model_len: int = 2**31
    rope_switch_length: int | None = None

    num_prompt_tokens: int = field(init=False)
    status: SequenceStatus = field(default=SequenceStatus.WAITING, init=False)
    finish_reason: FinishReason = field(default=FinishReason.RUNNING, init=False)
    num_computed_tokens: int = field(default=0, init=False)
    num_cached_tokens: int = field(default=0, init=False)
    num_preemptions: int = field(default=0, init=False)
    block_ids: list[int] = field(default_factory=list, init=False)
    block_hashes: list[bytes] = field(default_factory=list, init=False)
    num_published_blocks: int = field(default=0, init=False)
    first_token_sent: bool = field(default=False, init=False)
    num_scored_tokens: int = field(default=0, init=False)
    sampling_state: Any = field(default=None, init=False)
    num_overtakes: int = field(default=0, init=False)
    arrived_s: float = field(default=0.0, init=False)
    first_step_s: float | None = field(default=None, init=False)
    first_token_s: float | None = field(default=None, init=False)
    in_flight: bool = field(default=False, init=False)
    _stop_ids: frozenset[int] = field(init=False, repr=False)
    _least_to_stop: int = field(init=False, repr=False)
    _most_tokens: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        params = self.params
        self.num_prompt_tokens = len(self.token_ids)
        # Asked of every token of every sequence, so it is put together once.
        eos_token_ids = frozenset() if params.ignore_eos else self.eos_token_ids
        self._stop_ids = eos_token_ids.union(params.stop_token_ids)
        self._least_to_stop = self.num_prompt_tokens + params.min_tokens
        self._most_tokens = min(self.num_prompt_tokens + params.max_tokens, self.max_model_len)

    @property
    def num_tokens(self) -> int:
        """Tokens so far, prompt included."""
        return len(self.token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens whose K and V are not in the cache: 1 for a decode, more for a prompt under way."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_long(self) -> bool:
        """Whether the sequence has outgrown the model's first set of rotary frequencies."""
        return self.rope_switch_length is not None and len(self.token_ids) > self.rope_switch_length

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def queue_key(self) -> tuple[int, int]:
        """Order of service: lower priority value first, then earlier arrival."""
        return (self.priority, self.order)

    def append(self, token_id: int) -> FinishReason:
        """Take the sampled `token_id` and return why the sequence ends with it, or RUNNING; NO_TOKEN is an ERROR."""
        if self.params.max_tokens == 0:
            return FinishReason.LENGTH
        if token_id == NO_TOKEN:
            return FinishReason.ERROR
        token_ids = self.token_ids
        token_ids.append(token_id)
        num_tokens = len(token_ids)
        if token_id in self._stop_ids and num_tokens >= self._least_to_stop:
            return FinishReason.STOP
        if num_tokens >= self._most_tokens:
            return FinishReason.LENGTH
        return FinishReason.RUNNING
