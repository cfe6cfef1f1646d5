"""What workers tell one another at a meeting: plain values and arrays, as bytes and back.

Never a pickle: what comes over a socket builds no objects but these.
"""

import io
import json
from typing import Any

import numpy as np

__all__ = ["decode_message", "encode_message"]

_ARRAY = "__array__"  # the key that stands for an array; no other dict may have it


def encode_message(value: Any) -> bytes:  # what JSON has, and arrays
    """Returns a value as bytes: None, bool, numbers, text, lists, dicts by text, numpy arrays.

    Tuples come back as lists. Arrays keep dtype and shape.

    Raises:
        TypeError: It holds something else.

    >>> decode_message(encode_message({"loss": 0.5, "labels": [np.float32([0, 1])]}))
    {'loss': 0.5, 'labels': [array([0., 1.], dtype=float32)]}
    """
    arrays = io.BytesIO()

    def stand_in(found: Any) -> Any:  # of `json`, for what it does not know
        if isinstance(found, np.generic):
            return found.item()
        if isinstance(found, np.ndarray):
            start = arrays.tell()
            # numpy gives it no types
            np.lib.format.write_array(arrays, found, allow_pickle=False)  # type: ignore[no-untyped-call]
            return {_ARRAY: start}
        raise TypeError(f"a message is of plain values and arrays, got {type(found).__name__}")

    text = json.dumps(value, default=stand_in).encode()
    return len(text).to_bytes(8, "little") + text + arrays.getvalue()


def decode_message(data: bytes) -> Any:  # as it was encoded
    """Returns the value that `encode_message` was given."""
    size = 8 + int.from_bytes(data[:8], "little")
    arrays = io.BytesIO(data[size:])

    def array_of(found: dict[str, Any]) -> Any:  # a dict, or the array that it stands for
        if _ARRAY not in found:
            return found
        arrays.seek(found[_ARRAY])
        return np.lib.format.read_array(arrays, allow_pickle=False)  # type: ignore[no-untyped-call]

    return json.loads(data[8:size], object_hook=array_of)
