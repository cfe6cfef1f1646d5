"""Arrow columns of every kind give the keys of their values' text."""

import datetime
from itertools import islice

import pyarrow as pa
import pytest
import xxhash

from hetero_pipe.data.hashing import can_be_slot, to_bags

needs_string_view = pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < 20, reason="this pyarrow does not cast string_view"
)

DAY = datetime.date(2013, 1, 31)


def key(text, slot="s"):
    return xxhash.xxh64_intdigest(text.encode(), xxhash.xxh64_intdigest(slot.encode(), 0))


def keys_of(column):
    bags = to_bags(column, slot="s", separator=None)
    assert bags.offsets is None
    return bags.keys.tolist()


def bags_of(column, separator=None):
    bags = to_bags(column, slot="s", separator=separator)
    keys = iter(bags.keys.tolist())
    return [list(islice(keys, length)) for length in bags.lengths()]


def type_of(value):
    return str(getattr(value, "type", "texts"))


SINGLE = [
    (pa.array(["a", "", None, "é"]), ["a", "", "", "é"]),
    (pa.array(["a", None], pa.large_string()), ["a", ""]),
    pytest.param(pa.array(["a", None], pa.string_view()), ["a", ""], marks=needs_string_view),
    (pa.array([b"a", None], pa.binary()), ["a", ""]),
    (pa.array([b"a", None], pa.large_binary()), ["a", ""]),
    (pa.array([7, -7, None, 0], pa.int8()), ["7", "-7", "", "0"]),
    (pa.array([2**31 - 1, -(2**31)], pa.int32()), [str(2**31 - 1), str(-(2**31))]),
    (pa.array([2**63 - 1, -(2**63), None], pa.int64()), [str(2**63 - 1), str(-(2**63)), ""]),
    (pa.array([2**64 - 1, None, 0], pa.uint64()), [str(2**64 - 1), "", "0"]),
    (pa.array([255], pa.uint8()), ["255"]),
    (pa.array([True, False, None]), ["true", "false", ""]),
    (pa.array([DAY, None], pa.date32()), ["2013-01-31", ""]),
    (pa.array([DAY, None], pa.date64()), ["2013-01-31", ""]),
    (pa.nulls(2), ["", ""]),
    (pa.array(["a", None, "b", "a"]).dictionary_encode(), ["a", "", "b", "a"]),
    (pa.array([7, None, 8, 7]).dictionary_encode(), ["7", "", "8", "7"]),
    (pa.DictionaryArray.from_arrays([0, 1, 0], ["a", None]), ["a", "", "a"]),
    (pa.DictionaryArray.from_arrays([1], ["a", "b", "c"]), ["b"]),
    (pa.array([None, None], pa.dictionary(pa.int8(), pa.string())), ["", ""]),
    (pa.array([], pa.string()), []),
]


@pytest.mark.parametrize(("column", "texts"), SINGLE, ids=type_of)
def test_key_is_the_hash_of_the_text(column, texts):
    assert can_be_slot(column.type)
    assert keys_of(column) == [key(text) for text in texts]


@pytest.mark.parametrize(("column", "texts"), SINGLE, ids=type_of)
def test_a_sliced_column_gives_the_keys_of_its_slice(column, texts):
    assert keys_of(column.slice(1)) == [key(text) for text in texts[1:]]


MANY = [
    (pa.array([["a", "b"], [], None, ["", "c", None]]), [["a", "b"], [], [], ["c"]]),
    (pa.array([[1, 2], None, [None, 3]], pa.list_(pa.int16())), [["1", "2"], [], ["3"]]),
    (pa.array([["a"], None, ["b"]], pa.large_list(pa.string())), [["a"], [], ["b"]]),
    (pa.array([["a", "b"], None], pa.list_(pa.string(), 2)), [["a", "b"], []]),
    pytest.param(
        pa.array([["a", "", None]], pa.list_(pa.string_view())), [["a"]], marks=needs_string_view
    ),
    (pa.array([[True, None]], pa.list_(pa.bool_())), [["true"]]),
    (
        pa.array([["a", "b"], ["a"]], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
        [["a", "b"], ["a"]],
    ),
]


@pytest.mark.parametrize(("column", "texts"), MANY, ids=type_of)
def test_a_list_is_a_bag_without_null_and_empty_values(column, texts):
    assert can_be_slot(column.type)
    expected = [[key(text) for text in bag] for bag in texts]
    assert bags_of(column) == bags_of(column, separator="|") == expected
    assert bags_of(column.slice(1)) == expected[1:]


TEXTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", TEXTS, ids=str)
def test_separated_text_is_a_bag(kind):
    column = pa.array(["a|b", "", None, "c", "|d||"], kind)
    expected = [["a", "b"], [], [], ["c"], ["d"]]
    assert bags_of(column, separator="|") == [[key(text) for text in bag] for bag in expected]
    assert bags_of(column.slice(2, 2), separator="|") == [[], [key("c")]]


def test_with_a_separator_null_of_any_type_is_an_empty_bag():
    for column in (pa.array([7, None]), pa.array([7, None]).dictionary_encode()):
        assert bags_of(column, separator="|") == [[key("7")], []]
    assert bags_of(pa.array([True, None]), separator="|") == [[key("true")], []]
    assert bags_of(pa.nulls(2), separator="|") == [[], []]


def test_a_separator_is_text_not_a_pattern():
    assert bags_of(pa.array(["a.b", "a||b"]), separator="||")[1] == [key("a"), key("b")]
    assert bags_of(pa.array(["ab", "a.b"]), separator=".") == [[key("ab")], [key("a"), key("b")]]


def test_equal_values_of_two_slots_have_different_keys():
    column = pa.array(["7"])
    assert to_bags(column, slot="t", separator=None).keys.tolist() == [key("7", slot="t")]
    assert key("7", slot="t") != key("7", slot="s")


@pytest.mark.parametrize(
    "kind",
    [
        pa.float32(),
        pa.float64(),
        pa.decimal128(5, 2),
        pa.timestamp("s"),
        pa.time32("s"),
        pa.binary(4),
        pa.struct({"a": pa.int32()}),
        pa.list_(pa.float64()),
        pa.list_(pa.list_(pa.string())),
        pa.dictionary(pa.int32(), pa.float64()),
    ],
    ids=str,
)
def test_values_of_several_spellings_cannot_be_a_slot(kind):
    assert not can_be_slot(kind)
