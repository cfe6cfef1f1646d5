"""Lookup: occurrences of keys, and where the row of each lies, held to loops over samples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.data import Bags, Batch, Lookup, occurrences


def batch_of(bags):
    """From `{slot: [[key, ...], ...]}`; without offsets where each bag has one key."""
    made = {
        slot: Bags.of_lengths(
            np.array([key for bag in lists for key in bag], np.uint64),
            np.array([len(bag) for bag in lists], np.int64),
        ).compact()
        for slot, lists in bags.items()
    }
    return Batch(bags=made, dense=np.zeros((len(next(iter(bags.values()))), 0), np.float32))


def look_up(bags, slots):
    """The lookup, and the distinct keys that its rows are of."""
    batch = batch_of(bags)
    keys, inverse = np.unique(occurrences(batch, slots), return_inverse=True)
    return Lookup.of(batch, slots, inverse.reshape(-1)), keys


def keys_of(lookup, keys, slot):
    """What the lookup says that the bags of a slot are."""
    if slot in lookup.single_slots:
        column = lookup.single[:, lookup.single_slots.index(slot)]
        return [[key] for key in keys[column].tolist()]
    bag = lookup.bags[slot]
    found = [[] for _ in range(lookup.size)]
    for row, sample in zip(bag.rows.tolist(), bag.samples.tolist(), strict=True):
        found[sample].append(int(keys[row]))
    return found


@st.composite
def batches(draw):
    size = draw(st.integers(1, 6))
    key = st.integers(0, 5) | st.integers(2**64 - 3, 2**64 - 1)
    bag = st.lists(key, min_size=1, max_size=1) | st.lists(key, max_size=3)
    one = st.lists(st.lists(key, min_size=1, max_size=1), min_size=size, max_size=size)
    names = draw(st.permutations("abcd"))[: draw(st.integers(1, 4))]
    many = st.lists(bag, min_size=size, max_size=size)
    return {name: draw(one | many) for name in names}, tuple(draw(st.permutations(names)))


@settings(deadline=None)
@given(batches())
def test_every_key_is_found_again_in_its_slot_and_sample(case):
    bags, slots = case
    lookup, keys = look_up(bags, slots)
    assert lookup.size == len(bags[slots[0]])
    assert lookup.slots == slots
    assert sorted([*lookup.single_slots, *lookup.bags]) == sorted(slots)
    for slot in slots:
        assert keys_of(lookup, keys, slot) == bags[slot]
        is_single = all(len(bag) == 1 for bag in bags[slot])
        assert (slot in lookup.single_slots) == is_single


@settings(deadline=None)
@given(batches())
def test_occurrences_are_the_keys_of_the_slots_and_no_others(case):
    bags, slots = case
    for wanted in (slots, slots[:1], slots[1:] or slots):
        found = occurrences(batch_of(bags), wanted)
        assert found.dtype == np.uint64
        assert found.flags.c_contiguous
        expected = [key for slot in wanted for bag in bags[slot] for key in bag]
        assert sorted(found.tolist()) == sorted(expected)


@settings(deadline=None)
@given(batches())
def test_what_paddle_needs_holds_of_every_bag(case):
    bags, slots = case
    lookup, _ = look_up(bags, slots)
    assert lookup.single.dtype == np.int64
    for slot, bag in lookup.bags.items():
        assert bag.rows.dtype == bag.samples.dtype == np.int64
        assert (np.diff(bag.samples) >= 0).all()
        assert bag.counts.dtype == np.float32
        assert bag.counts.ravel().tolist() == [max(1, len(found)) for found in bags[slot]]


@settings(deadline=None)
@given(batches())
def test_first_use_is_a_slot_and_sample_that_have_the_key(case):
    bags, slots = case
    lookup, keys = look_up(bags, slots)
    for row, key in enumerate(keys.tolist()):
        slot, sample = lookup.first_use(row)
        assert key in bags[slot][sample]
        assert isinstance(sample, int)


def test_slots_with_one_key_come_sample_by_sample_and_the_others_after_them():
    bags = {"tags": [[9, 8], []], "user": [[1], [2]], "item": [[3], [4]]}
    found = occurrences(batch_of(bags), ("tags", "user", "item"))
    assert found.tolist() == [1, 3, 2, 4, 9, 8]


def test_one_slot_of_single_keys_is_not_copied_needlessly():
    batch = batch_of({"tags": [[9, 8], []]})
    assert np.shares_memory(occurrences(batch, ("tags",)), batch.bags["tags"].keys)


def test_a_batch_of_empty_bags_has_no_occurrences():
    lookup, keys = look_up({"a": [[], []]}, ("a",))
    assert keys.tolist() == []
    assert lookup.bags["a"].rows.tolist() == []
    assert lookup.bags["a"].counts.tolist() == [[1], [1]]
    assert lookup.single.shape == (2, 0)


def test_a_row_that_no_slot_has_is_our_mistake():
    lookup, _ = look_up({"a": [[1], [2]]}, ("a",))
    with pytest.raises(AssertionError, match="row 5 was pulled for no slot"):
        lookup.first_use(5)
