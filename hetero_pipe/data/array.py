"""Arrays that start at a multiple of 64 bytes: an unaligned one changes Paddle's matmul by bits."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["ALIGNMENT", "aligned", "aligned_empty"]

ALIGNMENT = 64
"""Bytes. The width of an AVX-512 register and of a cache line."""


# The dtype is a value here, so the element type cannot be named.
def aligned_empty(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Returns a new C-ordered array, not set, whose first byte is at a multiple of 64.

    >>> aligned_empty((3, 5), np.float32).ctypes.data % 64
    0
    """
    kind = np.dtype(dtype)
    dims = (shape,) if isinstance(shape, int) else shape
    size = kind.itemsize * int(np.prod(dims, dtype=np.int64))
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(kind).reshape(dims)


def aligned(array: NDArray[Any]) -> NDArray[Any]:  # as above
    """Returns `array` itself where it is C-ordered and aligned, else a copy that is."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy
