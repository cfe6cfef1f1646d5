"""Float arrays to messages and back, in the type that the plan's wire has."""

import sys

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data import Cut, aligned_empty
from hetero_pipe.pipeline.wire import stage_pb2

__all__ = [
    "bfloat16_from_float32",
    "cut_from_message",
    "cut_to_message",
    "floats_from_bytes",
    "tensor_from_message",
    "tensor_to_message",
]

assert sys.byteorder == "little", "arrays travel as they lie in memory"

# Largest float16 is 65504, just below 2^16.
FLOAT16_EXPONENT = 15


def tensor_to_message(array: NDArray[np.float32], wire: str) -> stage_pb2.Tensor:
    """Returns the message of an array, in one of `plan.WIRES`.

    NaN and infinity stay what they are.
    """
    message = stage_pb2.Tensor(shape=array.shape, wire=wire.upper())
    if wire == "float32":
        message.data = array.tobytes()
    elif wire == "bfloat16":
        message.data = bfloat16_from_float32(array).tobytes()
    else:
        message.exponent = _exponent_of(array)
        message.data = np.ldexp(array, message.exponent).astype(np.float16).tobytes()
    return message


def tensor_from_message(message: stage_pb2.Tensor) -> NDArray[np.float32]:
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
        np.ldexp(halves.astype(np.float32), -message.exponent, out=array)
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
    largest = float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))
    return FLOAT16_EXPONENT - int(np.frexp(largest)[1]) if largest else 0


def floats_from_bytes(data: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns float32 data as an array that starts at a multiple of 64 bytes.

    Raises:
        ValueError: The data do not fill the shape.
    """
    array: NDArray[np.float32] = aligned_empty(shape, np.float32)
    array[...] = np.frombuffer(data, np.float32).reshape(shape)
    return array


def cut_to_message(name: str, cut: Cut, wire: str) -> stage_pb2.Cut:
    """Returns the message of a cut, its values in one of `plan.WIRES`."""
    message = stage_pb2.Cut(name=name, values=tensor_to_message(cut.values, wire))
    if cut.offsets is not None:
        message.offsets = cut.offsets.tobytes()
    return message


def cut_from_message(message: stage_pb2.Cut) -> Cut:
    """Returns the cut of a message.

    Raises:
        ValueError: The data do not fill the shape.
    """
    offsets = np.frombuffer(message.offsets, np.int64) if message.offsets else None
    return Cut(tensor_from_message(message.values), offsets)
