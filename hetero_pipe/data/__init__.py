"""What flows through: files of samples become batches of keys, dense values and labels.

A reader is a description: it can be iterated many times, by several threads, and
remembers nothing. It never drops, repeats or invents a row, and it knows nothing
of tables, servers or models. The key of a value is `ps_server.keys`' hash of the
slot's name and the value's text, so CSV and Parquet files of one table give equal
batches, bit by bit.
"""

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

from hetero_pipe.data.array import aligned, aligned_empty
from hetero_pipe.data.batch import Bags, Batch
from hetero_pipe.data.columns import Columns
from hetero_pipe.data.formats import CsvSource, ParquetSource
from hetero_pipe.data.lookup import Lookup, occurrences
from hetero_pipe.data.reader import Reader, TableReader
from hetero_pipe.data.synthetic import Optimum, SyntheticReader, synthetic_criteo
from hetero_pipe.errors import ConfigError

__all__ = [
    "Bags",
    "Batch",
    "Lookup",
    "Optimum",
    "Reader",
    "SyntheticReader",
    "TableReader",
    "aligned",
    "aligned_empty",
    "occurrences",
    "read_csv",
    "read_parquet",
    "synthetic_criteo",
]

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def read_csv(
    paths: Paths,
    *,
    slots: Sequence[str],
    dense: Sequence[str] = (),
    label: str | None = "label",
    batch_size: int = 4096,
    shuffle: int = 0,
    seed: int = 0,
    multi_hot_separator: str | None = None,
    delimiter: str = ",",
) -> TableReader:
    """Returns a reader of CSV files with a header line, in UTF-8.

    A slot's values are its fields as they stand: `007` and `7` differ. An empty
    field is the empty text or, with `multi_hot_separator`, a bag without keys.
    Dense values and labels are numbers; `NA`, `NaN`, `null` and the like
    (`hetero_pipe.data.formats.csv.NULLS`) are missing ones. A missing dense
    value is 0, a missing label an error.

    Args:
        paths: A file or several, read in this order. A name that ends in .gz,
            .bz2, .lz4 or .zst is unpacked on the way.
        slots: Categorical columns.
        dense: Numeric columns.
        label: The column to learn, or None for prediction.
        batch_size: Samples of a batch; the last of an epoch may be smaller.
        shuffle: Rows of the window that is shuffled, 0 for the order of the
            files. Memory holds about two windows.
        seed: The order of an epoch is a function of (seed, epoch).
        multi_hot_separator: What stands between the values of one field, in
            every slot; empty values are dropped. None: a field is one value.
        delimiter: The character between two fields.

    Raises:
        ConfigError: An argument is out of range; a file or a column is missing.
        DataError: A file is empty, or none has a row. What stands in the lines
            is seen while iterating, and named by file and line.
    """
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter == multi_hot_separator:
        raise ConfigError(
            "delimiter is one ASCII character that is not multi_hot_separator, "
            f"got delimiter={delimiter!r} and multi_hot_separator={multi_hot_separator!r}"
        )
    columns = _columns(slots, dense, label, multi_hot_separator)
    source = CsvSource(_files(paths), columns, delimiter)
    reader = TableReader(source, columns, batch_size, shuffle, seed)
    source.check()
    return reader


def read_parquet(
    paths: Paths,
    *,
    slots: Sequence[str],
    dense: Sequence[str] = (),
    label: str | None = "label",
    batch_size: int = 4096,
    shuffle: int = 0,
    seed: int = 0,
    multi_hot_separator: str | None = None,
) -> TableReader:
    """Returns a reader of Parquet files.

    A slot holds text, or what has one spelling: integers in decimal, booleans
    as `true` and `false`, dates as `2013-01-31`; so a CSV file of the same table
    gives the same keys. A list is a bag of values. Null is the empty text; in a
    list, or with `multi_hot_separator`, it is no value at all. Dense values and
    labels are numbers or booleans, and NaN is a missing one, as pandas writes
    it. A missing dense value is 0, a missing label an error.

    Args:
        paths: A file or several, read in this order.
        slots: Categorical columns.
        dense: Numeric columns.
        label: The column to learn, or None for prediction.
        batch_size: Samples of a batch; the last of an epoch may be smaller.
        shuffle: Rows of the window that is shuffled, 0 for the order of the
            files. Memory holds about two windows.
        seed: The order of an epoch is a function of (seed, epoch).
        multi_hot_separator: What stands between the values of one text, in
            every slot of text; empty values are dropped. None: a text is one
            value.

    Raises:
        ConfigError: An argument is out of range; a file or a column is missing.
        DataError: A file is no Parquet, a column has a type that cannot serve,
            or no file has a row. Wrong values are seen while iterating, and
            named by file and row, from 1.
    """
    columns = _columns(slots, dense, label, multi_hot_separator)
    source = ParquetSource(_files(paths), columns)
    reader = TableReader(source, columns, batch_size, shuffle, seed)
    source.check()
    return reader


def _columns(
    slots: Sequence[str], dense: Sequence[str], label: str | None, separator: str | None
) -> Columns:
    for name, columns in (("slots", slots), ("dense", dense)):
        if isinstance(columns, str):
            raise ConfigError(f"{name} is a sequence of columns, got a text; write [{columns!r}]")
    return Columns(tuple(slots), tuple(dense), label, separator)


def _files(paths: Paths) -> tuple[Path, ...]:
    several = [paths] if isinstance(paths, (str, PathLike)) else paths
    files = tuple(Path(fspath(path)) for path in several)
    if not files:
        raise ConfigError("a reader needs a file, got paths=[]; name at least one")
    for file in files:
        if file.is_dir():
            raise ConfigError(f"a path names a file, got the folder {file}; name the files in it")
        if not file.is_file():
            raise ConfigError(f"no file {file} (from {Path.cwd()}); check the path")
    return files
