"""The files that come with the repository are what the documents say."""

import hashlib
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hetero_pipe.data import read_parquet

FLIGHTS = Path(__file__).with_name("flights.parquet")
MOVIELENS = Path(__file__).parents[2] / "examples/ctr/data/movielens/movielens.parquet"


def test_flights_are_those_of_2013_from_new_york():
    table = pq.read_table(FLIGHTS)
    assert table.num_rows == 327_346
    assert table.column_names == [
        *("late", "month", "day", "sched_dep_time", "carrier", "flight", "tailnum"),
        *("origin", "dest", "distance"),
    ]
    assert pc.mean(table["late"]).as_py() == pytest.approx(0.23715, abs=1e-5)
    assert pc.count_distinct(table["tailnum"]).as_py() == 4037


def test_ratings_are_those_of_movielens_oldest_first():
    table = pq.read_table(MOVIELENS)
    assert table.num_rows == 100_836
    assert table.schema.equals(
        pa.schema(
            {
                "user": pa.int32(),
                "movie": pa.int32(),
                "genres": pa.list_(pa.string()),
                "hour": pa.int8(),
                "weekday": pa.int8(),
                "rating": pa.float32(),
                "timestamp": pa.int64(),
                "label": pa.int8(),
                "history": pa.list_(pa.int32()),
            }
        )
    )
    assert pc.mean(table["label"]).as_py() == pytest.approx(0.48177, abs=1e-5)
    assert table["label"].to_pylist() == [rating >= 4 for rating in table["rating"].to_pylist()]
    assert table["timestamp"].to_pylist() == sorted(table["timestamp"].to_pylist())
    assert pc.count_distinct(table["user"]).as_py() == 610
    assert sum(table[name].null_count for name in table.column_names) == 0


def test_a_history_is_the_last_20_movies_that_the_user_rated_strictly_before():
    table = pq.read_table(MOVIELENS, columns=["user", "movie", "timestamp", "history"])
    seen, pending = defaultdict(list), defaultdict(list)  # by user: before this second, and in it
    now = None
    for row in table.to_pylist():
        if row["timestamp"] != now:
            for user, movies in pending.items():
                seen[user] += movies
            now, pending = row["timestamp"], defaultdict(list)
        assert row["history"] == seen[row["user"]][-20:]
        pending[row["user"]].append(row["movie"])


def test_ratings_beside_their_history_are_as_they_were():
    """AUCs in the documents are of these bytes."""
    table = pq.read_table(MOVIELENS).drop_columns(["history"])
    digest = hashlib.sha256()
    digest.update(str(table["genres"].to_pylist()).encode())
    for column in table.drop_columns(["genres"]).itercolumns():
        digest.update(column.to_numpy().tobytes())
    assert digest.hexdigest() == (
        "44737c0ea058592255816aa931ba1ec336b221ffb908c561913ca4eb5d0a4f97"
    )
    assert MOVIELENS.stat().st_size < 1_000_000


def test_movielens_carries_its_licence():
    text = MOVIELENS.with_name("README.txt").read_text()
    assert "may redistribute the data set, including transformations" in text


def test_movies_without_genres_are_empty_bags():
    reader = read_parquet(MOVIELENS, slots=["genres"], batch_size=200_000)
    (batch,) = reader.batches(0)
    assert (batch.bags["genres"].lengths() == 0).sum() == 47
    assert batch.bags["genres"].lengths().max() == 10
