"""CSV files as a stream of record batches.

pyarrow parses. When it refuses a file, Python's csv module reads that file
again, slowly, to find the line at fault: pyarrow counts neither blank lines nor
those of the blocks before.
"""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

from hetero_pipe.data.columns import Chunk, Columns
from hetero_pipe.errors import DataError
from hetero_pipe.units import MiB

__all__ = ["NULLS", "CsvSource"]

NULLS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None")
"""How a missing number is spelled. In a slot all but the first are values like any other."""

# Bytes. The fastest of 256 KiB, 1 MiB and 4 MiB on a file of 40 columns, 2 cores.
_BLOCK = MiB


@dataclass(frozen=True)
class CsvSource:
    """CSV files with a header, in UTF-8; .gz, .bz2, .lz4 and .zst are unpacked on the way.

    Attributes:
        paths: The files, in the order they are read. Each has the columns, in
            whatever order and company.
        columns: Which of their columns are read.
        delimiter: The character between two fields.
    """

    paths: tuple[Path, ...]
    columns: Columns
    delimiter: str

    def check(self) -> None:
        """Reads the first lines of every file and checks its columns.

        Raises:
            ConfigError: A column is missing.
            DataError: A file is empty or no text, or no file has a row.
        """
        has_rows = False
        for path in self.paths:
            with self._translated(path):
                records = self._records(path)
                _, header = next(records, (0, None))
                if header is None:
                    raise DataError(f"a CSV file has a header line, found none in {path}")
                self.columns.check_names(header, path)
                has_rows = has_rows or next(records, None) is not None
        if not has_rows:
            raise DataError(f"a reader needs rows, found none in {', '.join(map(str, self.paths))}")

    def chunks(self) -> Iterator[Chunk]:
        """Yields every row of every file, in order, about 1 MiB of text at a time.

        Raises:
            DataError: A line is malformed or a file broken.
        """
        for path in self.paths:
            num_rows = 0
            with self._translated(path):
                try:
                    with self._opened(path) as batches:
                        for rows in batches:
                            yield Chunk(rows, _Place(self, path, num_rows))
                            num_rows += rows.num_rows
                except pa.ArrowInvalid as error:
                    raise self._fault(path, num_rows, error) from error

    def line_of(self, path: Path, row: int) -> int:
        """Returns the line, from 1, on which a row of the file, from 0, begins."""
        records = self._records(path)
        next(records)
        return next(line for i, (line, _) in enumerate(records) if i == row)

    def _opened(self, path: Path) -> pa.csv.CSVStreamingReader:
        # Slots are text, whatever it looks like: "007" stays "007".
        types = dict.fromkeys(self.columns.slots, pa.string())
        types |= dict.fromkeys(self.columns.numbers, pa.float64())
        return pa.csv.open_csv(
            path,
            read_options=pa.csv.ReadOptions(block_size=_BLOCK),
            parse_options=pa.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(
                column_types=types,
                include_columns=self.columns.names,
                null_values=NULLS,
                strings_can_be_null=False,
            ),
        )

    @contextmanager
    def _translated(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, csv.Error) as error:
            raise DataError(
                f"a CSV file must be readable text, could not read {path}: "
                f"{str(error).rstrip('.')}; write it again, or use read_parquet if it is Parquet"
            ) from error

    def _records(self, path: Path) -> Iterator[tuple[int, list[str]]]:
        """Yields the first line, from 1, and the fields of each record that is not blank."""
        with (
            pa.input_stream(str(path), compression="detect") as raw,
            # Bytes that are no UTF-8 become lone surrogates, which no text of UTF-8 has.
            io.TextIOWrapper(
                raw, encoding="utf-8-sig", errors="surrogateescape", newline=""
            ) as text,
        ):
            csv.field_size_limit(2**31 - 1)  # pyarrow has none; it is the module's, for all readers
            reader = csv.reader(text, delimiter=self.delimiter)
            line = 1
            for fields in reader:
                if fields:
                    yield line, fields
                line = reader.line_num + 1

    def _fault(self, path: Path, num_rows: int, error: pa.ArrowInvalid) -> DataError:
        """Returns the first fault at or after row `num_rows`, from 0, of a file."""
        records = self._records(path)
        _, header = next(records)
        numbers = [(header.index(name), name) for name in self.columns.numbers]
        slots = [(header.index(name), name) for name in self.columns.slots]
        for row, (line, fields) in enumerate(records):
            if row < num_rows:
                continue
            where = f"{path}, line {line}"
            if len(fields) != len(header):
                return DataError(
                    f"a line has as many fields as the header, {len(header)}, "
                    f"got {len(fields)} at {where}; "
                    f"quote fields that hold the delimiter {self.delimiter!r}, or mend the line"
                )
            for i, name in numbers:
                if not _is_number(fields[i]):
                    is_label = name == self.columns.label
                    use = "label" if is_label else "dense column"
                    remedy = "mend it" if is_label else "mend it, or read the column as a slot"
                    return DataError(
                        f"{use} {name!r} needs a number, got {fields[i]!r} at {where}; "
                        f"{remedy} (booleans are 1 and 0)"
                    )
            for i, name in slots:
                found = fields[i].encode(errors="surrogateescape")
                if not _is_utf8(found):
                    return DataError(
                        f"slot {name!r} needs text in UTF-8, got {found!r} at {where}; "
                        "convert the file to UTF-8"
                    )
        return DataError(
            f"a CSV file must be well formed, could not parse {path}: "
            f"{str(error).rstrip('.')}; mend or quote what stands there"
        )


@dataclass(frozen=True)
class _Place:
    """Where the rows of a chunk stand in their file."""

    source: CsvSource
    path: Path
    first: int

    def __call__(self, row: int) -> str:
        return f"{self.path}, line {self.source.line_of(self.path, self.first + row)}"


def _is_number(text: str) -> bool:
    """Whether pyarrow reads the text as a number or as a missing one."""
    if text in NULLS:
        return True
    if "_" in text or not text.isascii():
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
