"""The persistent batch under any events: what it gives each step is what one built from nothing gives, and what is asked."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascendd.device.base import AttentionForm
from ascendd.engine.kv.kv_cache_manager import KVCacheManager
from ascendd.engine.runner.input_batch import InputBatch, StepInputs
from ascendd.engine.sched.output import ModelRunnerOutput, ScheduledChunk
from ascendd.engine.sched.scheduler import Scheduler
from ascendd.engine.sequence import Sequence
from ascendd.ipc.messages import SamplingParams

BLOCK_SIZE = 4
MAX_SEQS = 5
LONGEST = 40
LONG_OFFSET = 1000
FORMS = (
    AttentionForm.DECODE_GROUPS | AttentionForm.PREFILL_CHUNKS,
    AttentionForm.SEQUENCE_TABLE,
    AttentionForm.DECODE_TABLE | AttentionForm.PREFILL_CHUNKS,
)


def make_batch(form: AttentionForm) -> InputBatch:
    """Return a batch without history, with a row for a probe."""
    return InputBatch(MAX_SEQS + 1, LONGEST // BLOCK_SIZE + 1, BLOCK_SIZE, LONG_OFFSET, form)


def plain(inputs: StepInputs) -> list[object]:
    """Return all that a step's inputs hold, as lists."""

    def listed(tensor: torch.Tensor | None) -> object:
        return None if tensor is None else (tensor.dtype, tensor.tolist())

    attention, table = inputs.attention, inputs.attention.table
    return [
        *map(listed, (inputs.token_ids, inputs.rotary_rows, inputs.sample_rows, inputs.drawn, attention.slot_mapping)),
        inputs.is_decode_only,
        [(listed(group.rows), listed(group.block_table), listed(group.mask)) for group in attention.decode_groups],
        [(c.begin, c.end, c.start, listed(c.block_ids)) for c in attention.prefill_chunks],
        table and (list(table.query_ends), list(table.kv_lengths), listed(table.block_table), listed(table.rows)),
    ]


def check_against_the_chunks(inputs: StepInputs, chunks: list[ScheduledChunk]) -> None:
    """Tokens, slots, rotary rows and rows that draw are those that the chunks ask for, worked out one by one."""
    tokens, slots, rotary, drawn, told = [], [], [], [], []
    for chunk in chunks:
        sequence = chunk.sequence
        for position in range(chunk.start, chunk.start + chunk.num_tokens):
            if position in chunk.scored_positions:
                told.append(len(tokens))
            tokens.append(sequence.token_ids[position])
            block_id = sequence.block_ids[position // BLOCK_SIZE]
            slots.append(block_id * BLOCK_SIZE + position % BLOCK_SIZE)
            rotary.append(position + LONG_OFFSET * sequence.is_long)
        if chunk.samples:
            drawn.append(len(tokens) - 1)
    assert inputs.token_ids.tolist() == tokens
    assert inputs.attention.slot_mapping.tolist() == slots
    assert inputs.rotary_rows.tolist() == rotary
    assert inputs.sample_rows.tolist() == sorted(drawn + told)
    rows = inputs.sample_rows if inputs.drawn is None else inputs.sample_rows[inputs.drawn]
    assert rows.tolist() == drawn
    assert (inputs.drawn is None) == (not told)


def make_sequence(seq_id: int, rng: random.Random) -> Sequence:
    """Return a sequence of any length, most of which share the beginning of their prompt with others."""
    num_prompt = rng.randint(1, LONGEST - 2)
    params = SamplingParams(
        max_tokens=rng.randint(1, LONGEST - 1 - num_prompt),
        ignore_eos=True,
        prompt_logprobs=rng.choice((None, None, None, 0)),
    )
    shared = rng.randint(0, num_prompt)
    token_ids = [1] * shared + [rng.randint(2, 9) for _ in range(num_prompt - shared)]
    switch = rng.choice((None, None, LONGEST // 2))
    return Sequence(seq_id, token_ids, params, seed=0, rope_switch_length=switch)


@pytest.mark.parametrize("form", FORMS, ids=["groups", "table", "decode table"])
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32), num_blocks=st.integers(10, 40), budget=st.integers(MAX_SEQS, 40), prefix=st.booleans()
)
def test_a_batch_with_history_gives_what_a_new_one_gives(
    form: AttentionForm, seed: int, num_blocks: int, budget: int, prefix: bool
) -> None:  # fmt: skip
    """Arrivals, prefix hits, preemptions, aborts, ids used again, steps without some and probes leave no trace."""
    rng = random.Random(seed)
    kv = KVCacheManager(num_blocks, BLOCK_SIZE, enable_prefix_caching=prefix)
    scheduler = Scheduler(kv, max_num_seqs=MAX_SEQS, max_num_batched_tokens=budget, num_batches=rng.choice((1, 2)))
    batch = make_batch(form)
    num_left = 12
    for _ in range(400):
        if num_left and rng.random() < 0.4:
            free_ids = [seq_id for seq_id in range(8) if not scheduler.knows(seq_id)]
            if free_ids:
                scheduler.add(make_sequence(rng.choice(free_ids), rng))
                num_left -= 1
        if scheduler.seq_ids and rng.random() < 0.05:
            scheduler.abort(rng.choice(scheduler.seq_ids))
        output = scheduler.schedule()
        if not output.chunks:
            if not num_left and not scheduler.has_work:
                break
            continue
        inputs = batch.prepare(output.chunks)
        assert plain(inputs) == plain(make_batch(form).prepare(output.chunks))
        check_against_the_chunks(inputs, output.chunks)
        assert all(chunk.num_tokens == 1 and chunk.samples for chunk in output.chunks[: output.num_decodes])
        assert output.num_tokens == sum(chunk.num_tokens for chunk in output.chunks)
        assert output.sampling_chunks == [chunk for chunk in output.chunks if chunk.samples]
        if rng.random() < 0.05:
            scheduler.abort(rng.choice(scheduler.seq_ids))
        drawn = [rng.randint(2, 9) for _ in output.sampling_chunks]
        scheduler.update_from_output(output, ModelRunnerOutput(drawn))
    assert not scheduler.has_work


def test_inputs_of_a_step_stay_as_they_are_while_the_next_is_prepared() -> None:
    """A step's tensors are its own: preparing the next one, whose tables grew, changes none of them."""
    batch = make_batch(AttentionForm.SEQUENCE_TABLE)
    kv = KVCacheManager(20, BLOCK_SIZE)
    scheduler = Scheduler(kv, max_num_seqs=MAX_SEQS, max_num_batched_tokens=40)
    for seq_id in range(3):
        scheduler.add(Sequence(seq_id, [seq_id] * (3 + seq_id), SamplingParams(max_tokens=12, ignore_eos=True), seed=0))
    kept: list[tuple[StepInputs, list[object]]] = []
    while scheduler.has_work:
        output = scheduler.schedule()
        inputs = batch.prepare(output.chunks)
        kept.append((inputs, plain(inputs)))
        scheduler.update_from_output(output, ModelRunnerOutput([7] * len(output.sampling_chunks)))
    assert len(kept) == 12
    assert all(plain(inputs) == before for inputs, before in kept)
