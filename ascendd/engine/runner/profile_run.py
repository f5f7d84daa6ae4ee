"""The steps of a profile run: the widest prefill and the widest decode that the scheduler could ask for."""

from __future__ import annotations

from ascendd.config.resolve import EngineConfig
from ascendd.engine.sched.output import ScheduledChunk, SchedulerOutput
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.ipc.messages import SamplingParams

# A draw that needs all that sampling may allocate: probabilities and their sorted head for every row.
_PARAMS = SamplingParams(max_tokens=2, temperature=1.0, top_p=0.9, ignore_eos=True)


def profile_steps(config: EngineConfig, max_tokens: int | None) -> list[SchedulerOutput]:
    """
    Return a prefill step of max_num_batched_tokens tokens and a decode step of max_num_seqs rows at full length.

    `max_tokens` bounds the tokens of either step. What is computed is of no interest, so the decodes share all blocks
    but the last, and a scratch cache has little more than one sequence's; but no slot is written twice in a step, which
    operators that write the cache refuse.
    """
    bound = max_tokens or config.max_num_batched_tokens
    longest = max(1, config.max_model_len - 1)
    prefill: list[int] = []
    left = min(bound, config.max_num_batched_tokens)
    while left > 0 and len(prefill) < config.max_num_seqs:
        prefill.append(min(left, longest))
        left -= prefill[-1]
    rows = min(bound, config.max_num_seqs)
    context = min(
        config.max_model_len, max(2, config.num_blocks * config.block_size // rows), bound * config.block_size
    )
    return [
        SchedulerOutput(0, _chunks(config, prefill, start=0)),
        SchedulerOutput(0, _chunks(config, [context] * rows, start=context - 1)),
    ]


def scratch_blocks(steps: list[SchedulerOutput]) -> int:
    """Return the blocks that a cache for `steps` needs, the null block included."""
    return 1 + max(max(chunk.sequence.block_ids) for step in steps for chunk in step.chunks)


def finish(step: SchedulerOutput) -> None:
    """Let go of the sequences of `step`, so that the batch gives their rows to others."""
    for chunk in step.chunks:
        chunk.sequence.status = SequenceStatus.FINISHED


def _chunks(config: EngineConfig, lengths: list[int], start: int) -> list[ScheduledChunk]:
    num_shared = start // config.block_size
    chunks, first = [], 1 + num_shared
    for index, length in enumerate(lengths):
        last = first + -(-length // config.block_size) - num_shared
        chunks.append(_chunk(index, length, start, [*range(1, 1 + num_shared), *range(first, last)]))
        first = last
    return chunks


def _chunk(index: int, length: int, start: int, block_ids: list[int]) -> ScheduledChunk:
    sequence = Sequence(seq_id=-2 - index, token_ids=[0] * length, params=_PARAMS, seed=0)
    sequence.status = SequenceStatus.RUNNING
    sequence.num_computed_tokens = start
    sequence.block_ids = block_ids
    return ScheduledChunk(sequence, start, length - start)
