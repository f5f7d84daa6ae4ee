"""KVCacheManager: which sequence holds which blocks, prefix hits, usage. The only caller of BlockPool."""

from __future__ import annotations

from collections.abc import Collection

from ascendd.engine.kv.block_pool import BlockPool
from ascendd.engine.kv.prefix_hash import extend_hashes
from ascendd.engine.sequence import Sequence


class KVCacheManager:
    """Gives sequences room for their next tokens. Block tables live in `Sequence.block_ids` and only grow."""

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True, watermark: float = 0.01
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.enable_prefix_caching = enable_prefix_caching
        # Free blocks that admission leaves to the running sequences, so that they do not preempt each other at once.
        self._watermark_blocks = int(num_blocks * watermark)
        self.num_prefix_queries = 0
        self.num_prefix_hits = 0

    @property
    def usage(self) -> float:
        """Share of all blocks that are held, 0..1."""
        return self.pool.num_used_blocks / self.pool.num_blocks

    @property
    def prefix_hit_rate(self) -> float:
        """Share of the looked-up prompt tokens that were found in the prefix cache, 0..1."""
        return self.num_prefix_hits / self.num_prefix_queries if self.num_prefix_queries else 0.0

    def fragmentation(self, running: Collection[Sequence]) -> float:
        """
        Return the share of the slots in held blocks that hold no token, 0..1; `running` are all that hold blocks.

        A prompt's slots count as taken from its admission on, since each belongs to a token that is known. The newest
        token of a sequence has no K and V yet, so it does not count. Shared blocks are full: only what is empty at the
        end of a table is summed up, once for each sequence, and no block is looked at.
        """
        num_slots = self.pool.num_used_blocks * self.block_size
        if num_slots == 0:
            return 0.0
        # Asked in each step: two sums over plain lengths take a third of the time of one with properties.
        num_tail = self.block_size * sum([len(seq.block_ids) for seq in running])
        return (num_tail - sum([len(seq.token_ids) - 1 for seq in running])) / num_slots

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    def match_prefix(self, sequence: Sequence) -> list[int]:
        """
        Return the published blocks that hold the beginning of `sequence`, without holding them.

        The last token is always left to compute, because its logits are needed; of a prompt that is scored, all are.
        """
        if not self.enable_prefix_caching or sequence.params.prompt_logprobs is not None:
            return []
        hashes = extend_hashes(sequence, self.block_size)
        matched: list[int] = []
        for block_hash in hashes[: (sequence.num_tokens - 1) // self.block_size]:
            block_id = self.pool.lookup(block_hash)
            if block_id is None:
                break
            matched.append(block_id)
        return matched

    def admit(self, sequence: Sequence, matched: list[int], *, alone: bool) -> bool:
        """
        Start a waiting sequence on the `matched` prefix blocks if all its present tokens will fit.

        The whole of it is asked for, not just the first chunk: else two long prompts could each take half of the pool
        and preempt each other for ever. `alone` waives the watermark, since nobody else runs who could need it.
        """
        assert not sequence.block_ids
        # A matched block that is free stands in the free queue and is about to leave it.
        num_new = self.blocks_for(sequence.num_tokens) - len(matched) + sum(map(self.pool.is_free, matched))
        reserve = 0 if alone else self._watermark_blocks
        if num_new > self.pool.num_free_blocks - reserve:
            return False
        self.pool.share(matched)
        sequence.block_ids.extend(matched)
        sequence.num_computed_tokens = len(matched) * self.block_size
        sequence.num_published_blocks = len(matched)
        if self.enable_prefix_caching and sequence.params.prompt_logprobs is None:
            self.num_prefix_queries += sequence.num_tokens
            self.num_prefix_hits += sequence.num_computed_tokens
        return True

    def allocate_slots(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the first `num_tokens` tokens; return False, changing nothing, if blocks are short."""
        num_new = self.blocks_for(num_tokens) - len(sequence.block_ids)
        if num_new <= 0:
            return True
        if num_new > self.pool.num_free_blocks:
            return False
        sequence.block_ids.extend(self.pool.allocate(num_new))
        return True

    def publish(self, sequence: Sequence) -> None:
        """Offer the full blocks that finished steps have written to other sequences."""
        if not self.enable_prefix_caching:
            return
        num_full = sequence.num_computed_tokens // self.block_size
        if num_full <= sequence.num_published_blocks:
            return
        hashes = extend_hashes(sequence, self.block_size)
        for index in range(sequence.num_published_blocks, num_full):
            self.pool.publish(sequence.block_ids[index], hashes[index])
        sequence.num_published_blocks = num_full

    def free(self, sequence: Sequence) -> None:
        """Give all blocks of `sequence` back; published ones keep their content until they are needed."""
        self.pool.free(sequence.block_ids)
        sequence.block_ids.clear()
        sequence.num_computed_tokens = 0
        sequence.num_published_blocks = 0
