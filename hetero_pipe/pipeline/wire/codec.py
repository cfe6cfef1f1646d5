"""Float arrays to messages and back, in the type that the plan's wire has."""

import sys

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data import Cut, aligned_empty
from hetero_pipe.pipeline.wire import stage_pb2

__all__ = [
    "bfloat16_from_float32",
    "floats_from_bytes",
    "read_cut",
    "read_tensor",
    "write_cut",
    "write_tensor",
]

assert sys.byteorder == "little", "arrays travel as they lie in memory"

_WIRES = {
    "float32": stage_pb2.FLOAT32,
    "float16": stage_pb2.FLOAT16,
    "bfloat16": stage_pb2.BFLOAT16,
}

# Largest float16 is 65504, just below 2^16.
FLOAT16_EXPONENT = 15

# By which a power of two and its inverse are normal float32.
MAX_EXPONENT = 126


def write_tensor(message: stage_pb2.Tensor, array: NDArray[np.float32], wire: str) -> None:
    """Writes an array into an empty message, in one of `plan.WIRES`.

    NaN and infinity stay what they are.
    """
    message.shape.extend(array.shape)
    message.wire = _WIRES[wire]
    if wire == "float32":
        message.data = array.tobytes()
    elif wire == "bfloat16":
        message.data = bfloat16_from_float32(array).tobytes()
    else:
        message.exponent = _exponent_of(array)
        scaled = array * np.float32(2.0**message.exponent)
        message.data = scaled.astype(np.float16).tobytes()


def read_tensor(message: stage_pb2.Tensor) -> NDArray[np.float32]:
    """Returns the array of a message; it starts at a multiple of 64 bytes.

    Raises:
        ValueError: The data do not fill the shape.
    """
    if message.wire == stage_pb2.FLOAT32:
        return floats_from_bytes(message.data, tuple(message.shape))
    array: NDArray[np.float32] = aligned_empty(tuple(message.shape), np.float32)
    if message.wire == stage_pb2.BFLOAT16:
        bits = np.frombuffer(message.data, np.uint16).reshape(array.shape)
        np.left_shift(bits, 16, out=array.view(np.uint32), dtype=np.uint32)
    else:
        halves = np.frombuffer(message.data, np.float16).reshape(array.shape)
        np.multiply(halves, np.float32(2.0**-message.exponent), out=array, dtype=np.float32)
    return array


def bfloat16_from_float32(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Returns the bits of the nearest bfloat16, of two the even one, in the array's shape.

    It is the upper half of a float32. Adding half of its last place, less one
    bit where that place is even, carries into the upper half what must be rounded
    up. A NaN might carry into infinity or zero, so it becomes the quiet one.

    >>> array = np.array([1.0, 1.00390625, 1.01171875, -np.inf], np.float32)
    >>> [hex(bits) for bits in bfloat16_from_float32(array).tolist()]
    ['0x3f80', '0x3f80', '0x3f82', '0xff80']
    """
    bits = np.ascontiguousarray(array).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    rounded[np.isnan(array)] = 0x7FC0
    return rounded


def _exponent_of(array: NDArray[np.float32]) -> int:
    """Returns by which power of two the largest finite value comes just below 2^15."""
    sizes = np.abs(array)
    largest = float(np.max(sizes, initial=0.0))
    if not np.isfinite(largest):  # seldom: this takes longer
        largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
    exponent = FLOAT16_EXPONENT - int(np.frexp(largest)[1]) if largest else 0
    return max(-MAX_EXPONENT, min(exponent, MAX_EXPONENT))


def floats_from_bytes(data: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns float32 data as an array that starts at a multiple of 64 bytes.

    Raises:
        ValueError: The data do not fill the shape.
    """
    array: NDArray[np.float32] = aligned_empty(shape, np.float32)
    array[...] = np.frombuffer(data, np.float32).reshape(shape)
    return array


def write_cut(message: stage_pb2.Cut, cut: Cut, wire: str) -> None:
    """Writes a cut into a message that has its name, its values in one of `plan.WIRES`."""
    write_tensor(message.values, cut.values, wire)
    if cut.offsets is not None:
        message.offsets = cut.offsets.tobytes()


def read_cut(message: stage_pb2.Cut) -> Cut:
    """Returns the cut of a message.

    Raises:
        ValueError: The data do not fill the shape.
    """
    offsets = np.frombuffer(message.offsets, np.int64) if message.offsets else None
    return Cut(read_tensor(message.values), offsets)
