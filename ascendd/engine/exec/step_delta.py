"""
Steps as what changed: StepEncoder in the engine, SequenceMirror in each rank. No torch.

A rank has a Sequence of its own for each in the engine, equal in all that computing a step looks at.
"""

from __future__ import annotations

from dataclasses import dataclass

from ascendd.engine.sched.output import ScheduledChunk, SchedulerOutput
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.errors import ProtocolMismatch
from ascendd.ipc.rank_messages import ChunkDelta, NewSequence, RankStep


@dataclass(slots=True)
class _Told:
    """What the ranks have heard of a sequence."""

    sequence: Sequence
    num_tokens: int
    num_blocks: int
    num_preemptions: int


class StepEncoder:
    """Turns a step into a message; every rank hears every step, so one memory of what was told serves all."""

    def __init__(self) -> None:
        self._told: dict[int, _Told] = {}

    def encode(self, output: SchedulerOutput) -> RankStep:
        """Return the message for `output`. Steps are encoded in the order in which they are sent."""
        ended, preempted = self._let_go()
        new: list[NewSequence] = []
        chunks: list[ChunkDelta] = []
        for chunk in output.chunks:
            sequence = chunk.sequence
            told = self._told.get(sequence.seq_id)
            if told is None:
                new.append(_introduce(sequence))
                told = _Told(sequence, sequence.num_prompt_tokens, 0, sequence.num_preemptions)
                self._told[sequence.seq_id] = told
            chunks.append(
                ChunkDelta(
                    sequence.seq_id,
                    chunk.start,
                    chunk.num_tokens,
                    sequence.token_ids[told.num_tokens :],
                    sequence.block_ids[told.num_blocks :],
                )
            )
            told.num_tokens, told.num_blocks = sequence.num_tokens, len(sequence.block_ids)
        return RankStep(output.step_seq, chunks, new, ended, preempted)

    def _let_go(self) -> tuple[list[int], list[int]]:
        """Return the sequences that have ended, and those that have lost their blocks, since the last step."""
        ended, preempted = [], []
        for seq_id, told in self._told.items():
            if told.sequence.status is SequenceStatus.FINISHED:
                ended.append(seq_id)
            elif told.sequence.num_preemptions != told.num_preemptions:
                preempted.append(seq_id)
                told.num_blocks, told.num_preemptions = 0, told.sequence.num_preemptions
        for seq_id in ended:
            del self._told[seq_id]
        return ended, preempted


class SequenceMirror:
    """The sequences as a rank knows them."""

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def decode(self, step: RankStep) -> SchedulerOutput:
        """Take in what changed and return the step. Raises ProtocolMismatch for a sequence that nobody introduced."""
        for seq_id in step.ended:
            self._find(seq_id).status = SequenceStatus.FINISHED
            del self._sequences[seq_id]
        for seq_id in step.preempted:
            sequence = self._find(seq_id)
            sequence.status = SequenceStatus.WAITING
            sequence.block_ids = []
            sequence.num_preemptions += 1
        for new in step.new:
            self._sequences[new.seq_id] = Sequence(
                seq_id=new.seq_id,
                token_ids=list(new.prompt_token_ids),
                params=new.params,
                seed=new.seed,
                eos_token_ids=frozenset(new.eos_token_ids),
                adapter_id=new.adapter_id,
                rope_switch_length=new.rope_switch_length,
            )
        chunks = []
        for delta in step.chunks:
            sequence = self._find(delta.seq_id)
            sequence.status = SequenceStatus.RUNNING
            sequence.token_ids += delta.new_token_ids
            sequence.block_ids += delta.new_block_ids
            chunks.append(ScheduledChunk(sequence, delta.start, delta.num_tokens))
        return SchedulerOutput(step.step_seq, chunks)

    @staticmethod
    def computed(output: SchedulerOutput) -> None:
        """Note that `output` was computed, as far as a later step looks at it."""
        for chunk in output.chunks:
            chunk.sequence.num_scored_tokens += len(chunk.scored_positions)

    def _find(self, seq_id: int) -> Sequence:
        sequence = self._sequences.get(seq_id)
        if sequence is None:
            raise ProtocolMismatch(f"a step speaks of sequence {seq_id}, which this rank has not heard of")
        return sequence


def _introduce(sequence: Sequence) -> NewSequence:
    return NewSequence(
        sequence.seq_id,
        sequence.token_ids[: sequence.num_prompt_tokens],
        sequence.params,
        sequence.seed,
        tuple(sequence.eos_token_ids),
        sequence.adapter_id,
        sequence.rope_switch_length,
    )
