"""The profile run's steps are as wide as the configuration allows, and no wider than a device bears."""

from __future__ import annotations

import pytest

from ascendd.engine.runner.profile_run import finish, profile_steps, scratch_blocks
from ascendd.engine.sequence import SequenceStatus


def test_the_steps_are_the_widest_there_can_be(make_engine_config) -> None:
    """A prefill of all batched tokens, cut by the context, and one decode for each place with its share of the cache."""
    config = make_engine_config(max_num_batched_tokens=1200, max_model_len=513, max_num_seqs=8, num_blocks=256)
    prefill, decode = profile_steps(config, None)

    assert [chunk.num_tokens for chunk in prefill.chunks] == [512, 512, 176]
    assert [(chunk.start, chunk.num_tokens) for chunk in decode.chunks] == [(511, 1)] * 8
    assert all(chunk.samples for chunk in (*prefill.chunks, *decode.chunks))
    assert scratch_blocks([prefill, decode]) == 1 + 32 + 32 + 11


def test_a_device_may_bound_the_width(make_engine_config) -> None:
    """With a bound of 16 no step computes more than 16 tokens, and a decode reads no more than 16 blocks."""
    config = make_engine_config(max_num_batched_tokens=512, max_num_seqs=64, num_blocks=4000, max_model_len=4096)
    steps = profile_steps(config, 16)

    assert [step.num_tokens for step in steps] == [16, 16]
    assert {len(chunk.sequence.block_ids) for chunk in steps[1].chunks} == {16}
    assert scratch_blocks(steps) == 1 + 15 + 16


def test_no_slot_is_written_twice_in_a_step(make_engine_config) -> None:
    """Operators that write the cache refuse that; the decodes share all blocks but their last."""
    config = make_engine_config(max_num_batched_tokens=1200, max_model_len=513, max_num_seqs=8, num_blocks=256)
    for step in profile_steps(config, None):
        slots = [
            (chunk.sequence.block_ids[position // config.block_size], position % config.block_size)
            for chunk in step.chunks
            for position in range(chunk.start, chunk.start + chunk.num_tokens)
        ]

        assert len(slots) == len(set(slots))


@pytest.mark.parametrize("max_model_len", [2, 3, 16, 17])
def test_every_chunk_has_the_blocks_it_needs(make_engine_config, max_model_len: int) -> None:
    """The smallest contexts get sequences that fit them."""
    config = make_engine_config(max_model_len=max_model_len, num_blocks=2, max_num_seqs=2, max_num_batched_tokens=64)
    for step in profile_steps(config, None):
        for chunk in step.chunks:
            assert chunk.num_tokens >= 1
            assert chunk.start + chunk.num_tokens <= min(max_model_len, 16 * len(chunk.sequence.block_ids))
        finish(step)
        assert {chunk.sequence.status for chunk in step.chunks} == {SequenceStatus.FINISHED}
