"""Arrow columns -> bags of keys.

A key is the hash of a value's text, so a value has one key however a file stores
it: as text, as a number, in a dictionary or in a list.
"""

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hetero_pipe.data.batch import Bags, Keys
from ps_server.keys import hash_integers, hash_text, slot_seed

__all__ = ["can_be_slot", "to_bags"]

# pyarrow has no types of its own.
Array: TypeAlias = pa.Array
Type: TypeAlias = pa.DataType


def can_be_slot(kind: Type) -> bool:
    """Whether every value of a column has one spelling, or is a list of such values."""
    return _can_be_key(kind.value_type if _is_list(kind) else kind)


def _can_be_key(kind: Type) -> bool:
    if pa.types.is_dictionary(kind):
        return _can_be_key(kind.value_type)
    claims = (
        _is_text,
        pa.types.is_string_view,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_date,
        pa.types.is_null,
    )
    return any(claim(kind) for claim in claims)


def _is_list(kind: Type) -> bool:
    claims = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(claim(kind) for claim in claims)


def _is_text(kind: Type) -> bool:
    # Old writers of Parquet leave text unmarked, as binary.
    claims = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
    )
    return any(claim(kind) for claim in claims)


def to_bags(column: Array, *, slot: str, separator: str | None) -> Bags:
    """Returns the bags of one slot.

    A list is a bag, and so is text where `separator` is given: null and empty
    values are left out of it. Elsewhere a bag has one key, and null is the empty
    text.

    Args:
        column: Of a type that `can_be_slot`, `[n]`.
        slot: The name that keeps equal values of two slots apart.
        separator: What stands between the values of one text, or None.
    """
    seed = slot_seed(slot)
    if _is_list(column.type):
        lengths = pc.fill_null(pc.list_value_length(column), 0)
        return _bags_of_present(_keys(column.flatten(), seed), _int64(lengths), seed)
    if separator is None:
        return Bags(_keys(column, seed))
    if not _holds(column, separator):
        return _bags_of_present(_keys(column, seed), np.ones(len(column), np.int64), seed)
    pieces = pc.split_pattern(_filled(_plain(column)), separator)
    lengths = pc.list_value_length(pieces)
    return _bags_of_present(_keys(pieces.flatten(), seed), _int64(lengths), seed)


def _bags_of_present(keys: Keys, lengths: NDArray[np.int64], seed: int) -> Bags:
    """Returns bags of the given lengths, less the key of the empty text."""
    is_present = keys != _empty_key(seed)
    if not is_present.all():
        bag_of_key = np.repeat(np.arange(len(lengths)), lengths)[is_present]
        lengths = np.bincount(bag_of_key, minlength=len(lengths)).astype(np.int64, copy=False)
        keys = keys[is_present]
    return Bags.of_lengths(keys, lengths).compact()


def _holds(column: Array, separator: str) -> bool:
    """Whether a text of the column holds the separator: a search is far cheaper than a split."""
    if pa.types.is_dictionary(column.type):
        return _holds(column.dictionary, separator)
    if pa.types.is_integer(column.type):
        return False
    return pc.any(pc.match_substring(_plain(column), separator)).as_py() is True


def _keys(values: Array, seed: int) -> Keys:
    """Returns the key of each value, uint64 `[n]`: the hash of its text; null is the empty text."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        if len(values.dictionary) > len(values) or values.dictionary.null_count:
            return _keys(values.dictionary_decode(), seed)
        keys = _keys(values.dictionary, seed)
        indices = _int64(_filled(values.indices))
        found = keys[indices] if len(keys) else np.zeros(len(values), np.uint64)
        return _with_nulls(found, values.indices, seed)
    if pa.types.is_integer(kind):
        width = np.uint64 if pa.types.is_unsigned_integer(kind) else np.int64
        numbers = _filled(values).to_numpy().astype(width, copy=False)
        return _with_nulls(hash_integers(numbers, seed), values, seed)
    text = _filled(_plain(values))
    is_large = pa.types.is_large_string(text.type) or pa.types.is_large_binary(text.type)
    _, ends, data = text.buffers()
    if len(text) == 0 or ends is None:
        return np.empty(0, np.uint64)
    offsets: NDArray[np.int32] | NDArray[np.int64]
    offsets = np.frombuffer(ends, np.int64) if is_large else np.frombuffer(ends, np.int32)
    offsets = offsets[text.offset : text.offset + len(text) + 1]
    letters = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return hash_text(offsets, letters, seed)


def _with_nulls(keys: Keys, values: Array, seed: int) -> Keys:
    if values.null_count:
        keys[values.is_null().to_numpy(zero_copy_only=False)] = _empty_key(seed)
    return keys


def _empty_key(seed: int) -> np.uint64:
    key: np.uint64 = hash_text(np.zeros(2, np.int64), np.empty(0, np.uint8), seed)[0]
    return key


def _plain(values: Array) -> Array:
    """Returns the values as integers or as text."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _plain(values.dictionary_decode())
    return values if pa.types.is_integer(kind) or _is_text(kind) else pc.cast(values, pa.string())


def _filled(values: Array) -> Array:
    """Returns the values with the empty text, or 0, for null."""
    if values.null_count == 0:
        return values
    return values.fill_null("" if _is_text(values.type) else 0)


def _int64(values: Array) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers
