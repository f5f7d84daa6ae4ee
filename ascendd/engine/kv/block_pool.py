"""BlockPool: block ids, reference counts and the published prefix blocks of one KV cache."""

from __future__ import annotations

from collections.abc import Iterable

from ascendd.engine.kv.free_queue import Block, FreeQueue

# Padding rows and unused table entries point here; it is never given out.
NULL_BLOCK_ID = 0


class BlockPool:
    """
    `num_blocks` blocks with ids 1..num_blocks; id 0 is the null block.

        free, not published   ->  allocate  ->  held (ref_count >= 1)  ->  free
                                                  | publish
        free, published       <-  free      <-  held, published        <-  share (prefix hit, ref_count + 1)

    A published block that is free keeps its content until `allocate` evicts it.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1
        self.num_blocks = num_blocks
        self._blocks = [Block(block_id) for block_id in range(num_blocks + 1)]
        self._free = FreeQueue(self._blocks[1:])
        self._published: dict[bytes, Block] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds, published ones included."""
        return len(self._free)

    @property
    def num_used_blocks(self) -> int:
        """Blocks that at least one sequence holds."""
        return self.num_blocks - len(self._free)

    def allocate(self, num: int) -> list[int]:
        """Take `num` blocks, evicting published ones last freed first. Raises IndexError when fewer are free."""
        if num > len(self._free):
            raise IndexError(f"{num} blocks asked for, {len(self._free)} are free")
        ids = []
        for _ in range(num):
            block = self._free.popleft()
            self._unpublish(block)
            block.ref_count = 1
            ids.append(block.block_id)
        return ids

    def free(self, block_ids: Iterable[int]) -> None:
        """Give blocks of one sequence back, in table order; the tail of the chain becomes the first to be evicted."""
        for block_id in reversed(list(block_ids)):
            block = self._blocks[block_id]
            assert block.ref_count > 0, f"double free of {block}"
            block.ref_count -= 1
            if block.ref_count == 0:
                self._free.append(block)

    def lookup(self, block_hash: bytes) -> int | None:
        """Return the id of the published block with this content, or None. It is not held yet."""
        block = self._published.get(block_hash)
        return None if block is None else block.block_id

    def is_free(self, block_id: int) -> bool:
        """Whether nobody holds the block."""
        return self._blocks[block_id].ref_count == 0

    def share(self, block_ids: Iterable[int]) -> None:
        """Hold published blocks once more."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1

    def publish(self, block_id: int, block_hash: bytes) -> None:
        """
        Offer a full block that a finished step has written.

        Where the same content is already published the block stays private, so that block tables are append-only.
        """
        block = self._blocks[block_id]
        assert block.ref_count > 0, f"{block} is published while nobody holds it"
        if block.block_hash is None and block_hash not in self._published:
            block.block_hash = block_hash
            self._published[block_hash] = block

    def clear_published(self) -> None:
        """Forget all published content, for a cache whose tensors were lost."""
        for block in list(self._published.values()):
            self._unpublish(block)

    def check_integrity(self) -> None:
        """Raise AssertionError, saying what is wrong, unless every block is either held or free, and published once."""
        free_ids = [block.block_id for block in self._free]
        assert len(free_ids) == len(set(free_ids)) == len(self._free), "a block is free twice"
        for block in self._blocks[1:]:
            held, free = block.ref_count > 0, block.next_free is not None
            assert held != free, f"{block} is {'both held and free' if held else 'neither held nor free'}"
            if block.block_hash is not None:
                assert self._published.get(block.block_hash) is block, f"{block} has a hash that is not published"
        assert NULL_BLOCK_ID not in free_ids, "the null block is free"
        assert all(block.block_hash == key for key, block in self._published.items()), (
            "a published block has another hash"
        )

    def _unpublish(self, block: Block) -> None:
        if block.block_hash is not None:
            del self._published[block.block_hash]
            block.block_hash = None
