"""Statistics of a sample, held to sets and counters that are filled one key after another."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.data import Bags, Batch, DataStatistics, measure_statistics, synthetic_criteo
from hetero_pipe.errors import ConfigError
from ps_server.keys import bucket_of
from ps_server.route import Route, ServerRef

TABLES = {"both": ("a", "b"), "one": ("b",)}


def batch_of(samples):
    """From a list of `{slot: [key, ...]}`."""
    bags = {
        slot: Bags.of_lengths(
            np.array([key for sample in samples for key in sample[slot]], np.uint64),
            np.array([len(sample[slot]) for sample in samples], np.int64),
        ).compact()
        for slot in ("a", "b")
    }
    return Batch(bags, np.zeros((len(samples), 0), np.float32))


def keys_of(samples, slots):
    return [key for sample in samples for slot in slots for key in sample[slot]]


SAMPLE = st.fixed_dictionaries(
    {"a": st.lists(st.integers(0, 9), min_size=1, max_size=1), "b": st.lists(st.integers(0, 20))}
)
SAMPLES = st.lists(SAMPLE, min_size=1, max_size=24)


@settings(deadline=None)
@given(SAMPLES, st.integers(1, 8))
def test_what_is_counted_is_what_sets_count(samples, size):
    batches = [batch_of(samples[i : i + size]) for i in range(0, len(samples), size)]
    found = measure_statistics(batches, TABLES)
    assert found.num_samples == len(samples)
    for slot, mean in found.keys.items():
        assert mean == len(keys_of(samples, [slot])) / len(samples)
    for name, table in found.tables.items():
        assert table.keys == len(keys_of(samples, TABLES[name])) / len(samples)
        check_distinct(table, samples, TABLES[name])
        check_hottest(table, samples, TABLES[name])


def check_distinct(table, samples, slots):
    least = 0.0
    number = len(samples)
    sizes = {number >> i for i in range(number.bit_length())}
    for size in sorted(sizes):
        whole = [samples[i : i + size] for i in range(0, number - size + 1, size)]
        mean = sum(len(set(keys_of(each, slots))) for each in whole) / len(whole)
        least = max(least, mean)
        assert table.distinct_keys(size) == pytest.approx(min(least, table.keys * size))
    assert set(x for x, _ in table.distinct.points) <= sizes


def check_hottest(table, samples, slots):
    middle = len(samples) // 2
    earlier = Counter(keys_of(samples[:middle], slots))
    later = keys_of(samples[middle:], slots)
    ranked = sorted(earlier, key=lambda key: (-earlier[key], key))
    for num_rows, share in table.hottest.points:
        hot = set(ranked[: int(num_rows)])
        assert share == pytest.approx(sum(key in hot for key in later) / len(later))
    assert table.hottest.last in (0, len(earlier))
    assert table.hottest_share(1000) == table.hottest_share(len(earlier))


@settings(deadline=None)
@given(SAMPLES, st.lists(st.floats(0.1, 1e6), min_size=2, max_size=2))
def test_larger_batches_have_more_distinct_keys_but_no_more_than_keys(samples, sizes):
    less, more = sorted(sizes)
    for table in measure_statistics([batch_of(samples)], TABLES).tables.values():
        assert table.distinct_keys(less) <= table.distinct_keys(more) <= table.keys * more
        assert 0 < table.distinct_share(more) <= 1
        for num_servers in (1, 3, 64, 1000):
            assert 1 / num_servers <= table.largest_share(num_servers) <= 1


def test_the_busiest_server_is_that_of_the_route():
    rng = np.random.default_rng(0)
    samples = [{"a": [key], "b": []} for key in rng.integers(0, 5000, 600).tolist()]
    found = measure_statistics([batch_of(samples)], {"t": ("a",)}, batch_size=200)
    for num_servers in (1, 2, 8):
        route = Route(tuple(ServerRef(f"id{i}", f"host:{i}") for i in range(num_servers)))
        shares = []
        for start in range(0, 600, 200):
            keys = set(keys_of(samples[start : start + 200], ["a"]))
            owners = [route.owners[bucket_of(np.array([k], np.uint64))[0]] for k in keys]
            shares.append(max(Counter(owners).values()) / len(keys))
        assert found.tables["t"].largest_share(num_servers) == pytest.approx(np.mean(shares))


def test_beyond_the_sample_is_near_what_more_samples_have():
    reader = synthetic_criteo(num_samples=32768, batch_size=4096, seed=1, scale=0.1)
    tables = {"t": reader.slots}
    few = measure_statistics(reader, tables, max_samples=8192)
    many = measure_statistics(reader, tables)
    assert (few.num_samples, many.num_samples) == (8192, 32768)
    found, expected = (each.tables["t"].distinct_keys(32768) for each in (few, many))
    assert found == pytest.approx(expected, rel=0.1)


def test_to_json_and_back():
    samples = [{"a": [i % 3], "b": [i, i + 1][: i % 3]} for i in range(7)]
    found = measure_statistics([batch_of(samples)], TABLES)
    assert DataStatistics.from_json(found.to_json()) == found


@pytest.mark.parametrize("change", [{"num_samples": None}, {"tables": {"t": {"keys": 1.0}}}])
def test_what_is_no_statistics_is_refused(change):
    fields = json.loads(measure_statistics([batch_of([{"a": [1], "b": []}])], TABLES).to_json())
    with pytest.raises(ConfigError, match=r"JSON as DataStatistics\.to_json writes it"):
        DataStatistics.from_json(json.dumps({**fields, **change}))
    with pytest.raises(ConfigError, match=r"JSON as DataStatistics\.to_json writes it"):
        DataStatistics.from_json("[]")


def test_a_table_without_a_key_has_none():
    table = measure_statistics([batch_of([{"a": [1], "b": []}] * 3)], TABLES).tables["one"]
    assert (table.keys, table.distinct_keys(10), table.distinct_share(10)) == (0.0, 0.0, 1.0)
    assert (table.hottest_share(5), table.largest_share(4)) == (0.0, 0.25)


@pytest.mark.parametrize(
    ("batches", "tables", "numbers", "said"),
    [
        ([], TABLES, {}, "a table with a slot and a sample"),
        ([batch_of([{"a": [1], "b": []}])], {}, {}, "a table with a slot and a sample"),
        ([batch_of([{"a": [1], "b": []}])], {"t": ("c",)}, {}, "got none of c; they have a, b"),
        ([], TABLES, {"max_samples": 0}, "max_samples=0"),
        ([], TABLES, {"batch_size": 0}, "batch_size=0"),
    ],
)
def test_what_cannot_be_measured_is_refused(batches, tables, numbers, said):
    with pytest.raises(ConfigError, match=said):
        measure_statistics(batches, tables, **numbers)
