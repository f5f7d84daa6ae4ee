"""
Scheduler: one token budget a step, no phases.

A sequence is served by letting `num_computed_tokens` catch up with `num_tokens`: a decode is one token behind, a prompt
many. Decodes come first and never wait for prompts; what is left of the budget goes to prompts in chunks, by the rule
of long_prefill. The formulation is vLLM V1's; recompute is the only form of preemption (docs/ARCHITECTURE.md says why).
"""

from __future__ import annotations

from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.sched.adapter_limit import AdapterLimit
from ascendd.engine.sched.long_prefill import first_share, passing
from ascendd.engine.sched.output import DrawnTokens, ModelRunnerOutput, ScheduledChunk, SchedulerOutput
from ascendd.engine.sched.queue import WaitingQueue
from ascendd.engine.sched.token_budget import TokenBudget
from ascendd.engine.sequence import Sequence, SequenceStatus
from ascendd.ipc.messages import NO_TOKEN, FinishReason

# Prompt tokens that a step scores at most: each needs a row of logits, 0.6 MB at a vocabulary of 150,000.
MAX_SCORED_TOKENS = 128


class Scheduler:
    """
    Decides each step. `num_batches` steps may be scheduled and not booked yet, one for each stage of a pipeline; each
    sequence is in one of them at most. With one, `schedule` and `update_from_output` alternate.

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
        max_adapters: int = 0,
        num_batches: int = 1,
    ) -> None:
        assert max_num_batched_tokens >= max_num_seqs, "a full batch could not decode"
        self._kv = kv
        self._capacity = max_num_seqs
        self.max_num_seqs = max_num_seqs
        self.budget = TokenBudget(max_num_batched_tokens)
        self.decode_prefill_tokens = min(decode_prefill_tokens or max_num_batched_tokens, max_num_batched_tokens)
        self._adapter_limit = AdapterLimit(max_adapters)
        self._waiting = WaitingQueue()
        self._running: list[Sequence] = []
        self._sequences: dict[int, Sequence] = {}
        self._num_arrived = 0
        self._step_seq = 0
        self._num_batches = num_batches
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
    def kv_fragmentation(self) -> float:
        """Share of the slots in held KV blocks that hold no token, 0..1."""
        return self._kv.fragmentation(self._running)

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences)

    @property
    def seq_ids(self) -> list[int]:
        """Ids of all sequences that have not ended."""
        return list(self._sequences)

    @property
    def adapter_ids(self) -> frozenset[int]:
        """Adapters of all sequences that have not ended."""
        return frozenset(sequence.adapter_id for sequence in self._sequences.values()) - {0}

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
        # Decodes first: the budget holds one token for each, and their number bounds the chunks.
        decodes: list[ScheduledChunk] = []
        block_size, running = self._kv.block_size, SequenceStatus.RUNNING
        for sequence in self._decoding():
            # Most have a slot left in their last block; only the others ask for one.
            if sequence.status is running and (
                len(sequence.token_ids) <= len(sequence.block_ids) * block_size
                or self._make_room(sequence, output, decodes)
            ):
                decodes.append(ScheduledChunk(sequence, sequence.num_computed_tokens, 1))
        output.num_decodes = len(decodes)
        budget = self.budget.limit - len(decodes)
        if decodes:
            budget = min(budget, self.decode_prefill_tokens)
        grants = self._divide_among_prompts(budget, len(decodes), may_admit=not output.num_preempted)
        output.chunks = decodes + self._cut_to_scorable(grants) if grants else decodes
        if self._num_batches > 1:
            for chunk in output.chunks:
                chunk.sequence.in_flight = True
        return output

    def set_limits(self, max_num_seqs: int, decode_prefill_tokens: int) -> None:
        """
        Admit up to `max_num_seqs` sequences, and that many prompt tokens beside decodes, from the next step on.

        Both are cut to what the engine was built for, and are 1 at least. Nobody who runs is sent back.
        """
        self.max_num_seqs = min(max(1, max_num_seqs), self._capacity)
        self.decode_prefill_tokens = min(max(1, decode_prefill_tokens), self.budget.max_tokens)

    def relieve(self, output: SchedulerOutput) -> Sequence | None:
        """
        Take `output` back, for which the device had no memory: from now on half its tokens, the newest preempted.

        Return the one sequence that was ended, because twice not even one token of it alone fitted; else None.
        """
        if self.budget.is_exhausted and len(self._running) == 1:
            sequence = output.chunks[0].sequence
            self._finish(sequence, FinishReason.ERROR)
            return sequence
        self.budget.cut(output.num_tokens)
        num_kept = min(self.budget.limit, max(1, len(self._running) - 1))
        while len(self._running) > num_kept:
            self._preempt(max(self._running, key=lambda candidate: candidate.queue_key))
        return None

    def update_from_output(self, output: SchedulerOutput, result: ModelRunnerOutput) -> DrawnTokens:
        """
        Book a finished step: computed tokens, published blocks, new tokens, ended sequences.

        Sequences aborted while the step ran are passed over. The order of tokens is that of the chunks.
        """
        assert not result.logprobs or len(result.logprobs) == len(result.token_ids)
        self.budget.step_done()
        tokens = DrawnTokens()
        block_size, running = self._kv.block_size, SequenceStatus.RUNNING
        drawn = -1
        for chunk in output.chunks:
            sequence = chunk.sequence
            sequence.in_flight = False
            end = chunk.start + chunk.num_tokens
            samples = end == len(sequence.token_ids)
            drawn += samples
            if sequence.status is not running:
                continue
            sequence.num_computed_tokens = end
            if chunk.num_tokens > 1 or not samples:  # a decode scores nothing
                sequence.num_scored_tokens += len(chunk.scored_positions)
            if end >= (sequence.num_published_blocks + 1) * block_size:
                self._kv.publish(sequence)
            if not samples:
                continue
            cached = 0
            if not sequence.first_token_sent:
                cached, sequence.first_token_sent = sequence.num_cached_tokens, True
            token_id = result.token_ids[drawn]
            finish, reason = sequence.append(token_id), 0
            if finish is not FinishReason.RUNNING:
                reason = int(finish)
                token_id = token_id if sequence.params.max_tokens else NO_TOKEN
                self._finish(sequence, finish)
            elif len(sequence.token_ids) - 1 == sequence.rope_switch_length:
                self._compute_again(sequence)
            tokens.sequences.append(sequence)
            tokens.token_ids.append(token_id)
            tokens.finish.append(reason)
            tokens.num_cached.append(cached)
            if result.logprobs:
                tokens.logprobs.append(result.logprobs[drawn])
        return tokens

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
        self._adapter_limit.check(self._running)

    def _decoding(self) -> list[Sequence]:
        """Return the sequences that a step may give one token; a pipeline's batches share them evenly."""
        decoding = [
            seq for seq in self._running if len(seq.token_ids) - seq.num_computed_tokens == 1 and not seq.in_flight
        ]
        if self._num_batches == 1:
            return decoding
        return decoding[: -(-len(self._running) // self._num_batches)]

    def _make_room(self, sequence: Sequence, output: SchedulerOutput, decodes: list[ScheduledChunk]) -> bool:
        """Allocate a slot for the newest token, preempting the newest of the lowest priority until it fits."""
        while not self._kv.allocate_slots(sequence, sequence.num_tokens):
            idle = [candidate for candidate in self._running if not candidate.in_flight]
            victim = max(idle, key=lambda candidate: candidate.queue_key)
            if victim is sequence and len(idle) < len(self._running):
                return False  # a batch under way may end and give its blocks back
            self._preempt(victim)
            output.num_preempted += 1
            decodes[:] = [chunk for chunk in decodes if chunk.sequence is not victim]
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._send_back(sequence)

    def _compute_again(self, sequence: Sequence) -> None:
        """Start over with a sequence that has just become long: what is cached was rotated for a short one."""
        sequence.block_hashes.clear()
        self._send_back(sequence)

    def _send_back(self, sequence: Sequence) -> None:
        self._kv.free(sequence)
        self._running.remove(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_preemptions += 1
        self._waiting.push(sequence)

    def _divide_among_prompts(self, budget: int, num_decodes: int, *, may_admit: bool) -> dict[Sequence, int]:
        """Return each prompt's tokens of this step by the long_prefill rule, admitting waiting ones on the way."""
        grants: dict[Sequence, int] = {}
        if budget == 0 or (not self._waiting and num_decodes == len(self._running)):
            return grants
        prompts = [seq for seq in self._running if seq.num_uncomputed_tokens > 1 and not seq.in_flight]
        prompts.sort(key=lambda seq: seq.queue_key)
        allows = self._adapter_limit.allows
        self._adapter_limit.begin(self._running, self._waiting)
        head = self._waiting.peek(allows) if may_admit else None
        if head is not None and (not prompts or head.queue_key < prompts[0].queue_key):
            # Where the first of all does not fit nobody passes it, else it could wait for ever.
            may_admit = self._admit(head)
            if may_admit:
                prompts.insert(0, head)
        if not prompts:
            return grants
        first: Sequence | None = prompts.pop(0)
        while first is not None and budget > 0:
            lacking = first.num_uncomputed_tokens - grants.get(first, 0)
            share = first_share(budget, self._step_seq)
            if lacking > share:
                left = budget - share
                candidates = [*prompts, *(self._waiting if may_admit else ())]
                for sequence in passing(first, [seq for seq in candidates if seq not in grants]):
                    if left == 0:
                        break
                    if sequence.status is SequenceStatus.WAITING:
                        if not allows(sequence):
                            continue
                        may_admit = may_admit and self._admit(sequence)
                        if not may_admit:
                            continue
                    grants[sequence] = min(sequence.num_uncomputed_tokens, left)
                    left -= grants[sequence]
                budget = left + share
            granted = min(lacking, budget)
            grants[first] = grants.get(first, 0) + granted
            budget -= granted
            # What the first leaves is divided by the same rule: those under way come before those that wait.
            if prompts:
                first = prompts.pop(0)
            else:
                first = self._waiting.peek(allows) if may_admit and budget > 0 else None
                if first is not None and not self._admit(first):
                    first = None
        return {sequence: num for sequence, num in grants.items() if num}

    def _admit(self, sequence: Sequence) -> bool:
        """Give a waiting sequence a place in the batch and blocks for all its tokens, if both are there."""
        if len(self._running) >= min(self.max_num_seqs, self.budget.limit):
            return False
        if self._running and not self.budget.may_admit:
            return False
        matched = self._kv.match_prefix(sequence)
        if not self._kv.admit(sequence, matched, alone=not self._running):
            return False
        self._waiting.remove(sequence.seq_id)
        self._running.append(sequence)
        self._adapter_limit.admitted(sequence, self._waiting)
        sequence.status = SequenceStatus.RUNNING
        if not sequence.first_token_sent:
            sequence.num_cached_tokens = min(sequence.num_computed_tokens, sequence.num_prompt_tokens)
        # All of it is taken now, not only this chunk's: admission promised that the whole will fit.
        fitted = self._kv.allocate_slots(sequence, sequence.num_tokens)
        assert fitted, "admission promised room"
        return True

    def _cut_to_scorable(self, grants: dict[Sequence, int]) -> list[ScheduledChunk]:
        """Make chunks of the grants, so short that together they score MAX_SCORED_TOKENS prompt tokens at most."""
        num_scorable = MAX_SCORED_TOKENS
        chunks: list[ScheduledChunk] = []
        for sequence in sorted(grants, key=lambda seq: seq.queue_key):
            num = min(grants[sequence], _num_until_scored(sequence, num_scorable))
            if num:
                chunks.append(ScheduledChunk(sequence, sequence.num_computed_tokens, num))
                num_scorable -= len(chunks[-1].scored_positions)
        return chunks

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.status is SequenceStatus.RUNNING:
            self._running.remove(sequence)
            self._kv.free(sequence)
        else:
            self._waiting.remove(sequence.seq_id)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason = reason
        del self._sequences[sequence.seq_id]


def _num_until_scored(sequence: Sequence, num_scorable: int) -> int:
    """Return how many tokens may be computed before more than `num_scorable` prompt tokens are scored."""
    left = sequence.num_uncomputed_tokens
    last_scored = sequence.num_prompt_tokens - 1
    if sequence.params.prompt_logprobs is None or sequence.num_scored_tokens >= last_scored:
        return left
    end = max(sequence.num_computed_tokens, sequence.num_scored_tokens) + num_scorable
    return left if end >= last_scored else min(left, end - sequence.num_computed_tokens)
