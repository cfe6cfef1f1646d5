"""What is said of Parquet alone: types of columns, and the row of every fault."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from hetero_pipe.data import read_parquet
from hetero_pipe.errors import DataError


@pytest.fixture
def read(tmp_path):
    """Writes columns to a file and reads it in one batch."""

    def read(columns, **options):
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, tmp_path / "t.parquet", row_group_size=1000)
        options = {"slots": ["s"], "label": None, "batch_size": 10**6, **options}
        (batch,) = read_parquet(tmp_path / "t.parquet", **options).batches(0)
        return batch

    return read


def keys(*texts):
    seed = xxhash.xxh64_intdigest(b"s", 0)
    return [xxhash.xxh64_intdigest(text.encode(), seed) for text in texts]


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        (pa.array([7, None, -7], pa.int32()), ["7", "", "-7"]),
        (pa.array([2**64 - 1, 0], pa.uint64()), [str(2**64 - 1), "0"]),
        (pa.array(["7", None], pa.large_string()), ["7", ""]),
        (pa.array(["b", None, "a", "b"]).dictionary_encode(), ["b", "", "a", "b"]),
        (pa.array([datetime.date(2013, 1, 31)]), ["2013-01-31"]),
        (pa.array([True, False]), ["true", "false"]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_key_is_the_hash_of_the_text_whatever_the_type(read, column, texts):
    assert read({"s": column}).bags["s"].keys.tolist() == keys(*texts)


def test_a_column_of_many_distinct_texts_spans_row_groups_and_chunks(read):
    texts = [f"v{i * 7919 % 40_000}" for i in range(50_000)]
    assert read({"s": texts}).bags["s"].keys.tolist() == keys(*texts)


def test_a_list_column_is_a_bag_beside_one_that_is_not(read):
    batch = read({"s": [["a", "b"], [], None], "t": ["x", "y", "z"]}, slots=["s", "t"])
    assert batch.bags["s"].keys.tolist() == keys("a", "b")
    assert batch.bags["s"].offsets.tolist() == [0, 2, 2, 2]
    assert batch.bags["t"].offsets is None


@pytest.mark.parametrize(
    "column",
    [
        pa.array(np.array([0.5, np.nan, 3.0], np.float16)),
        pa.array([0.5, float("nan"), 3.0], pa.float32()),
        pa.array([0.5, float("nan"), 3.0], pa.float64()),
        pa.array([0.5, None, 3.0]).dictionary_encode(),
        pa.array([0.5, None, 3.0], pa.float64()).cast(pa.decimal128(5, 2)),
    ],
    ids=lambda column: str(column.type),
)
def test_a_missing_dense_value_is_zero(read, column):
    assert read({"s": ["", "", ""], "d": column}, dense=["d"]).dense.tolist() == [[0.5], [0], [3]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, 0, None], pa.int8()),
        pa.array([1, 0, None], pa.uint64()),
        pa.array([True, False, None]),
    ],
    ids=lambda column: str(column.type),
)
def test_integers_and_booleans_are_dense(read, column):
    assert read({"d": column}, slots=[], dense=["d"]).dense.tolist() == [[1], [0], [0]]


def test_a_column_of_nulls_is_zeros_or_empty_texts(read):
    batch = read({"s": pa.nulls(2), "d": pa.nulls(2)}, dense=["d"])
    assert batch.dense.tolist() == [[0], [0]]
    assert batch.bags["s"].keys.tolist() == keys("", "")


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.float32(), pa.float64()], ids=str)
def test_labels_become_float32(read, kind):
    batch = read({"s": ["a", "b"], "y": pa.array([1, 0]).cast(kind)}, label="y")
    assert batch.label.dtype == np.float32
    assert batch.label.tolist() == [1, 0]


def test_columns_with_dots_in_their_names_are_read(read):
    columns = {"s.a": ["x"], "s": ["y"], "d.0": [1.5]}
    batch = read(columns, slots=["s", "s.a"], dense=["d.0"])
    assert batch.bags["s"].keys.tolist() == keys("y")
    assert batch.dense.tolist() == [[1.5]]


def test_files_may_type_a_column_differently(tmp_path):
    pq.write_table(pa.table({"s": ["7"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": [0], "s": [7]}), tmp_path / "b.parquet")
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    (batch,) = read_parquet(paths, slots=["s"], label=None).batches(0)
    assert batch.bags["s"].keys.tolist() == keys("7", "7")


# --- faults


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0]),
        pa.array([0], pa.timestamp("us")),
        pa.array([1]).cast(pa.decimal128(21, 2)),
        pa.array([[1.0]], pa.list_(pa.field("element", pa.float64()))),
        pa.array([{"a": 1}]),
    ],
    ids=lambda column: str(column.type),
)
def test_a_slot_of_several_spellings_is_refused_at_once(read, column):
    with pytest.raises(DataError) as caught:
        read({"s": column})
    message = str(caught.value)
    assert message.startswith("slot 's' needs text, integers, booleans, dates or lists of these")
    assert f"got type {column.type} in " in message
    assert message.endswith("t.parquet; cast the column to string or to an integer")


def test_dense_and_label_of_text_are_refused_at_once(read):
    columns = {"s": ["a"], "d": ["1"]}
    message = (
        r"needs numbers or booleans, got type string in .*t\.parquet; cast the column to a number"
    )
    with pytest.raises(DataError, match=f"dense column 'd' {message}"):
        read(columns, dense=["d"])
    with pytest.raises(DataError, match=f"label 'd' {message}"):
        read(columns, label="d")


@pytest.mark.parametrize(("wrong", "found"), [(None, "nothing"), (np.nan, "nan"), (np.inf, "inf")])
def test_a_wrong_label_names_file_and_row(read, wrong, found):
    labels = [0.0] * 40_000
    labels[35_000] = wrong
    message = (
        rf"label 'y' needs a finite number in every row, got {found} at .*t\.parquet, row 35001; "
    )
    with pytest.raises(DataError, match=message):
        read({"s": range(40_000), "y": labels}, label="y")


@pytest.mark.parametrize(("wrong", "found"), [(-np.inf, "-inf"), (1e39, r"1e\+39")])
def test_an_infinite_dense_value_names_file_row_and_column(read, wrong, found):
    message = rf"dense column 'd' needs values that a float32 holds, got {found} at .*, row 2; clip"
    with pytest.raises(DataError, match=message):
        read({"s": ["a", "b"], "d": [np.nan, wrong]}, dense=["d"])


def test_a_file_that_is_no_parquet_is_refused_at_once(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_text("s,label\na,0\n" * 10)
    with pytest.raises(DataError, match=r"could not read .*t\.parquet: .*read_csv if it is text"):
        read_parquet(path, slots=["s"])


def test_an_empty_file_is_refused_at_once(tmp_path):
    path = tmp_path / "t.parquet"
    path.touch()
    with pytest.raises(DataError, match=r"found 0 bytes in .*t\.parquet; write it again"):
        read_parquet(path, slots=["s"])


def test_a_file_broken_in_the_middle_is_named(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table({"s": [f"v{i}" for i in range(50_000)]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    content = bytearray(path.read_bytes())
    middle = slice(len(content) // 4, len(content) // 2)
    content[middle] = bytes(len(content[middle]))
    path.write_bytes(content)
    reader = read_parquet(path, slots=["s"], label=None)
    with pytest.raises(
        DataError, match=r"a Parquet file must be whole, could not read .*t\.parquet"
    ):
        list(reader.batches(0))


def test_files_without_rows_are_refused_at_once(read):
    with pytest.raises(DataError, match=r"a reader needs rows, found none in .*t\.parquet"):
        read({"s": pa.array([], pa.string())})


def test_two_columns_of_one_name_are_refused(read):
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["s", "s"])
    with pytest.raises(DataError, match=r"column 's' stands 2 times in .*t\.parquet; rename"):
        read(table)
