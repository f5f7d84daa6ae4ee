"""
What passes between the engine and its worker processes, one a rank: a link each, of the same frames as all others.

A step goes out as what changed: a sequence's prompt and parameters once, from then on only new tokens and blocks. All
ranks get the same bytes. Only the rank that draws answers a step.
"""

from __future__ import annotations

from typing import Any, Union

import msgspec

from ascendd.ipc.messages import Fault, Message, SamplingParams, TokenLogprobs

# --- engine -> rank ----------------------------------------------------------------------------------------------


class RankStart(Message, frozen=True, tag="rank_start"):
    """First message: place among the ranks, the instance's configuration as JSON, and where the ranks meet."""

    rank: int
    config_json: bytes
    store_path: str
    collective_timeout_s: float


class RankLoad(Message, frozen=True, tag="rank_load"):
    """Join the group and load: `engine_config_json` is a resolve.EngineConfig. Answered by RankLoaded."""

    engine_config_json: bytes


class RankProfile(Message, frozen=True, tag="rank_profile"):
    """Measure activations and free memory, with everybody else. Answered by RankProfiled."""


class RankBlocks(Message, frozen=True, tag="rank_blocks"):
    """Make the KV cache with this many blocks and capture graphs where there are any. Answered by RankReady."""

    num_blocks: int


class NewSequence(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """What a rank must know of a sequence before its first step."""

    seq_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    seed: int
    eos_token_ids: tuple[int, ...] = ()
    adapter_id: int = 0
    rope_switch_length: int | None = None


class ChunkDelta(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Tokens to compute of one sequence, and the tokens and blocks that the ranks have not heard of."""

    seq_id: int
    start: int
    num_tokens: int
    new_token_ids: list[int]
    new_block_ids: list[int]


class RankStep(Message, frozen=True, tag="rank_step"):
    """
    One step: chunks in the order of the batch, and before them what else changed.

    `ended` sequences are forgotten, those `preempted` have lost their blocks and will come again.
    """

    step_seq: int
    chunks: list[ChunkDelta]
    new: list[NewSequence] = msgspec.field(default_factory=list)
    ended: list[int] = msgspec.field(default_factory=list)
    preempted: list[int] = msgspec.field(default_factory=list)


class RankLoadAdapter(Message, frozen=True, tag="rank_load_adapter"):
    """Read an adapter into host memory. Answered by RankAdapter."""

    adapter_id: int
    path: str


class RankDropAdapter(Message, frozen=True, tag="rank_drop_adapter"):
    """Forget an adapter."""

    adapter_id: int


class RankShutdown(Message, frozen=True, tag="rank_shutdown"):
    """Leave at once with exit status 0."""


# --- rank -> engine ----------------------------------------------------------------------------------------------


class RankHello(Message, frozen=True, tag="rank_hello"):
    """The rank has its device; `device_facts` are a plan.DeviceFacts as plain values."""

    device_facts: dict[str, Any]


class RankLoading(Message, frozen=True, tag="rank_loading"):
    """Loading goes on; `fraction` in 0..1."""

    phase: str
    fraction: float


class RankLoaded(Message, frozen=True, tag="rank_loaded"):
    """
    The weights are there; by how many bytes they raised the memory in use.

    `replaced_kernels` are those for which the reference stands in.
    """

    seconds: float
    weights_bytes: int
    replaced_kernels: tuple[str, ...] = ()


class RankProfiled(Message, frozen=True, tag="rank_profiled"):
    """What a profile run measured, bytes."""

    activation_bytes: int
    free_bytes: int


class RankReady(Message, frozen=True, tag="rank_ready"):
    """Steps may come; how many batch sizes have a graph."""

    num_graph_buckets: int = 0


class RankHeartbeat(Message, frozen=True, tag="rank_heartbeat"):
    """
    Sent once a second: the work that runs, for how long, and the collective in which the rank waits, if it does.

    `num_collectives` counts those entered since the start, `num_done` the orders of the engine that were carried out:
    all ranks get the same ones in the same order.
    """

    step_seq: int
    inflight_s: float
    num_collectives: int
    collective: str
    num_done: int = 0

    def moved_since(self, before: RankHeartbeat) -> bool:
        """Whether anything was done or entered between the two."""
        return (self.num_done, self.num_collectives) != (before.num_done, before.num_collectives)


class RankStepDone(Message, frozen=True, tag="rank_step_done"):
    """What the step drew: the columns of sched.output.ModelRunnerOutput; and how many steps were replays so far."""

    step_seq: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] = msgspec.field(default_factory=list)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = msgspec.field(default_factory=dict)
    num_replays: int = 0


class RankAdapter(Message, frozen=True, tag="rank_adapter"):
    """Outcome of RankLoadAdapter: bytes in host memory, or what is wrong with the adapter."""

    adapter_id: int
    num_bytes: int
    fault: Fault | None = None


class RankFault(Message, frozen=True, tag="rank_fault"):
    """Last words of a rank; `monotonic_s` is when the error was raised, by the one clock of the host."""

    fault: Fault
    monotonic_s: float


ToRank = Union[
    RankStart, RankLoad, RankProfile, RankBlocks, RankStep, RankLoadAdapter, RankDropAdapter, RankShutdown
]  # fmt: skip
FromRank = Union[
    RankHello, RankLoading, RankLoaded, RankProfiled, RankReady, RankHeartbeat, RankStepDone, RankAdapter, RankFault
]  # fmt: skip
