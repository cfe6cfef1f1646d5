from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.data import Bags, Batch, aligned, aligned_empty
from hetero_pipe.errors import ConfigError


def bags_of(lists):
    lengths = np.array([len(keys) for keys in lists], np.int64)
    return Bags.of_lengths(np.array([key for keys in lists for key in keys], np.uint64), lengths)


def lists_of(bags):
    ends = np.arange(bags.size + 1) if bags.offsets is None else bags.offsets
    return [bags.keys[start:stop].tolist() for start, stop in pairwise(ends)]


def batch_of(lists):
    size = len(lists)
    return Batch(
        bags={"one": Bags(np.arange(size, dtype=np.uint64)), "many": bags_of(lists)},
        dense=np.arange(3 * size, dtype=np.float32).reshape(size, 3),
        label=np.arange(size, dtype=np.float32),
        dense_names=("a", "b", "c"),
    )


def rows_of(batch):
    columns = [lists_of(bags) for bags in batch.bags.values()]
    return list(zip(*columns, batch.dense.tolist(), batch.label.tolist(), strict=True))


LISTS = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=3), max_size=12)


@pytest.mark.parametrize("shape", [1, 7, (3, 5), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_aligned_arrays_start_at_a_multiple_of_64(shape, dtype):
    for _ in range(5):
        array = aligned_empty(shape, dtype)
        assert array.ctypes.data % 64 == 0
        assert array.dtype == dtype
        assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_empty_arrays_keep_their_shape():
    assert aligned_empty((0, 4), np.float32).shape == (0, 4)
    assert aligned_empty((4, 0), np.float32).shape == (4, 0)
    assert aligned(np.empty((0, 4), np.float32)).shape == (0, 4)


def test_only_unaligned_arrays_are_copied():
    array = aligned_empty((8, 2), np.float32)
    array[:] = 1
    assert aligned(array) is array
    for other in (array[1:], array[:, :1], array.T):
        copy = aligned(other)
        assert copy.ctypes.data % 64 == 0
        assert copy.flags.c_contiguous
        np.testing.assert_array_equal(copy, other)


def test_a_batch_aligns_what_it_is_given():
    numbers = aligned_empty(101, np.float32)
    numbers[:] = np.arange(101)
    batch = Batch({}, dense=numbers[1:].reshape(50, 2), label=numbers[1:51], dense_names=("a", "b"))
    assert batch.dense.ctypes.data % 64 == 0
    assert batch.label.ctypes.data % 64 == 0
    np.testing.assert_array_equal(batch.dense[:, 0], np.arange(1, 101, 2))
    np.testing.assert_array_equal(batch.label, np.arange(1, 51))


@settings(deadline=None)
@given(LISTS, st.data())
def test_taking_rows_takes_their_bags(lists, data):
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1)) if lists else st.just([]))
    batch = batch_of(lists)
    taken = batch.take(np.array(rows, np.int64))
    assert rows_of(taken) == [rows_of(batch)[row] for row in rows]
    if rows:  # an empty array has no first byte
        assert taken.dense.ctypes.data % 64 == 0
        assert taken.label.ctypes.data % 64 == 0


@settings(deadline=None)
@given(LISTS, st.data())
def test_slices_concatenate_to_the_whole(lists, data):
    batch = batch_of(lists)
    cut = data.draw(st.integers(0, len(lists)))
    left, right = batch.slice(0, cut), batch.slice(cut, len(lists))
    assert left.size == cut
    assert rows_of(left) == rows_of(batch)[:cut]
    assert rows_of(Batch.concat([left, right])) == rows_of(batch)


@settings(deadline=None)
@given(LISTS)
def test_compact_drops_offsets_only_where_each_bag_has_one_key(lists):
    bags = bags_of(lists)
    compact = bags.compact()
    assert lists_of(compact) == lists
    assert (compact.offsets is None) == all(len(keys) == 1 for keys in lists)


def test_bags_with_and_without_offsets_concatenate():
    whole = Bags.concat([Bags(np.array([7], np.uint64)), bags_of([[], [1, 2]])])
    assert lists_of(whole) == [[7], [], [1, 2]]


def test_wrong_bags_are_refused():
    keys = np.arange(3, dtype=np.uint64)
    with pytest.raises(ConfigError, match=r"keys are uint64 \[n\], got int64 \(3,\)"):
        Bags(keys.astype(np.int64))
    with pytest.raises(ConfigError, match=r"offsets are int64 \[batch \+ 1\], got int32"):
        Bags(keys, np.array([0, 3], np.int32))
    with pytest.raises(ConfigError, match="from 0 to the number of keys, 3, got 0 to 2"):
        Bags(keys, np.array([0, 2]))


def test_wrong_batches_are_refused():
    dense = np.zeros((2, 1), np.float32)
    with pytest.raises(ConfigError, match="slot 's' has a bag for each sample, got 3 bags and 2"):
        Batch({"s": Bags(np.zeros(3, np.uint64))}, dense, dense_names=("a",))
    with pytest.raises(ConfigError, match=r"dense is float32 .* got float64 \(2, 1\)"):
        Batch({}, dense.astype(np.float64), dense_names=("a",))
    with pytest.raises(ConfigError, match=r"a name for each column, got 1 columns"):
        Batch({}, dense)
    with pytest.raises(ConfigError, match=r"label is float32 \[2\], got float32 \(3,\)"):
        Batch({}, dense, label=np.zeros(3, np.float32), dense_names=("a",))
