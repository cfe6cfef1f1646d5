"""Snapshots: rows come back equal, or an error names the file."""

import json

import numpy as np
import pyarrow as pa
import pytest

from ps_server.keys import bucket_of
from ps_server.snapshot import (
    SnapshotError,
    buckets_of_snapshot,
    read_snapshot,
    rows_within,
    snapshots,
)
from ps_server.spec import NUM_BUCKETS, SGD, Adagrad, Adam, Normal, TableSpec
from ps_server.table import Table

ALL = np.arange(NUM_BUCKETS)


def filled(optimizer=Adagrad(0.1), num_keys=100, dim=3):  # noqa: B008
    rng = np.random.default_rng(5)
    table = Table(TableSpec("user", dim, optimizer, Normal()))
    keys = rng.integers(0, 2**64, num_keys, np.uint64)
    for step in range(1, 4):
        part = keys[rng.random(num_keys) < 0.7]
        table.push(part, rng.standard_normal((len(part), dim)).astype(np.float32), step=step)
    table.pull(keys)
    return table


def write(table, folder, owned=ALL):
    paths = []
    for name, data in snapshots(table, owned):
        paths.append(folder / name)
        paths[-1].write_bytes(data)
    return paths


def keys_of(table):
    return table.export_rows(0, NUM_BUCKETS).keys


def columns(rows):
    return {name: column.tobytes() for name, column in vars(rows).items()}


def rewrite(path, change):
    """Writes a snapshot anew, with another table."""
    table = change(pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all())
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


@pytest.fixture
def one_file(tmp_path):
    """A small snapshot of few rows, and its table."""
    table = filled(num_keys=4000, dim=2)
    path, *_ = write(table, tmp_path, np.arange(5))
    return path, table


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1), Adam()], ids=str)
def test_rows_come_back_with_state_and_steps(tmp_path, optimizer):
    table = filled(optimizer, num_keys=3000)
    paths = write(table, tmp_path)
    assert [path.name for path in paths] == [
        f"buckets-{first:04d}-{first + 255:04d}.arrow" for first in range(0, 4096, 256)
    ]
    loaded = Table(table.spec)
    for path in reversed(paths):
        loaded.import_rows(read_snapshot(path, table.spec))
    assert columns(loaded.export_rows(0, 4096)) == columns(table.export_rows(0, 4096))
    assert loaded.last_step == table.last_step == 3


def test_equal_tables_give_equal_files():
    assert list(snapshots(filled(), ALL)) == list(snapshots(filled(), ALL))


def test_two_lines_of_pyarrow_read_one(one_file):
    path, table = one_file
    with pa.OSFile(str(path)) as file:
        rows = pa.ipc.open_file(file).read_all()
    expected = table.export_rows(0, 5)
    assert rows["key"].to_numpy().tolist() == expected.keys.tolist()
    assert np.array_equal(np.array(rows["weights"].to_pylist(), np.float32), expected.weights)
    described = json.loads(rows.schema.metadata[b"hetero_pipe"])
    assert described["table"] == table.spec.to_dict()


@pytest.mark.parametrize(
    "owned",
    [
        ALL,
        np.arange(100, 300),
        np.arange(255, 256),
        np.arange(256, 512),
        np.arange(0),
        ALL[::3],
        np.array([4, 9, 250, 255, 256, 4095]),
    ],
    ids=["all", "over_two", "one", "a_range", "none", "each_third", "scattered"],
)
def test_snapshots_hold_the_buckets_that_are_owned(tmp_path, owned):
    table = filled(num_keys=20_000, dim=1)
    seen = []
    for path in write(table, tmp_path, owned):
        buckets = bucket_of(read_snapshot(path, table.spec).keys)
        named = buckets_of_snapshot(path.name)
        assert named.start // 256 == (named.stop - 1) // 256, "a file is of one range"
        assert {named.start, named.stop - 1} <= set(owned.tolist())
        assert set(buckets.tolist()) <= set(owned.tolist()) & set(named)
        seen += buckets.tolist()
    assert sorted(seen) == sorted(b for b in bucket_of(keys_of(table)) if b in owned)


def test_servers_that_share_a_range_of_buckets_write_files_of_other_names(tmp_path):
    table = filled(num_keys=20_000, dim=1)
    owners = np.random.default_rng(6).integers(0, 5, NUM_BUCKETS)
    paths = [p for i in range(5) for p in write(table, tmp_path, np.flatnonzero(owners == i))]
    assert len({path.name for path in paths}) == len(paths) == 5 * 16
    loaded = Table(table.spec)
    for path in paths:
        loaded.import_rows(read_snapshot(path, table.spec))
    assert columns(loaded.export_rows(0, 4096)) == columns(table.export_rows(0, 4096))


def test_empty_table_has_no_snapshots():
    assert list(snapshots(Table(TableSpec("user", 3)), ALL)) == []


def test_rows_within_keeps_rows_of_the_buckets_alone():
    rows = filled().export_rows(0, 4096)
    held = np.sort(bucket_of(rows.keys))
    first, end = (
        int(held[20]),
        int(held[80]),
    )  # a row lies in the first bucket and in the one behind
    part = rows_within(rows, np.arange(first, end))
    inside = [first <= bucket < end for bucket in bucket_of(rows.keys).tolist()]
    assert {first} <= {*bucket_of(part.keys).tolist()}
    assert part.keys.tolist() == rows.keys[inside].tolist()
    assert part.state.tobytes() == rows.state[inside].tobytes()
    assert rows_within(rows, ALL) is rows


@pytest.mark.parametrize(
    "name",
    ["", "buckets-0-255.arrow", "buckets-0000-0255.arrow.tmp", "x/buckets-0000-0255.arrow", "a"],
)
def test_name_that_is_no_snapshots_is_refused(name):
    with pytest.raises(SnapshotError, match=r"named buckets-FIRST-LAST\.arrow, got"):
        buckets_of_snapshot(name)


def is_refused(path, table, expected):
    """Whether the file is refused; if not, it must give the rows that were saved."""
    try:
        rows = read_snapshot(path, table.spec)
    except SnapshotError as error:
        return str(path) in str(error)
    assert columns(rows) == expected, "silently another table"
    return False


def test_file_cut_at_any_byte_is_refused(one_file):
    path, table = one_file
    data, expected = path.read_bytes(), columns(read_snapshot(path, table.spec))
    for size in {*range(0, len(data), 7), *range(len(data) - 99, len(data))}:
        path.write_bytes(data[:size])
        assert is_refused(path, table, expected), size


def test_file_with_any_byte_changed_is_refused_or_equal(one_file):
    """Arrow checks none of its data; the CRC does."""
    path, table = one_file
    rng = np.random.default_rng(8)
    data, expected = path.read_bytes(), columns(read_snapshot(path, table.spec))
    num_refused = 0
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= int(rng.choice([0xFF, 0x01, 0x80]))
        path.write_bytes(changed)
        num_refused += is_refused(path, table, expected)
    assert num_refused > len(data) * 0.3, "what is left is padding"


def test_every_changed_bit_of_the_rows_is_refused(one_file):
    path, table = one_file
    data = path.read_bytes()
    for column in vars(read_snapshot(path, table.spec)).values():
        start = data.index(column.tobytes())
        for position in range(start, start + column.nbytes):
            changed = bytearray(data)
            changed[position] ^= 1 << (position % 8)
            path.write_bytes(changed)
            with pytest.raises(SnapshotError, match="must have CRC"):
                read_snapshot(path, table.spec)


def test_missing_file_and_folder_are_refused(tmp_path):
    spec = TableSpec("user", 3)
    for path in (tmp_path / "buckets-0000-0255.arrow", tmp_path):
        with pytest.raises(SnapshotError, match=str(path)):
            read_snapshot(path, spec)


@pytest.mark.parametrize("spec", [TableSpec("u", 4, Adagrad(1)), TableSpec("u", 2, SGD(1))])
def test_rows_of_another_dim_or_optimizer_are_refused(one_file, spec):
    path, _ = one_file
    with pytest.raises(SnapshotError, match=r"dim=2 with Adagrad do not fit .*build the model as"):
        read_snapshot(path, spec)


def test_other_settings_of_the_optimizer_may_read_it(one_file):
    path, table = one_file
    other = TableSpec("renamed", 2, Adagrad(0.5, 1e-3), seed=9)
    assert columns(read_snapshot(path, other)) == columns(table.export_rows(0, 5))


def described_as(**changes):
    def change(table):
        described = json.loads(table.schema.metadata[b"hetero_pipe"]) | changes
        return table.replace_schema_metadata({"hetero_pipe": json.dumps(described)})

    return change


def with_column(name, make):
    def change(table):
        index = table.schema.get_field_index(name)
        column = make(table[name].combine_chunks())
        return table.set_column(index, name, column)

    return change


@pytest.mark.parametrize(
    "change",
    [
        described_as(format="hetero_pipe-snapshot-v2"),
        described_as(format=None),
        described_as(table=None),
        described_as(table={"name": "user", "dim": 2, "optimizer": [], "initializer": []}),
        described_as(crc32="x"),
        lambda table: table.replace_schema_metadata(None),
        lambda table: table.replace_schema_metadata({"hetero_pipe": b"\xff"}),
        lambda table: table.replace_schema_metadata({"hetero_pipe": "[]"}),
        lambda table: table.drop_columns(["key"]),
        lambda table: table.drop_columns(["state"]),
        lambda table: table.append_column("more", table["step"]),
        lambda table: table.slice(1),
        lambda table: pa.concat_tables([table, table]),
        with_column("key", lambda column: column.view(pa.int64())),
        with_column("step", lambda column: pa.array(column.to_pylist(), pa.uint32())),
        with_column("weights", lambda column: column.flatten()[: len(column)]),
        with_column("num_pushes", lambda column: pa.array([None] * len(column), pa.uint32())),
        with_column("weights", lambda column: pa.array([None] * len(column), column.type)),
    ],
)
def test_arrow_file_of_another_shape_is_refused(one_file, change):
    path, table = one_file
    rewrite(path, change)
    with pytest.raises(SnapshotError, match=str(path)):
        read_snapshot(path, table.spec)


def test_rows_in_several_batches_are_read(one_file):
    """Another program may have written it."""
    path, table = one_file
    expected = columns(read_snapshot(path, table.spec))
    whole = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=1)
    assert columns(read_snapshot(path, table.spec)) == expected
