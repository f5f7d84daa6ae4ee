"""
Scheduler: one token budget a step, no phases.

A sequence is served by letting `num_computed_tokens` catch up with `num_tokens`: a decode is one token behind, a prompt
many. Running sequences come first, so decodes never wait for prompts; what is left of the budget goes to prompts in
chunks. The formulation is vLLM V1's; recompute is the only form of preemption (docs/ARCHITECTURE.md says why).
"""

from __future__ import annotations

from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.sched.output import ModelRunnerOutput, ScheduledChunk, SchedulerOutput, TokenEvent
from ascendd.engine.sched.queue import WaitingQueue
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.ipc.messages import FinishReason

# Prompt tokens that a step scores at most: each needs a row of logits, 0.6 MB at a vocabulary of 150,000.
MAX_SCORED_TOKENS = 128


class Scheduler:
    """
    Decides each step; `schedule` and `update_from_output` alternate.

    `decode_prefill_tokens` bounds the prompt tokens of a step in which somebody decodes, so that the time between two
    tokens of a stream stays that of a short chunk.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        decode_prefill_tokens: int | None = None,
    ) -> None:
        assert max_num_batched_tokens >= max_num_seqs, "a full batch could not decode"
        self._kv = kv
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._decode_prefill_tokens = min(decode_prefill_tokens or max_num_batched_tokens, max_num_batched_tokens)
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        self._sequences: dict[int, Sequence] = {}
        self._num_arrived = 0
        self._step_seq = 0
        self._num_scorable = MAX_SCORED_TOKENS
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        """Sequences that hold KV blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait for a place."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences)

    @property
    def seq_ids(self) -> list[int]:
        """Ids of all sequences that have not ended."""
        return list(self._sequences)

    def knows(self, seq_id: int) -> bool:
        """Whether a sequence of this id has not ended."""
        return seq_id in self._sequences

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence. Its id must be new; its tokens plus one must fit the whole pool."""
        assert sequence.seq_id not in self._sequences, f"sequence {sequence.seq_id} is known already"
        num_least = sequence.num_tokens + min(1, sequence.params.max_tokens)
        assert self._kv.blocks_for(num_least) <= self._kv.pool.num_blocks, "the sequence can never fit"
        sequence.order = self._num_arrived
        self._num_arrived += 1
        self._sequences[sequence.seq_id] = sequence
        self._waiting.push(sequence)

    def abort(self, seq_id: int) -> Sequence | None:
        """Forget a sequence at once, whatever its state; return it, or None for an unknown or finished id."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.ABORT)
        return sequence

    def expired(self, now_s: float) -> list[Sequence]:
        """End and return the sequences whose deadline (CLOCK_MONOTONIC seconds) has passed."""
        late = [sequence for sequence in self._sequences.values() if 0 < sequence.deadline_s <= now_s]
        for sequence in late:
            self._finish(sequence, FinishReason.ERROR)
        return late

    def schedule(self) -> SchedulerOutput:
        """Choose the tokens of the next step and give them KV slots. Nothing else changes until update_from_output."""
        self._step_seq += 1
        output = SchedulerOutput(self._step_seq)
        budget = self._max_num_batched_tokens
        decodes: list[ScheduledChunk] = []
        prefills: list[ScheduledChunk] = []

        # Decodes before running prefills: the budget holds one token for each, and their number bounds the chunks.
        for sequence in [seq for seq in self._running if self._is_decode(seq)]:
            if sequence.status is SequenceStatus.RUNNING and self._make_room(sequence, 1, output, decodes, prefills):
                decodes.append(ScheduledChunk(sequence, sequence.num_computed_tokens, 1))
        budget -= len(decodes)
        if decodes:
            budget = min(budget, self._decode_prefill_tokens)
        self._num_scorable = MAX_SCORED_TOKENS
        for sequence in [seq for seq in self._running if not self._is_decode(seq)]:
            if budget == 0:
                break
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            num = self._chunk_size(sequence, sequence.num_computed_tokens, budget)
            if num and self._make_room(sequence, num, output, decodes, prefills):
                prefills.append(self._chunk(sequence, num))
                budget -= num
        if not output.num_preempted:
            self._admit_waiting(budget, prefills)
        output.chunks = decodes + prefills
        return output

    def update_from_output(self, output: SchedulerOutput, result: ModelRunnerOutput) -> list[TokenEvent]:
        """
        Book a finished step: computed tokens, published blocks, new tokens, ended sequences.

        Sequences aborted while the step ran are passed over. The order of events is that of the chunks.
        """
        events: list[TokenEvent] = []
        drawn = iter(zip(result.token_ids, result.logprobs or [None] * len(result.token_ids), strict=True))
        for chunk in output.chunks:
            sequence = chunk.sequence
            token_id, logprobs = next(drawn) if chunk.samples else (None, None)
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            sequence.num_computed_tokens = chunk.start + chunk.num_tokens
            sequence.num_scored_tokens += len(chunk.scored_positions)
            self._kv.publish(sequence)
            if token_id is None:
                continue
            cached = 0 if sequence.first_token_sent else sequence.num_cached_tokens
            sequence.first_token_sent = True
            finish = sequence.append(token_id)
            if finish is not FinishReason.RUNNING:
                self._finish(sequence, finish)
            events.append(TokenEvent(sequence, token_id, finish, cached, logprobs))
        return events

    def check_integrity(self) -> None:
        """Raise AssertionError unless the blocks held are exactly those in the tables of running sequences."""
        self._kv.pool.check_integrity()
        held = {block_id for sequence in self._running for block_id in sequence.block_ids}
        assert len(held) == self._kv.pool.num_used_blocks, (
            f"{self._kv.pool.num_used_blocks} blocks are held, {len(held)} are in tables"
        )
        assert len(self._running) + len(self._waiting) == len(self._sequences), (
            "a sequence is neither running nor waiting"
        )
        assert all(not sequence.block_ids for sequence in self._waiting), "a waiting sequence holds blocks"

    def _is_decode(self, sequence: Sequence) -> bool:
        return sequence.num_tokens - sequence.num_computed_tokens == 1

    def _make_room(
        self,
        sequence: Sequence,
        num: int,
        output: SchedulerOutput,
        decodes: list[ScheduledChunk],
        prefills: list[ScheduledChunk],
    ) -> bool:
        """Allocate slots for `num` more tokens, preempting the newest of the lowest priority until they fit."""
        while not self._kv.allocate_slots(sequence, sequence.num_computed_tokens + num):
            victim = max(self._running, key=lambda candidate: candidate.queue_key)
            self._preempt(victim)
            output.num_preempted += 1
            for chunks in (decodes, prefills):
                chunks[:] = [chunk for chunk in chunks if chunk.sequence is not victim]
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._kv.free(sequence)
        self._running.remove(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._waiting.push(sequence)

    def _admit_waiting(self, budget: int, prefills: list[ScheduledChunk]) -> None:
        while budget > 0 and len(self._running) < self._max_num_seqs:
            sequence = self._waiting.peek()
            if sequence is None:
                return
            matched = self._kv.match_prefix(sequence)
            num = self._chunk_size(sequence, len(matched) * self._kv.block_size, budget)
            if num == 0 or not self._kv.admit(sequence, matched, alone=not self._running):
                return
            self._waiting.pop()
            self._running.append(sequence)
            sequence.status = SequenceStatus.RUNNING
            if not sequence.first_token_sent:
                sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
            # All of it is taken now, not only this chunk's: admission promised that the whole will fit.
            fitted = self._kv.allocate_slots(sequence, sequence.num_tokens)
            assert fitted, "admission promised room"
            prefills.append(self._chunk(sequence, num))
            budget -= num

    def _chunk_size(self, sequence: Sequence, start: int, budget: int) -> int:
        """Return how many tokens from `start` on the budget allows, and the number of tokens that a step may score."""
        num = min(sequence.num_tokens - start, budget)
        last_scored = sequence.num_prompt_tokens - 1
        if sequence.params.prompt_logprobs is not None and sequence.num_scored_tokens < last_scored:
            end = max(start, sequence.num_scored_tokens) + self._num_scorable
            if end < last_scored:
                num = min(num, end - start)
        return num

    def _chunk(self, sequence: Sequence, num: int) -> ScheduledChunk:
        chunk = ScheduledChunk(sequence, sequence.num_computed_tokens, num)
        self._num_scorable -= len(chunk.scored_positions)
        return chunk

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
            self._kv.free(sequence)
        else:
            self._waiting.remove(sequence.seq_id)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        del self._sequences[sequence.seq_id]
