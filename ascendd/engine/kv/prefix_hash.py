"""The hash chain of the prefix cache: a full block is known by its tokens and all that came before."""

from __future__ import annotations

import hashlib
from array import array

from ascendd.engine.sequence import Sequence

_DIGEST_BYTES = 16
ROOT = b"\0" * _DIGEST_BYTES
# Keys of a long sequence are rotated by other frequencies, so its blocks are others' from the first on.
LONG_ROOT = b"\1" * _DIGEST_BYTES


def root_hash(cache_key: bytes, *, is_long: bool = False) -> bytes:
    """
    Return what the chain of a sequence begins with: ROOT or LONG_ROOT, hashed with its `cache_key` where it has one.

    The key is in the first parent and so in every block after it; its length is free, unlike that of a BLAKE2b key.
    """
    root = LONG_ROOT if is_long else ROOT
    if not cache_key:
        return root
    return hashlib.blake2b(root + cache_key, digest_size=_DIGEST_BYTES, person=b"cache key").digest()


def hash_block(parent: bytes, token_ids: list[int]) -> bytes:
    """
    Return the 128-bit BLAKE2b hash of one full block; `parent` is the hash of the block before, or the root.

    128 bits: a collision among 10^12 blocks has a chance below 10^-14, so token ids need not be compared on a hit.
    """
    return hashlib.blake2b(parent + array("i", token_ids).tobytes(), digest_size=_DIGEST_BYTES).digest()


def extend_hashes(sequence: Sequence, block_size: int) -> list[bytes]:
    """Bring `sequence.block_hashes` up to its full blocks and return it; each block is hashed once."""
    hashes = sequence.block_hashes
    for index in range(len(hashes), sequence.num_tokens // block_size):
        parent = hashes[-1] if hashes else root_hash(sequence.cache_key, is_long=sequence.is_long)
        hashes.append(hash_block(parent, sequence.token_ids[index * block_size : (index + 1) * block_size]))
    return hashes
