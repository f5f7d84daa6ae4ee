"""BlockPool and FreeQueue: no leak, no double free, whatever the order of calls."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ascendd.engine.kv.block_pool import NULL_BLOCK_ID, BlockPool
from ascendd.engine.kv.free_queue import Block, FreeQueue


def test_blocks_come_out_in_the_order_they_were_freed() -> None:
    """The block freed first is evicted first."""
    blocks = [Block(index) for index in range(3)]
    queue = FreeQueue(blocks)

    assert [queue.popleft().block_id for _ in range(3)] == [0, 1, 2]
    with pytest.raises(IndexError):
        queue.popleft()


def test_a_block_leaves_the_middle_of_the_queue() -> None:
    """A prefix hit takes a block out wherever it stands."""
    blocks = [Block(index) for index in range(3)]
    queue = FreeQueue(blocks)
    queue.remove(blocks[1])

    assert [block.block_id for block in queue] == [0, 2]
    assert len(queue) == 2


def test_the_null_block_is_never_given_out() -> None:
    """Block 0 stays reserved even when the pool is empty."""
    pool = BlockPool(4)
    ids = pool.allocate(4)

    assert NULL_BLOCK_ID not in ids
    with pytest.raises(IndexError, match="1 blocks asked for, 0 are free"):
        pool.allocate(1)


def test_a_double_free_is_caught() -> None:
    """Freeing what nobody holds is an assertion, not a corrupted queue."""
    pool = BlockPool(2)
    ids = pool.allocate(1)
    pool.free(ids)

    with pytest.raises(AssertionError, match="double free"):
        pool.free(ids)


def test_the_tail_of_a_chain_is_evicted_before_its_head() -> None:
    """Freed in reverse, so that the beginning of a prompt, which others share, lives longest."""
    pool = BlockPool(3)
    ids = pool.allocate(3)
    pool.free(ids)

    assert pool.allocate(3) == ids[::-1]


def test_a_published_block_is_found_until_it_is_reused() -> None:
    """A free block keeps its content and its hash until somebody needs the room."""
    pool = BlockPool(1)
    ids = pool.allocate(1)
    pool.publish(ids[0], b"h")
    pool.free(ids)

    assert pool.lookup(b"h") == ids[0]
    pool.allocate(1)
    assert pool.lookup(b"h") is None


class BlockPoolMachine(RuleBasedStateMachine):
    """Random holders take, share, publish and give back; the accounts must add up after each call."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12)
        self.tables: list[list[int]] = []
        self.num_hashes = 0

    @rule(num=st.integers(0, 6))
    def allocate(self, num: int) -> None:
        if num <= self.pool.num_free_blocks:
            self.tables.append(self.pool.allocate(num))
        else:
            with pytest.raises(IndexError):
                self.pool.allocate(num)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        self.pool.free(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from([table for table in self.tables if table]))
        self.num_hashes += 1
        self.pool.publish(data.draw(st.sampled_from(table)), str(self.num_hashes % 5).encode())

    @rule(key=st.integers(0, 4))
    def share(self, key: int) -> None:
        block_id = self.pool.lookup(str(key).encode())
        if block_id is not None:
            self.pool.share([block_id])
            self.tables.append([block_id])

    @invariant()
    def accounts_add_up(self) -> None:
        self.pool.check_integrity()
        held = {block_id for table in self.tables for block_id in table}
        assert self.pool.num_used_blocks == len(held)


TestBlockPoolMachine = BlockPoolMachine.TestCase
TestBlockPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
