"""Keys: from a slot's values to keys, and from a batch's keys to servers.

The native work that a client shares with the servers, checksums among it. All functions are pure
and release the GIL; the arrays they return start at a multiple of 64 bytes.
Arrays are taken as they are, C-contiguous and of the dtype that is written.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_server import _native
from ps_server.spec import NUM_BUCKETS

__all__ = [
    "KEY_HASH",
    "Dedup",
    "KeyIndex",
    "bucket_of",
    "crc32c",
    "dedup",
    "hash_integers",
    "hash_text",
    "slot_seed",
]

KEY_HASH = "xxh64-slot-v1"
"""How a value becomes a key: `XXH64(utf8(value), seed=XXH64(utf8(slot), seed=0))`.

An integer's value is its decimal text. The name is stored with what is trained,
for a model means nothing under another hash.
"""

assert _native.num_buckets == NUM_BUCKETS


@dataclass(frozen=True, eq=False)
class Dedup:
    """The unique keys of a batch, those of one server adjacent.

    Attributes:
        unique: `[u]`, by owner, for one owner by the stripes of its tables, and
            for one stripe by first occurrence.
        inverse: `[n]`, with `unique[inverse] == keys`.
        counts: Unique keys of each owner, `[num_owners]`; they sum to u.
    """

    unique: NDArray[np.uint64]
    inverse: NDArray[np.int64]
    counts: NDArray[np.int64]


def dedup(keys: NDArray[np.uint64], owners: NDArray[np.uint16], *, num_owners: int) -> Dedup:
    """Returns the unique keys of a batch, grouped by the server that owns them.

    Args:
        keys: `[n]`.
        owners: Index of the server that owns each bucket, `[NUM_BUCKETS]`.
        num_owners: Servers, above every owner.

    Raises:
        ValueError: An array has another dtype or shape or is not contiguous,
            or an owner is not below `num_owners`.

    >>> found = dedup(
    ...     np.array([5, 3, 5], dtype=np.uint64),
    ...     np.zeros(NUM_BUCKETS, dtype=np.uint16),
    ...     num_owners=1,
    ... )
    >>> found.unique, found.inverse, found.counts
    (array([3, 5], dtype=uint64), array([1, 0, 1]), array([2]))
    """
    return Dedup(*_native.dedup(keys, owners, num_owners))


class KeyIndex:
    """Numbers keys in the order in which they first come: 0, 1, 2, ...

    For rows that are kept one after the other elsewhere. May be used from any
    thread; releases the GIL.

    >>> index = KeyIndex()
    >>> index.find(np.array([7, 5, 7], dtype=np.uint64), insert=True)
    array([0, 1, 0])
    >>> index.find(np.array([9, 5], dtype=np.uint64), insert=False)
    array([-1,  1])
    """

    def __init__(self) -> None:
        self._native = _native.KeyIndex()

    def find(self, keys: NDArray[np.uint64], *, insert: bool) -> NDArray[np.int64]:
        """Returns the number of each key `[n]`.

        A missing key is given the next number if `insert`, otherwise -1.

        Raises:
            ValueError: `keys` is not a contiguous uint64 array `[n]`.
        """
        return self._native.find(keys, insert)

    def keys(self) -> NDArray[np.uint64]:
        """Returns the keys in the order of their numbers."""
        return self._native.keys()

    def __len__(self) -> int:
        """Returns how many keys have a number."""
        return len(self._native)


def bucket_of(keys: NDArray[np.uint64]) -> NDArray[np.uint16]:
    """Returns the bucket of each key, `[n]`: the top 12 bits of the mixed key.

    Raises:
        ValueError: `keys` is not a contiguous uint64 array `[n]`.

    >>> bucket_of(np.array([0, 1, 2**64 - 1], dtype=np.uint64))
    array([   0, 2885, 1611], dtype=uint16)
    """
    return _native.bucket_of(keys)


def slot_seed(slot: str) -> int:
    """Returns the seed of a slot's values: equal values of two slots are two keys.

    >>> hex(slot_seed("user"))
    '0x3da0fd9c44cfc9ee'
    """
    return _native.hash_bytes(slot.encode(), 0)


def hash_text(
    offsets: NDArray[np.int32] | NDArray[np.int64], data: NDArray[np.uint8], seed: int
) -> NDArray[np.uint64]:
    """Returns the keys of texts in the layout of an Arrow string array.

    Args:
        offsets: `[n + 1]`; text i is `data[offsets[i]:offsets[i + 1]]`. They
            need not start at 0.
        data: UTF-8, `[bytes]`.
        seed: The slot's.

    Returns:
        Keys `[n]`.

    Raises:
        ValueError: An array has another dtype or shape or is not contiguous,
            or the offsets do not ascend within the data.

    >>> data = np.frombuffer("añb".encode(), dtype=np.uint8)
    >>> keys = hash_text(np.array([0, 1, 3, 4], dtype=np.int32), data, slot_seed("city"))
    >>> [hex(key) for key in keys]
    ['0xf9a8e544171c86d1', '0x9a264a9b038ff59f', '0xd452c82f0f1a9993']
    """
    return _native.hash_text(offsets, data, seed)


def hash_integers(values: NDArray[np.int64] | NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Returns the keys of integers `[n]`, equal to those of their decimal text.

    Raises:
        ValueError: `values` is not a contiguous int64 or uint64 array `[n]`.

    >>> seven = np.frombuffer(b"-7", dtype=np.uint8)
    >>> keys = hash_text(np.array([0, 2], dtype=np.int32), seven, 1)
    >>> bool((hash_integers(np.array([-7]), 1) == keys).all())
    True
    """
    return _native.hash_integers(values, seed)


def crc32c(data: bytes | bytearray | memoryview | NDArray[Any], crc: int = 0) -> int:
    """Returns the CRC-32C (Castagnoli) of bytes.

    By the CPU's instruction where it has one: 1 MB takes 0.15 ms.

    Args:
        data: Contiguous, of any type that exposes its bytes.
        crc: The checksum of what comes before `data`, to go on from it.

    Raises:
        TypeError: `data` exposes no bytes, or `crc` is not of 32 bits.
        BufferError, ValueError: It is not contiguous, as the type has it.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    True
    """
    return _native.crc32c(data, crc)
