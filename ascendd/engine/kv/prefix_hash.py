"""The hash chain of the prefix cache: a full block is known by its tokens and all that came before."""

from __future__ import annotations

import hashlib
from array import array

from ascendd.engine.sequence import Sequence

_DIGEST_BYTES = 16
ROOT = b"\0" * _DIGEST_BYTES
# Keys of a long sequence are rotated by other frequencies, so its blocks are others' from the first on.
LONG_ROOT = b"\1" * _DIGEST_BYTES


def hash_block(parent: bytes, token_ids: list[int], extra: bytes = b"") -> bytes:
    """
    Return the 128-bit BLAKE2b hash of one full block.

    `parent` is the hash of the block before, or ROOT. `extra` holds what else must be equal (adapter, salt).
    128 bits: a collision among 10^12 blocks has a chance below 10^-14, so token ids need not be compared on a hit.
    """
    return hashlib.blake2b(parent + array("i", token_ids).tobytes(), digest_size=_DIGEST_BYTES, key=extra[:64]).digest()


def extend_hashes(sequence: Sequence, block_size: int) -> list[bytes]:
    """Bring `sequence.block_hashes` up to its full blocks and return it; each block is hashed once."""
    hashes = sequence.block_hashes
    for index in range(len(hashes), sequence.num_tokens // block_size):
        parent = hashes[-1] if hashes else LONG_ROOT if sequence.is_long else ROOT
        hashes.append(hash_block(parent, sequence.token_ids[index * block_size : (index + 1) * block_size]))
    return hashes
