"""A hash of what a sample is made of, by which a reader splits its rows in two."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data.batch import Bags, Batch

__all__ = ["HASH_RANGE", "row_hashes"]

HASH_RANGE = 2**64
"""Hashes are in [0, HASH_RANGE)."""

# Odd, so that a product keeps every bit: the 64-bit golden ratio, and a prime of XXH64.
_COLUMN = np.uint64(0x9E3779B97F4A7C15)
_POSITION = np.uint64(0xC2B2AE3D27D4EB4F)


def row_hashes(batch: Batch, slots: Sequence[str] | None = None) -> NDArray[np.uint64]:
    """Returns a hash of each sample, uint64 `[batch]`, uniform over [0, 2**64).

    It is a function of the keys of each slot, bag by bag, and of the bits of the
    dense values; not of the label, nor of the place of the row. Sums wrap at
    2**64::

        h = (...((bag_1 * C + bag_2) * C + ...) * C + dense_1) * C + ...

    Its bits are mixed at the end by the finalizer of MurmurHash3 (Appleby,
    public domain).

    Args:
        batch: The samples.
        slots: Those that the hash covers, in this order, alone; None is every
            slot and dense value.
    """
    hashes = np.zeros(batch.size, np.uint64)
    for slot in batch.bags if slots is None else slots:
        hashes *= _COLUMN
        hashes += _bag_hashes(batch.bags[slot])
    for bits in batch.dense.view(np.uint32).T if slots is None else ():
        hashes *= _COLUMN
        hashes += bits
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xFF51AFD7ED558CCD)
    hashes ^= hashes >> np.uint64(33)
    hashes *= np.uint64(0xC4CEB9FE1A85EC53)
    hashes ^= hashes >> np.uint64(33)
    return hashes


def _bag_hashes(bags: Bags) -> NDArray[np.uint64]:
    """Returns `sum(key_i * P**i) + (length - 1) * P` of each bag: its key, where it has one."""
    if bags.offsets is None:
        return bags.keys
    lengths = bags.lengths()
    positions = np.arange(len(bags.keys)) - np.repeat(bags.offsets[:-1], lengths)
    sums = np.zeros(len(bags.keys) + 1, np.uint64)
    np.cumsum(bags.keys * _POSITION ** positions.astype(np.uint64), out=sums[1:])
    hashes = sums[bags.offsets[1:]] - sums[bags.offsets[:-1]]
    hashes += (lengths - 1).astype(np.uint64) * _POSITION
    return hashes
