"""Makes movielens.parquet, beside this file, from GroupLens' ml-latest-small.

    python prepare.py path/to/ml-latest-small

Each row is one rating; a rating of 4 or more is a positive. `history` are the movies
that the user rated before, whatever the rating, the latest 20. Rows are in order of
time: it compresses best, and a split by time is then a split of the file.

The data keep their licence, README.txt: no commercial use.
"""

import argparse
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parents[1]))

from history import earlier_values


def read_samples(folder: Path) -> pa.Table:
    """Returns the ratings with the genres of their movies, oldest first."""
    ratings = pa.csv.read_csv(folder / "ratings.csv")
    movies = pa.csv.read_csv(folder / "movies.csv")

    text = pc.if_else(pc.equal(movies["genres"], "(no genres listed)"), None, movies["genres"])
    genres = pc.coalesce(pc.split_pattern(text, "|"), pa.scalar([], pa.list_(pa.string())))
    genres_of_rating = genres.take(pc.index_in(ratings["movieId"], movies["movieId"]))

    time = pc.cast(ratings["timestamp"], pa.timestamp("s"))  # UTC
    samples = pa.table(
        {
            "user": ratings["userId"].cast(pa.int32()),
            "movie": ratings["movieId"].cast(pa.int32()),
            "genres": genres_of_rating,
            "hour": pc.hour(time).cast(pa.int8()),
            "weekday": pc.day_of_week(time).cast(pa.int8()),  # Monday is 0
            "rating": ratings["rating"].cast(pa.float32()),
            "timestamp": ratings["timestamp"],
            "label": pc.greater_equal(ratings["rating"], 4).cast(pa.int8()),
        }
    )
    # The user settles ties, so that the file is the same each time it is made.
    samples = samples.sort_by([(name, "ascending") for name in ("timestamp", "movie", "user")])
    user, time, movie = (samples[name].combine_chunks() for name in ("user", "timestamp", "movie"))
    return samples.append_column("history", earlier_values(user, time, movie, last=20))


def main() -> None:
    """Reads the folder given on the command line and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="holds ratings.csv and movies.csv")
    samples = read_samples(parser.parse_args().folder)
    pq.write_table(
        samples,
        Path(__file__).with_name("movielens.parquet"),
        compression="zstd",
        compression_level=19,
        column_encoding={"timestamp": "DELTA_BINARY_PACKED"},
        use_dictionary=[
            "user",
            "movie",
            "genres.list.element",
            "hour",
            "weekday",
            "rating",
            "label",
        ],
        data_page_size=2**24,  # one page: most of a history stands in an earlier one, too
    )


if __name__ == "__main__":
    main()
