"""What both formats promise: equal batches, order, shuffling, resuming and splitting."""

import itertools
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.data import Reader, read_csv, read_parquet
from hetero_pipe.errors import ConfigError

COLUMNS = {"slots": ["user", "city", "tags"], "dense": ["price", "age"], "multi_hot_separator": "|"}


def table_of(size, seed=0):
    rng = np.random.default_rng(seed)
    names = np.array(["a", "b", "", "NA", "é,\n'\"", "007"])
    tags = ["|".join(names[:2].repeat(2)[: rng.integers(0, 4)]) for _ in range(size)]
    return pa.table(
        {
            "price": pa.array(rng.normal(size=size) * 10.0 ** rng.integers(-9, 9, size)),
            "unused": pa.array(np.arange(size)),
            "city": pa.array(names[rng.integers(0, len(names), size)]),
            "tags": pa.array(tags),
            "user": pa.array(rng.integers(-(10**6), 10**18, size), mask=rng.random(size) < 0.2),
            "label": pa.array(rng.integers(0, 2, size), pa.int8()),
            "age": pa.array(rng.integers(0, 100, size), pa.int32(), mask=rng.random(size) < 0.2),
        }
    )


def write(table, folder):
    pa.csv.write_csv(table, folder / "t.csv")
    pq.write_table(table, folder / "t.parquet", row_group_size=max(1, table.num_rows // 3))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write(table_of(1000), folder)
    return folder


@pytest.fixture(params=["csv", "parquet"])
def read(request, folder):
    def read(**options):
        reader = {"csv": read_csv, "parquet": read_parquet}[request.param]
        return reader(folder / f"t.{request.param}", **{**COLUMNS, **options})

    return read


def bits(batch):
    """Everything of a batch, as bytes."""
    bags = {
        slot: (bags.keys.tobytes(), None if bags.offsets is None else bags.offsets.tobytes())
        for slot, bags in batch.bags.items()
    }
    label = None if batch.label is None else batch.label.tobytes()
    return batch.size, bags, batch.dense.tobytes(), label


def rows(batches):
    """The samples, each as one tuple."""
    found = []
    for batch in batches:
        columns = [
            [tuple(keys) for keys in np.split(bags.keys, np.cumsum(bags.lengths())[:-1])]
            for bags in batch.bags.values()
        ]
        dense = [row.tobytes() for row in batch.dense]
        found += zip(*columns, dense, batch.label.tolist(), strict=True)
    return found


def rows_of(reader, epoch=0):
    return rows(reader.batches(epoch))


def key(slot, text):
    return xxhash.xxh64_intdigest(text.encode(), xxhash.xxh64_intdigest(slot.encode(), 0))


@pytest.fixture
def parts(tmp_path):
    """Three files of each format, and others."""
    for i, name in enumerate(["b", "a", "c"]):
        (tmp_path / name).mkdir()
        write(table_of(10 + i, seed=i), tmp_path / name)
        (tmp_path / name / "t.txt").write_text("not a table")
    return tmp_path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_pattern_stands_for_its_files_by_name(parts, kind):
    reader = {"csv": read_csv, "parquet": read_parquet}[kind]
    expected = rows_of(reader([parts / name / f"t.{kind}" for name in "abc"], **COLUMNS))
    assert len(expected) == 33
    assert rows_of(reader(parts / "*" / f"t.{kind}", **COLUMNS)) == expected
    assert rows_of(reader(f"{parts}/[a-c]/*.{kind}", **COLUMNS)) == expected
    assert rows_of(reader(f"{parts}/**/t.{kind}", **COLUMNS)) == expected
    several = [f"{parts}/[ab]/*.{kind}", parts / "c" / f"t.{kind}"]
    assert rows_of(reader(several, **COLUMNS)) == expected
    with pytest.raises(ConfigError, match=r"no file matches .*/x\*\.csv .*; check the pattern"):
        reader(parts / "x*.csv", **COLUMNS)


def test_a_file_may_have_a_name_like_a_pattern(parts):
    path = (parts / "a" / "t.csv").rename(parts / "t[1].csv")
    assert rows_of(read_csv(path, **COLUMNS)) == rows(read_csv([str(path)], **COLUMNS))


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_parquet_is_read_however_it_is_packed(tmp_path, compression):
    table = table_of(1000)
    write(table, tmp_path)
    pq.write_table(table, tmp_path / "packed.parquet", compression=compression)
    found, expected = (
        rows_of(read_parquet(tmp_path / name, **COLUMNS))
        for name in ("packed.parquet", "t.parquet")
    )
    assert found == expected


def test_dense_values_may_be_logarithms(read):
    (raw,), (logs,) = read(batch_size=1000), read(batch_size=1000, log_dense=True)
    expected = np.sign(raw.dense) * np.log1p(np.abs(raw.dense).astype(np.float64))
    np.testing.assert_allclose(logs.dense, expected, rtol=1e-6)
    # A row is on the same side of a split either way.
    sides = [
        [batch.bags["user"].keys.tobytes() for batch in read(log_dense=log).split(0.3)[1]]
        for log in (False, True)
    ]
    assert sides[0] == sides[1]


def test_batches_are_what_the_table_says(read):
    table = table_of(1000)
    expected = [
        (
            (key("user", str(user)),) if user is not None else (),
            (key("city", city),) if city else (),
            tuple(key("tags", tag) for tag in tags.split("|") if tag),
            np.array([price, age or 0], np.float32).tobytes(),
            float(label),
        )
        for user, city, tags, price, age, label in zip(
            *(
                table[name].to_pylist()
                for name in ("user", "city", "tags", "price", "age", "label")
            ),
            strict=True,
        )
    ]
    assert rows_of(read(batch_size=300)) == expected


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 60), st.integers(1, 20), st.integers(0, 70), st.sampled_from([None, "|"]))
def test_csv_and_parquet_give_equal_bits(size, batch_size, shuffle, separator):
    options = {"batch_size": batch_size, "shuffle": shuffle, "multi_hot_separator": separator}
    with tempfile.TemporaryDirectory() as name:
        write(table_of(size + 1), Path(name))
        text = read_csv(Path(name, "t.csv"), **{**COLUMNS, **options})
        typed = read_parquet(Path(name, "t.parquet"), **{**COLUMNS, **options})
        assert [*map(bits, text.batches(0))] == [*map(bits, typed.batches(0))]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(0, 1200), st.integers(0, 3))
def test_batches_are_exact_and_a_permutation_of_the_rows(folder, batch_size, shuffle, epoch):
    reader = read_parquet(folder / "t.parquet", batch_size=batch_size, shuffle=shuffle, **COLUMNS)
    batches = [*reader.batches(epoch)]
    sizes = [batch.size for batch in batches]
    assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
    assert 1 <= sizes[-1] <= batch_size
    assert all(batch.dense.ctypes.data % 64 == 0 for batch in batches)
    assert all(batch.label.ctypes.data % 64 == 0 for batch in batches)
    assert sorted(rows(batches)) == sorted(rows_of(reader.in_order()))


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 300), st.sampled_from([0, 7, 400]), st.integers(0, 12))
def test_skip_drops_that_many_batches(folder, batch_size, shuffle, skip):
    reader = read_parquet(folder / "t.parquet", batch_size=batch_size, shuffle=shuffle, **COLUMNS)
    whole = [*map(bits, reader.batches(1))]
    assert [*map(bits, reader.batches(1, skip=skip))] == whole[skip:]


def test_a_row_moves_no_further_than_its_window(read):
    reader = read(shuffle=100, batch_size=64)
    ordered, shuffled = rows_of(reader.in_order()), rows_of(reader)
    assert shuffled != ordered
    for start in range(0, 1000, 100):
        window = slice(start, start + 100)
        assert sorted(shuffled[window]) == sorted(ordered[window])


def test_order_is_a_function_of_seed_and_epoch(read):
    reader, other = read(shuffle=500, seed=1), read(shuffle=500, seed=2)
    assert rows_of(reader, epoch=3) == rows_of(read(shuffle=500, seed=1), epoch=3)
    assert rows_of(reader, epoch=0) != rows_of(reader, epoch=1)
    assert rows_of(reader, epoch=0) != rows_of(other, epoch=0)


def test_without_shuffle_every_epoch_is_in_order(read):
    reader = read()
    assert rows_of(reader, epoch=0) == rows_of(reader, epoch=1)
    assert rows_of(read(shuffle=300).in_order()) == rows_of(reader)


def test_several_files_are_read_one_after_the_other(read, folder, tmp_path):
    write(table_of(10, seed=1), tmp_path)
    options = {**COLUMNS, "batch_size": 300}
    both = read_csv([folder / "t.csv", str(tmp_path / "t.csv")], **options)
    one, two = read_csv(folder / "t.csv", **options), read_csv(tmp_path / "t.csv", **options)
    assert rows_of(both) == rows_of(one) + rows_of(two)
    assert [batch.size for batch in both.batches(0)] == [300, 300, 300, 110]


def test_offsets_are_left_out_where_each_bag_has_one_key(read):
    batch = next(read(multi_hot_separator=None).batches(0))
    assert [bags.offsets for bags in batch.bags.values()] == [None] * 3
    batch = next(read(slots=["city", "label"], label=None).batches(0))
    assert batch.bags["city"].offsets is not None
    assert batch.bags["label"].offsets is None


def test_null_and_empty_of_one_value_have_the_key_of_the_empty_text(read):
    found = next(read(multi_hot_separator=None).batches(0)).bags["user"].keys
    is_null = table_of(1000)["user"].is_null().to_numpy()
    assert (found == key("user", "")).tolist() == is_null.tolist()


def test_a_reader_for_prediction_has_no_labels(read):
    assert all(batch.label is None for batch in read(label=None, batch_size=64).batches(0))
    assert sum(batch.size for batch in read(label=None, shuffle=128).batches(0)) == 1000


def test_slots_and_dense_come_in_the_order_asked_for(read):
    reader = read(slots=["tags", "user"], dense=["age", "price"])
    batch = next(reader.batches(0))
    assert (*batch.bags,) == reader.slots == ("tags", "user")
    assert batch.dense_names == reader.dense == ("age", "price")
    other = next(read().batches(0))
    np.testing.assert_array_equal(batch.dense, other.dense[:, ::-1])


def test_slots_alone_and_dense_alone_are_enough(read):
    assert next(read(dense=[]).batches(0)).dense.shape == (1000, 0)
    assert next(read(slots=[]).batches(0)).bags == {}


def test_threads_share_a_reader(read):
    reader = read(shuffle=200, batch_size=50)
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda epoch: rows_of(reader, epoch), [0, 1, 0, 1])]
    assert found == [rows_of(reader, epoch) for epoch in (0, 1, 0, 1)]


def test_iterators_of_one_reader_are_independent(read):
    reader = read(batch_size=100)
    left, right = reader.batches(0), reader.batches(0)
    pairs = itertools.zip_longest(map(bits, left), map(bits, right))
    assert all(one == two for one, two in pairs)


def test_a_table_reader_is_a_reader(read):
    reader: Reader = read()
    assert isinstance(reader.slots, tuple)


# --- splitting


def flights(**options):
    return read_parquet(
        Path(__file__).with_name("flights.parquet"),
        slots=["carrier", "flight", "tailnum", "origin", "dest", "month", "day", "sched_dep_time"],
        dense=["distance"],
        label="late",
        **options,
    )


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5])
def test_split_is_a_partition(read, fraction):
    reader = read(batch_size=70)
    train, evaluation = reader.split(fraction)
    assert sorted(rows_of(train) + rows_of(evaluation)) == sorted(rows_of(reader))


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.9])
def test_evaluation_gets_about_its_fraction(fraction):
    _, evaluation = flights(batch_size=10**5).split(fraction)
    size = sum(batch.size for batch in evaluation.batches(0))
    deviation = np.sqrt(fraction * (1 - fraction) * 327_346)
    assert abs(size - fraction * 327_346) < 4 * deviation


@pytest.mark.parametrize("separator", [None, "|"])
def test_csv_and_parquet_split_alike(folder, separator):
    options = {**COLUMNS, "multi_hot_separator": separator, "shuffle": 100}
    sides = zip(
        read_csv(folder / "t.csv", **options).split(0.3),
        read_parquet(folder / "t.parquet", **options).split(0.3),
        strict=True,
    )
    for text, typed in sides:
        assert [*map(bits, text.batches(0))] == [*map(bits, typed.batches(0))]


def test_rows_that_differ_in_the_label_alone_are_on_one_side(tmp_path):
    size = 400
    half = table_of(size).drop_columns("label")
    tables = [half.append_column("label", pa.array([label] * size)) for label in (0, 1)]
    pq.write_table(pa.concat_tables(tables), tmp_path / "t.parquet")
    _, evaluation = read_parquet(tmp_path / "t.parquet", **COLUMNS).split(0.3)
    found = rows_of(evaluation)
    assert {row[:-1] for row in found if row[-1] == 0} == {row[:-1] for row in found if row[-1]}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": ["1"], "b": ["2"]}, {"a": ["2"], "b": ["1"]}),  # the order of slots
        ({"a": ["1|2"], "b": [""]}, {"a": ["1"], "b": ["2"]}),  # where a bag ends
        ({"a": ["1|2"], "b": [""]}, {"a": ["2|1"], "b": [""]}),  # the order in a bag
        ({"a": ["1|1"], "b": [""]}, {"a": ["1"], "b": [""]}),  # how often
    ],
)
def test_rows_that_differ_in_bags_are_split_apart_somewhere(tmp_path, left, right):
    """Beside 100 different third slots, equal hashes would agree on every side."""
    sides = []
    for i, row in enumerate((left, right)):
        table = pa.table({name: values * 100 for name, values in row.items()})
        pq.write_table(table.append_column("c", pa.array(range(100))), tmp_path / f"{i}.parquet")
        reader = read_parquet(
            tmp_path / f"{i}.parquet", slots=["a", "b", "c"], label=None, multi_hot_separator="|"
        )
        _, evaluation = reader.split(0.5)
        sides.append([*np.concatenate([b.bags["c"].keys for b in evaluation.batches(0)])])
    assert sides[0] != sides[1]


def test_training_shuffles_and_evaluation_is_in_order(read):
    train, evaluation = read(shuffle=400).split(0.3)
    assert rows_of(train) != rows_of(train.in_order())
    ordered = iter(rows_of(read()))
    assert all(row in ordered for row in rows_of(evaluation))


def test_a_side_can_be_split_again():
    rest, test = flights(batch_size=10**5).split(0.2)
    train, valid = rest.split(0.25)
    sizes = [sum(batch.size for batch in side.batches(0)) for side in (train, valid, test)]
    assert sum(sizes) == 327_346
    assert np.array(sizes) / 327_346 == pytest.approx([0.6, 0.2, 0.2], abs=0.005)


def test_the_label_rate_is_the_same_on_both_sides():
    train, evaluation = flights().split(0.2)
    rates = [
        np.concatenate([b.label for b in side.batches(0)]).mean() for side in (train, evaluation)
    ]
    assert rates == pytest.approx([0.237, 0.237], abs=0.006)


def keys_in(slot, reader):
    return {int(key) for batch in reader.batches(0) for key in batch.bags[slot].keys}


def test_split_by_some_slots_keeps_rows_equal_in_these_together(read):
    reader = read(slots=["user", "city", "tags"])
    train, evaluation = reader.split(0.3, by=["user"])
    assert sorted(rows_of(train) + rows_of(evaluation)) == sorted(rows_of(reader))
    (missing,) = keys_in("user", train) & keys_in("user", evaluation) or {None}
    assert missing is None
    assert len(keys_in("user", evaluation)) > 150  # of about 800
    # By every slot, rows of one user are on both sides.
    train, evaluation = read(slots=["city", "user"]).split(0.3)
    assert keys_in("city", train) & keys_in("city", evaluation)


def test_readers_that_differ_in_other_slots_are_split_alike(read):
    by = ["user", "city"]
    few, more = read(slots=by, dense=[]), read(slots=["tags", "city", "user"])
    assert rows_of(few.split(0.3, by=by)[1]) == rows_of(few.split(0.3)[1])
    users = [
        np.concatenate(
            [batch.bags["user"].keys for batch in reader.split(0.3, by=by)[1].batches(0)]
        )
        for reader in (few, more)
    ]
    np.testing.assert_array_equal(*users)


def test_a_side_is_split_again_by_the_same_slots(read):
    train, _ = read().split(0.3, by=["user"])
    rest, valid = train.split(0.5, by=["user"])
    assert sorted(rows_of(rest) + rows_of(valid)) == sorted(rows_of(train))
    assert not keys_in("user", rest) & keys_in("user", valid)
    with pytest.raises(ConfigError, match=r"by the same slots, \('user',\), got by=all; pass by="):
        train.split(0.5)


@pytest.mark.parametrize("by", [[], ["usr"], ["user", "price"]])
def test_what_a_split_goes_by_is_slots(read, by):
    with pytest.raises(ConfigError, match="by names slots of user, city, tags, got by="):
        read().split(0.3, by=by)


# --- keys that two slots share


def test_a_slot_may_have_the_keys_of_another(read):
    (apart,) = read(slots=["city", "tags"], batch_size=1000).batches(0)
    (shared,) = read(slots=["city", "tags"], batch_size=1000, shared_keys={"tags": "city"}).batches(
        0
    )
    np.testing.assert_array_equal(shared.bags["city"].keys, apart.bags["city"].keys)
    np.testing.assert_array_equal(shared.bags["tags"].lengths(), apart.bags["tags"].lengths())
    assert set(shared.bags["tags"].keys.tolist()) == {key("city", "a"), key("city", "b")}
    assert set(apart.bags["tags"].keys.tolist()) == {key("tags", "a"), key("tags", "b")}


def test_csv_and_parquet_share_keys_alike(folder):
    options = {**COLUMNS, "shared_keys": {"tags": "city"}}
    text, typed = (
        read_csv(folder / "t.csv", **options),
        read_parquet(folder / "t.parquet", **options),
    )
    assert [*map(bits, text.batches(0))] == [*map(bits, typed.batches(0))]


# --- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": [], "dense": []}, "a reader needs a column, got no slots and no dense"),
        ({"slots": ["user", "user"]}, "a column has one use, got 'user' twice"),
        ({"dense": ["age", "age"]}, "a column has one use, got 'age' twice"),
        ({"slots": ["user", "age"]}, "a column has one use, got 'age' twice"),
        (
            {"dense": ["label"]},
            "a column has one use, got 'label' twice .* label='label'; keep one",
        ),
        ({"slots": "user"}, r"slots is a sequence of columns, got a text; write \['user'\]"),
        ({"dense": "age"}, r"dense is a sequence of columns, got a text; write \['age'\]"),
        ({"batch_size": 0}, "batch_size is at least 1, got batch_size=0"),
        ({"shuffle": -1}, "0 for the order of the files, got shuffle=-1"),
        ({"seed": -1}, "seed is at least 0, got seed=-1"),
        ({"multi_hot_separator": ""}, "multi_hot_separator is text such as '|', or None"),
        ({"shared_keys": {"tags": "age"}}, "maps a slot to another one, .* got 'tags' to 'age'"),
        ({"shared_keys": {"age": "tags"}}, "maps a slot to another one, .* got 'age' to 'tags'"),
        ({"shared_keys": {"tags": "tags"}}, "another one, .* got 'tags' to 'tags' with slots="),
        (
            {"shared_keys": {"tags": "city", "city": "user"}},
            "which has keys of its own, got 'tags' to 'city'",
        ),
        ({"slots": ["usr"]}, r"no column 'usr' in .*t\.\w+, which has 'price', 'unused', 'city', "),
        ({"slots": ["usr"]}, "did you mean 'user'?"),
        ({"dense": ["prices"]}, "did you mean 'price'?"),
        ({"label": "lable"}, "did you mean 'label'?"),
    ],
)
def test_a_wrong_argument_is_refused_at_once(read, options, message):
    with pytest.raises(ConfigError, match=message):
        read(**options)


def test_a_name_like_no_other_gets_no_suggestion(read):
    with pytest.raises(ConfigError, match=r"no column 'xyzzy' in .*'age'$"):
        read(slots=["xyzzy"])


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 1.5, float("nan")])
def test_a_fraction_is_above_0_and_below_1(read, fraction):
    with pytest.raises(ConfigError, match="above 0 and below 1, got fraction"):
        read().split(fraction)


def test_epoch_and_skip_are_not_negative(read):
    with pytest.raises(ConfigError, match="epoch and skip are at least 0, got epoch=-1, skip=0"):
        read().batches(-1)
    with pytest.raises(ConfigError, match="epoch and skip are at least 0, got epoch=0, skip=-1"):
        read().batches(0, skip=-1)


@pytest.mark.parametrize("read_files", [read_csv, read_parquet])
def test_paths_that_are_no_files_are_refused(read_files, tmp_path):
    with pytest.raises(ConfigError, match=r"no file .*nowhere.csv \(from /.*\); check the path"):
        read_files(tmp_path / "nowhere.csv", slots=["a"])
    with pytest.raises(ConfigError, match="a path names a file, got the folder"):
        read_files(tmp_path, slots=["a"])
    with pytest.raises(ConfigError, match=r"a reader needs a file, got paths=\[\]"):
        read_files([], slots=["a"])
