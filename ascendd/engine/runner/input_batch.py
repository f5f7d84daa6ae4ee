"""InputBatch: block tables of the running sequences in one numpy array, kept between steps; only deltas are written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ascendd.device.base import AttentionContext, AttentionForm, DecodeGroup, PrefillChunk, SequenceTable
from ascendd.engine.sched.output import ScheduledChunk
from ascendd.engine.sequence import Sequence, SequenceStatus

# Rows of a decode group are padded to the longest of them; a row this much shorter opens a group of its own.
_MAX_PADDING = 0.25
# Below this many blocks padding costs less than another attention call.
_SMALL_NUM_BLOCKS = 8


@dataclass(slots=True)
class _Row:
    sequence: Sequence
    num_blocks: int
    num_preemptions: int


@dataclass(slots=True)
class StepInputs:
    """
    Tensors of one step on the CPU: `token_ids`, `rotary_rows`, `sample_rows` int64, and the attention context.

    `rotary_rows` holds each token's row of the rotary table, which is its position, or further down for long sequences.

    `sample_rows` are the rows whose logits are wanted, ascending; `drawn` [sample_rows] bool says from which of them a
    token is drawn, where that is not all of them: the others score prompt tokens. `is_decode_only` says that every
    sequence has one new token and draws the next.
    """

    token_ids: torch.Tensor
    rotary_rows: torch.Tensor
    sample_rows: torch.Tensor
    attention: AttentionContext
    drawn: torch.Tensor | None = None
    is_decode_only: bool = False

    def to(self, device: str) -> StepInputs:
        """Bring everything to `device`; on the CPU it is there already."""
        if device == "cpu":
            return self
        self.token_ids, self.rotary_rows = self.token_ids.to(device), self.rotary_rows.to(device)
        self.sample_rows = self.sample_rows.to(device)
        self.drawn = None if self.drawn is None else self.drawn.to(device)
        attention = self.attention
        attention.slot_mapping = attention.slot_mapping.to(device)
        for group in attention.decode_groups:
            group.rows, group.mask = group.rows.to(device), group.mask.to(device)
            group.block_table = group.block_table.to(device)
        for chunk in attention.prefill_chunks:
            chunk.block_ids = chunk.block_ids.to(device)
        if attention.table is not None:
            attention.table.block_table = attention.table.block_table.to(device)
            attention.table.rows = None if attention.table.rows is None else attention.table.rows.to(device)
        return self


class InputBatch:
    """Maps sequences to rows of the block table. A row is reused once its sequence ended or was preempted."""

    def __init__(
        self,
        max_num_seqs: int,
        max_blocks_per_seq: int,
        block_size: int,
        long_offset: int = 0,
        form: AttentionForm = AttentionForm.DECODE_GROUPS | AttentionForm.PREFILL_CHUNKS,
    ) -> None:
        self._form = form
        self._block_size = block_size
        self._long_offset = long_offset
        self._table = np.zeros((max_num_seqs, max_blocks_per_seq), dtype=np.int64)
        self._rows: dict[int, _Row] = {}
        self._row_of: dict[int, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))
        # The step before: its sequences, how often each was preempted, their rows and the lengths of their tables.
        self._sequences: list[Sequence] = []
        self._preemptions: list[int] = []
        self._step_rows = np.empty(0, dtype=np.int64)
        self._num_blocks: list[int] = []
        # Never written to, so that steps may share them.
        self._ones = np.ones(max_num_seqs, dtype=np.int64)
        self._places = np.arange(max_num_seqs + 1)

    def prepare(self, chunks: list[ScheduledChunk]) -> StepInputs:
        """
        Build the inputs of a step; decodes stand first in `chunks`.

        Returns tensors that own their memory for this step only.
        """
        sequences = [chunk.sequence for chunk in chunks]
        rows = self._find_rows(sequences)
        starts = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        if len(chunks) == (num_tokens := sum([chunk.num_tokens for chunk in chunks])):
            # One token each, as in most steps: nothing is repeated, and nothing but the newest token draws.
            counts, begins, ends = self._ones[:num_tokens], self._places[:num_tokens], self._places[1 : num_tokens + 1]
            row_of_token, positions = rows, starts
            lengths = np.array([len(sequence.token_ids) for sequence in sequences], dtype=np.int64)
            token_ids = np.array(
                [seq.token_ids[start] for seq, start in zip(sequences, starts.tolist(), strict=True)], dtype=np.int64
            )
            samples = starts + 1 == lengths
            may_score = not samples.all()
        else:
            counts = np.array([chunk.num_tokens for chunk in chunks], dtype=np.int64)
            ends = np.cumsum(counts)
            begins = ends - counts
            row_of_token = np.repeat(rows, counts)
            positions = np.arange(num_tokens, dtype=np.int64) + np.repeat(starts - begins, counts)
            token_ids = np.empty(num_tokens, dtype=np.int64)
            for chunk, begin, end in zip(chunks, begins.tolist(), ends.tolist(), strict=True):
                token_ids[begin:end] = chunk.sequence.token_ids[chunk.start : chunk.start + chunk.num_tokens]
            samples = np.array([chunk.samples for chunk in chunks], dtype=bool)
            may_score = True
        blocks, offsets = np.divmod(positions, self._block_size)
        slots = self._table[row_of_token, blocks] * self._block_size + offsets
        logit_rows, drawn = (ends - 1)[samples], None
        scored = may_score and [
            np.arange(len(chunk.scored_positions)) + begin + chunk.scored_positions.start - chunk.start
            for chunk, begin in zip(chunks, begins.tolist(), strict=True)
            if chunk.sequence.params.prompt_logprobs is not None and chunk.scored_positions
        ]
        if scored:
            num_drawn = len(logit_rows)
            logit_rows = np.concatenate([logit_rows, *scored])
            order = np.argsort(logit_rows)
            logit_rows, drawn = logit_rows[order], torch.from_numpy(order < num_drawn)

        attention = AttentionContext(torch.from_numpy(slots))
        is_decode = (counts == 1) & (starts > 0)
        if AttentionForm.DECODE_GROUPS in self._form and is_decode.any():
            attention.decode_groups = self._decode_groups(rows[is_decode], starts[is_decode] + 1, begins[is_decode])
        if AttentionForm.PREFILL_CHUNKS in self._form:
            attention.prefill_chunks = [
                PrefillChunk(
                    int(begins[i]),
                    int(ends[i]),
                    int(starts[i]),
                    torch.from_numpy(self._table[rows[i], : -(-int(starts[i] + counts[i]) // self._block_size)].copy()),
                )
                for i in np.flatnonzero(~is_decode)
            ]
        if AttentionForm.SEQUENCE_TABLE in self._form:
            attention.table = self._sequence_table(rows, starts + counts, ends)
        elif AttentionForm.DECODE_TABLE in self._form and is_decode.any():
            decodes = np.arange(1, 1 + int(is_decode.sum()))
            attention.table = self._sequence_table(rows[is_decode], starts[is_decode] + 1, decodes)
            attention.table.rows = torch.from_numpy(begins[is_decode])
        rotary_rows = positions
        if self._long_offset:
            is_long = np.fromiter((chunk.sequence.is_long for chunk in chunks), dtype=bool, count=len(chunks))
            rotary_rows = positions + np.repeat(is_long, counts) * self._long_offset
        return StepInputs(
            torch.from_numpy(token_ids),
            torch.from_numpy(rotary_rows),
            torch.from_numpy(logit_rows),
            attention,
            drawn,
            is_decode_only=drawn is None and len(logit_rows) == num_tokens and bool(is_decode.all()),
        )

    def _sequence_table(self, rows: np.ndarray, lengths: np.ndarray, query_ends: np.ndarray) -> SequenceTable:
        num_blocks = -(-int(lengths.max()) // self._block_size)
        table = torch.from_numpy(self._table[rows, :num_blocks].astype(np.int32))
        return SequenceTable(query_ends.tolist(), lengths.tolist(), table)

    def _decode_groups(self, rows: np.ndarray, lengths: np.ndarray, token_rows: np.ndarray) -> list[DecodeGroup]:
        """Group rows of similar length, longest first; lengths in tokens, the new one included."""
        num_blocks = -(-lengths // self._block_size)
        order = np.argsort(-num_blocks, kind="stable")
        groups: list[DecodeGroup] = []
        begin = 0
        while begin < len(order):
            longest = int(num_blocks[order[begin]])
            shortest = 0 if longest <= _SMALL_NUM_BLOCKS else longest * (1 - _MAX_PADDING)
            end = begin + 1
            while end < len(order) and num_blocks[order[end]] >= shortest:
                end += 1
            members = order[begin:end]
            slots = np.arange(longest * self._block_size)
            groups.append(
                DecodeGroup(
                    rows=torch.from_numpy(token_rows[members]),
                    block_table=torch.from_numpy(self._table[rows[members], :longest]),
                    mask=torch.from_numpy(slots[None, :] < lengths[members][:, None]),
                )
            )
            begin = end
        return groups

    def _find_rows(self, sequences: list[Sequence]) -> np.ndarray:
        """
        Return each sequence's row [sequences] int64, its new blocks written to the table.

        In most steps the sequences are those of the step before: then only the tables that grew are touched.
        """
        preemptions = [sequence.num_preemptions for sequence in sequences]
        same = sequences == self._sequences and preemptions == self._preemptions
        # Without a row beside these none can be stale.
        if not same or len(self._rows) > len(sequences):
            self._release_stale()
        if not same:
            self._sequences, self._preemptions = sequences, preemptions
            self._step_rows = np.array([self._row(sequence) for sequence in sequences], dtype=np.int64)
            self._num_blocks = [len(sequence.block_ids) for sequence in sequences]
            return self._step_rows
        num_blocks = [len(sequence.block_ids) for sequence in sequences]
        if num_blocks != self._num_blocks:
            for sequence, now, before in zip(sequences, num_blocks, self._num_blocks, strict=True):
                if now != before:
                    self._row(sequence)
            self._num_blocks = num_blocks
        return self._step_rows

    def _row(self, sequence: Sequence) -> int:
        row = self._row_of.get(sequence.seq_id)
        if row is None:
            row = self._free_rows.pop()
            self._row_of[sequence.seq_id] = row
            self._rows[row] = _Row(sequence, 0, sequence.num_preemptions)
        state = self._rows[row]
        if state.num_blocks != len(sequence.block_ids):
            new = sequence.block_ids[state.num_blocks :]
            self._table[row, state.num_blocks : state.num_blocks + len(new)] = new
            state.num_blocks += len(new)
        return row

    def _release_stale(self) -> None:
        running = SequenceStatus.RUNNING
        stale = [
            row
            for row, state in self._rows.items()
            if state.sequence.status is not running or state.sequence.num_preemptions != state.num_preemptions
        ]
        for row in stale:
            state = self._rows.pop(row)
            # The null block everywhere: padding of a shorter neighbour must never point at another's block.
            self._table[row, : state.num_blocks] = 0
            del self._row_of[state.sequence.seq_id]
            self._free_rows.append(row)
        if stale:
            # An ended sequence is not kept alive for its row.
            self._sequences = []
