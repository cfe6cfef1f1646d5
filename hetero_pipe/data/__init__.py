"""What flows through: files of samples become batches of keys, dense values and labels.

A reader is a description: it can be iterated many times, by several threads, and
remembers nothing. It never drops, repeats or invents a row, and it knows nothing
of tables, servers or models. The key of a value is `ps_server.keys`' hash of the
slot's name and the value's text, so CSV and Parquet files of one table give equal
batches, bit by bit.
"""

import glob
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path

from hetero_pipe.data.array import aligned, aligned_empty
from hetero_pipe.data.batch import Bags, Batch
from hetero_pipe.data.columns import Columns
from hetero_pipe.data.criteo import CRITEO_DENSE, CRITEO_SLOTS
from hetero_pipe.data.cut import Cut
from hetero_pipe.data.formats import BadLines, CsvSource, ParquetSource
from hetero_pipe.data.lookup import Lookup, occurrences
from hetero_pipe.data.power_law import PowerLaw
from hetero_pipe.data.reader import Reader, TableReader
from hetero_pipe.data.settings import Setting, reader_settings
from hetero_pipe.data.share import share
from hetero_pipe.data.statistics import DataStatistics, TableStatistics, measure_statistics
from hetero_pipe.data.synthetic import Optimum, SyntheticReader, synthetic_criteo
from hetero_pipe.errors import ConfigError

__all__ = [
    "Bags",
    "Batch",
    "Cut",
    "DataStatistics",
    "Lookup",
    "Optimum",
    "PowerLaw",
    "Reader",
    "Setting",
    "SyntheticReader",
    "TableReader",
    "TableStatistics",
    "aligned",
    "aligned_empty",
    "measure_statistics",
    "occurrences",
    "read_criteo",
    "read_csv",
    "read_parquet",
    "reader_settings",
    "share",
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
    shared_keys: Mapping[str, str] | None = None,
    delimiter: str = ",",
    log_dense: bool = False,
    bad_lines: str | PathLike[str] | None = None,
    max_bad_lines: int = 100,
) -> TableReader:
    """Returns a reader of CSV files with a header line, in UTF-8.

    A slot's values are its fields as they stand: `007` and `7` differ. An empty
    field is the empty text or, with `multi_hot_separator`, a bag without keys.
    Dense values and labels are numbers; `NA`, `NaN`, `null` and the like
    (`hetero_pipe.data.formats.csv.NULLS`) are missing ones. A missing dense
    value is 0, a missing label an error.

    Args:
        paths: A file or several, read in this order. A pattern such as
            `day_*.csv.gz` stands for the files that match, sorted by name. What
            ends in .gz, .bz2, .lz4 or .zst is unpacked on the way.
        slots: Categorical columns.
        dense: Numeric columns.
        label: The column to learn, or None for prediction.
        batch_size: Samples of a batch; the last of an epoch may be smaller.
        shuffle: Rows of the window that is shuffled, 0 for the order of the
            files. Memory holds about two windows.
        seed: The order of an epoch is a function of (seed, epoch).
        multi_hot_separator: What stands between the values of one field, in
            every slot; empty values are dropped. None: a field is one value.
        shared_keys: Slots whose values have the keys of another slot, such as
            `{"history": "movie"}`: an `hp.Embedding` of both then has one row for
            a movie, wherever it stands. Other slots have keys of their own.
        delimiter: The character between two fields.
        log_dense: Whether a dense value x becomes sign(x) log(1 + |x|).
        bad_lines: A file, which is replaced, that takes the lines which cannot be
            read, each with its file, line and reason. They are left out, in every
            epoch, and are in it once. None: the first is an error.
        max_bad_lines: How many are let pass; one more is an error.

    Raises:
        ConfigError: An argument is out of range; a file or a column is missing;
            `bad_lines` cannot be written.
        DataError: A file is empty, or none has a row. What stands in the lines
            is seen while iterating, and named by file and line.
    """
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter == multi_hot_separator:
        raise ConfigError(
            "delimiter is one ASCII character that is not multi_hot_separator, "
            f"got delimiter={delimiter!r} and multi_hot_separator={multi_hot_separator!r}"
        )
    columns = _columns(slots, dense, label, multi_hot_separator, shared_keys)
    files = _files(paths)
    side_file = _side_file(bad_lines, max_bad_lines, files)
    source = CsvSource(files, columns, delimiter, bad_lines=side_file)
    reader = TableReader(source, columns, batch_size, shuffle, seed, log_dense=log_dense)
    source.check()
    return reader


def read_criteo(
    paths: Paths,
    *,
    slots: Sequence[str] = CRITEO_SLOTS,
    dense: Sequence[str] = CRITEO_DENSE,
    label: str | None = "label",
    batch_size: int = 4096,
    shuffle: int = 0,
    seed: int = 0,
    log_dense: bool = True,
    bad_lines: str | PathLike[str] | None = None,
    max_bad_lines: int = 100,
) -> TableReader:
    """Returns a reader of Criteo's click logs as they are distributed.

    A line is `label`, the integers I1..I13 and the categories C1..C26, separated
    by tabs, without header and quotes; or, as in a test set, the same without
    the label, which takes `label=None`. A category is text as it stands, empty
    or not. An integer that is missing is 0.

    Args:
        paths: As in `read_csv`.
        slots: Which of C1..C26, or of I1..I13 to be read as text.
        dense: Which of I1..I13.
        label: `label`, or None for prediction, with or without labels in the files.
        batch_size: Samples of a batch; the last of an epoch may be smaller.
        shuffle: As in `read_csv`.
        seed: As in `read_csv`.
        log_dense: Whether an integer x becomes sign(x) log(1 + |x|): they have
            heavy tails, and a few are negative.
        bad_lines: As in `read_csv`.
        max_bad_lines: As in `read_csv`.

    Raises:
        ConfigError: As in `read_csv`; a file has no labels and `label` is not None.
        DataError: As in `read_csv`.
    """
    columns = _columns(slots, dense, label, None, None)
    unlabelled = (*CRITEO_DENSE, *CRITEO_SLOTS)
    files = _files(paths)
    source = CsvSource(
        files,
        columns,
        delimiter="\t",
        is_quoted=False,
        layouts=(("label", *unlabelled), unlabelled),
        bad_lines=_side_file(bad_lines, max_bad_lines, files),
    )
    reader = TableReader(source, columns, batch_size, shuffle, seed, log_dense=log_dense)
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
    shared_keys: Mapping[str, str] | None = None,
    log_dense: bool = False,
) -> TableReader:
    """Returns a reader of Parquet files.

    A slot holds text, or what has one spelling: integers in decimal, booleans
    as `true` and `false`, dates as `2013-01-31`; so a CSV file of the same table
    gives the same keys. A list is a bag of values. Null is the empty text; in a
    list, or with `multi_hot_separator`, it is no value at all. Dense values and
    labels are numbers or booleans, and NaN is a missing one, as pandas writes
    it. A missing dense value is 0, a missing label an error.

    Args:
        paths: A file or several, read in this order. A pattern such as
            `day_*.parquet` stands for the files that match, sorted by name.
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
        shared_keys: Slots whose values have the keys of another slot, such as
            `{"history": "movie"}`: an `hp.Embedding` of both then has one row for
            a movie, wherever it stands. Other slots have keys of their own.
        log_dense: Whether a dense value x becomes sign(x) log(1 + |x|).

    Raises:
        ConfigError: An argument is out of range; a file or a column is missing.
        DataError: A file is no Parquet, a column has a type that cannot serve,
            or no file has a row. Wrong values are seen while iterating, and
            named by file and row, from 1.
    """
    columns = _columns(slots, dense, label, multi_hot_separator, shared_keys)
    source = ParquetSource(_files(paths), columns)
    reader = TableReader(source, columns, batch_size, shuffle, seed, log_dense=log_dense)
    source.check()
    return reader


def _columns(
    slots: Sequence[str],
    dense: Sequence[str],
    label: str | None,
    separator: str | None,
    shared_keys: Mapping[str, str] | None,
) -> Columns:
    for name, columns in (("slots", slots), ("dense", dense)):
        if isinstance(columns, str):
            raise ConfigError(f"{name} is a sequence of columns, got a text; write [{columns!r}]")
    return Columns(tuple(slots), tuple(dense), label, separator, dict(shared_keys or {}))


def _side_file(
    path: str | PathLike[str] | None, limit: int, files: tuple[Path, ...]
) -> BadLines | None:
    if path is None:
        return None
    if Path(path).exists() and any(file.samefile(path) for file in files):
        raise ConfigError(f"bad_lines names a file to replace, got {path}, which is to be read")
    return BadLines(Path(path), limit)


def _files(paths: Paths) -> tuple[Path, ...]:
    several = [paths] if isinstance(paths, (str, PathLike)) else paths
    files = tuple(file for path in several for file in _matches(fspath(path)))
    if not files:
        raise ConfigError("a reader needs a file, got paths=[]; name at least one")
    for file in files:
        if file.is_dir():
            raise ConfigError(f"a path names a file, got the folder {file}; name the files in it")
        if not file.is_file():
            raise ConfigError(f"no file {file} (from {Path.cwd()}); check the path")
    return files


def _matches(path: str) -> list[Path]:
    """Returns the files that match a pattern, or the path if it is none."""
    if not glob.has_magic(path) or Path(path).exists():
        return [Path(path)]
    found = [Path(match) for match in sorted(glob.glob(path, recursive=True))]
    files = [each for each in found if not each.is_dir()]
    if not files:
        raise ConfigError(f"no file matches {path} (from {Path.cwd()}); check the pattern")
    return files
