"""Settings of a reader: equal for equal batches, and small enough for a manifest."""

import json
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import pytest

import hetero_pipe as hp
from hetero_pipe.data import reader_settings
from tests.toy import COLUMNS, read, samples, write_csv, write_parquet


@pytest.fixture
def path(tmp_path):
    return write_parquet(tmp_path / "a.parquet", samples(20))


def test_each_argument_is_a_setting(path):
    assert reader_settings(read(path, shuffle=7)) == {
        "kind": "TableReader",
        "source.kind": "ParquetSource",
        "source.paths.0": f"a.parquet, {path.stat().st_size} bytes",
        "source.columns.kind": "Columns",
        "source.columns.slots": "user, item, tags",
        "source.columns.dense": "price, age",
        "source.columns.label": "label",
        "source.columns.separator": None,
        "columns.kind": "Columns",
        "columns.slots": "user, item, tags",
        "columns.dense": "price, age",
        "columns.label": "label",
        "columns.separator": None,
        "batch_size": 32,
        "shuffle": 7,
        "seed": 3,
        "first_hash": 0,
        "last_hash": 2**64 - 1,
        "log_dense": False,
        "hashed_slots": None,
    }


def test_where_bad_lines_go_is_no_setting(tmp_path):
    # A run that left lines out is resumed with another side file, or a higher limit.
    path = write_csv(tmp_path / "a.csv", samples(9))
    one = hp.read_csv(path, **COLUMNS, bad_lines=tmp_path / "one", max_bad_lines=1)
    other = hp.read_csv(path, **COLUMNS, bad_lines=tmp_path / "longer", max_bad_lines=9)
    (tmp_path / "longer").write_text("some lines")
    assert reader_settings(one) == reader_settings(other)
    assert reader_settings(one) != reader_settings(hp.read_csv(path, **COLUMNS))


def test_json_keeps_them(path, tmp_path):
    csv = hp.read_csv(write_csv(tmp_path / "a.csv", samples(9)), **COLUMNS, multi_hot_separator="|")
    for reader in (read(path), csv, *read(path).split(0.3)):
        settings = reader_settings(reader)
        assert json.loads(json.dumps(settings)) == settings


def test_a_folder_of_files_is_told_one_by_one(path, tmp_path):
    other = write_parquet(tmp_path / "b.parquet", samples(30))
    found, swapped = reader_settings(read([path, other])), reader_settings(read([other, path]))
    assert found["source.paths.1"].startswith("b.parquet, ")
    assert found != swapped


WEIGHTS = f"int64[3], crc32 {zlib.crc32(struct.pack('<3q', 0, 1, 2)):#010x}"


@dataclass
class Made:
    """A reader of things that no table has."""

    weights: np.ndarray
    parts: tuple
    options: dict
    draw: object


def test_arrays_functions_and_nested_things_are_told():
    made = Made(np.arange(3), (1, (2.5, "a")), {"x": True}, np.sort)
    assert reader_settings(made) == {
        "kind": "Made",
        "weights": WEIGHTS,
        "parts.0": 1,
        "parts.1.0": 2.5,
        "parts.1.1": "a",
        "options.x": True,
        "draw": "sort",
    }
    made.weights = np.array([0, 1, 4])
    assert reader_settings(made)["weights"] != WEIGHTS


def test_of_a_reader_that_is_no_dataclass_nothing_is_known():
    assert reader_settings(object()) is None
