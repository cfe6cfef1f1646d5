"""Text files of separated fields as a stream of record batches.

pyarrow parses, a block at a time, and says what is well formed. A block that it
refuses is cut until the lines at fault stand alone; Python's csv module explains
them.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from hetero_pipe.data.ahead import ahead
from hetero_pipe.data.columns import Chunk, Columns, Fault
from hetero_pipe.data.formats.bad_lines import BadLines
from hetero_pipe.data.formats.blocks import Block, is_closed, read_blocks
from hetero_pipe.data.formats.records import Record, fields_of, read_records
from hetero_pipe.errors import ConfigError, DataError

__all__ = ["NULLS", "CsvSource"]

NULLS = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None")
"""How a missing number is spelled. In a slot all but the first are values like any other."""

Names = tuple[str, ...]

_PACKED = (".gz", ".bz2", ".lz4", ".zst")

# Blocks of a packed file that are unpacked while one is parsed.
_NUM_AHEAD = 2


@dataclass(frozen=True)
class CsvSource:
    """Files of separated fields, in UTF-8; .gz, .bz2, .lz4 and .zst are unpacked on the way.

    Attributes:
        paths: The files, in the order they are read. Each has the columns, in
            whatever order and company.
        columns: Which of their columns are read.
        delimiter: The character between two fields.
        is_quoted: Whether quotes guard delimiters and newlines.
        layouts: Of files without a header line: what their columns may be,
            told apart by number. Empty: a header line names the columns.
        bad_lines: Takes the lines that are left out, or None: the first is an
            error.
    """

    paths: tuple[Path, ...]
    columns: Columns
    delimiter: str
    is_quoted: bool = True
    layouts: tuple[Names, ...] = ()
    bad_lines: BadLines | None = None

    def check(self) -> None:
        """Reads the first lines of every file and checks its columns.

        Raises:
            ConfigError: A column is missing.
            DataError: A file is empty or no text, or no file has a row.
        """
        has_rows = False
        for path in self.paths:
            with self._translated(path):
                names, blocks = self._begun(path)
                if self.layouts and self.columns.label not in (None, *names):
                    raise ConfigError(
                        f"no label {self.columns.label!r} in {path}, whose lines have "
                        f"{len(names)} fields; read it with label=None, for prediction"
                    )
                self.columns.check_names(names, path)
                rows = (record for block in blocks for record in self._records(block))
                has_rows = has_rows or next(rows, None) is not None
        if not has_rows:
            raise DataError(f"a reader needs rows, found none in {', '.join(map(str, self.paths))}")

    def chunks(self) -> Generator[Chunk, None, None]:
        """Yields every row of every file, in order, about 1 MiB of text at a time.

        Raises:
            DataError: A line is malformed, or one more than may be, or a file
                is broken.
        """
        for path in self.paths:
            with self._translated(path):
                names, blocks = self._begun(path)
                # Unpacking takes nearly as long as parsing: it has a thread of its own.
                source = ahead(blocks, _NUM_AHEAD) if path.suffix in _PACKED else blocks
                with closing(source):
                    for block in source:
                        yield from self._parsed(path, names, block)

    def lines(self, block: Block) -> list[int]:
        """Returns the line, from 1, on which each row of a block begins."""
        return [record.line for record in self._records(block)]

    def _begun(self, path: Path) -> tuple[Names, Generator[Block, None, None]]:
        """Returns the names of a file's columns, and its blocks without the header line."""
        blocks = read_blocks(path, delimiter=self.delimiter, is_quoted=self.is_quoted)
        for block in blocks:
            for record in self._records(block):
                if self.layouts:
                    return self._layout(path, block, record), _chain(block, blocks)
                end = block.text.index(record.raw) + len(record.raw)
                after = Block(block.text[end:], record.line + len(record.lines))
                return tuple(self._fields(record)), _chain(after, blocks)
        if self.layouts:
            return self.layouts[0], blocks
        raise DataError(f"a CSV file has a header line, found none in {path}")

    def _layout(self, path: Path, block: Block, first: Record) -> Names:
        by_number = {len(names): names for names in self.layouts}
        records = [first] if self.bad_lines is None else self._records(block)
        for record in records:
            names = by_number.get(len(self._fields(record)))
            if names is not None:
                return names
        raise self._misfit(first, sorted(by_number)).at(_place(path, first.line))

    def _parsed(self, path: Path, names: Names, block: Block) -> Iterator[Chunk]:
        text = block.text
        if text[:1] in b"\r\n" and not text.strip(b"\r\n"):
            return
        if not block.is_open and b"\0" not in text:
            try:
                rows = self._parse(names, text)
            except pa.ArrowInvalid:
                pass
            else:
                # Without bad_lines, the first of such rows is an error when it is used.
                if self.bad_lines is None or len(self.columns.wrong_rows(rows)) == 0:
                    yield Chunk(rows, _PlaceInBlock(self, path, block))
                    return
        lines, skipped = text.splitlines(keepends=True), 0
        while True:
            records = self._read(lines[skipped:], block.line + skipped)
            refused = yield from self._salvaged(path, names, list(records))
            if refused is None:
                return
            # What a stray quote ran together are lines of their own.
            skipped = refused.line + 1 - block.line

    def _parse(self, names: Names, text: bytes) -> pa.RecordBatch:
        # Slots are text, whatever it looks like: "007" stays "007".
        types = dict.fromkeys(self.columns.slots, pa.string())
        types |= dict.fromkeys(self.columns.numbers, pa.float64())
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            pa.csv.ReadOptions(block_size=len(text) + 1, column_names=names, use_threads=False),
            pa.csv.ParseOptions(
                delimiter=self.delimiter,
                quote_char='"' if self.is_quoted else False,
                newlines_in_values=self.is_quoted,
            ),
            pa.csv.ConvertOptions(
                column_types=types,
                include_columns=self.columns.names,
                null_values=NULLS,
                strings_can_be_null=False,
            ),
        )
        (rows,) = table.combine_chunks().to_batches()
        return rows

    def _salvaged(
        self, path: Path, names: Names, records: list[Record]
    ) -> Generator[Chunk, None, Record | None]:
        """Yields the good ones of some records, and refuses the others in order.

        Returns:
            None at the end of the records, or the first that was refused and is
            more than a line.
        """
        pending = [records]
        while pending:
            part = pending.pop()
            if not part:
                continue
            rows, said = self._tried(names, part)
            if rows is not None:
                yield self._kept(path, part, rows)
            elif len(part) > 1:
                pending += reversed(_cut(part, said))
            else:
                (record,) = part
                self._refuse(path, record, self._explained(names, record, said), record.lines[0])
                if len(record.lines) > 1:
                    return record
        return None

    def _tried(self, names: Names, records: list[Record]) -> tuple[pa.RecordBatch | None, str]:
        """Returns the rows of some records, or None and what pyarrow said."""
        raw = b"".join(record.raw for record in records)
        # Both of which pyarrow would take for text.
        if b"\0" in raw or not is_closed(raw, self.delimiter, self.is_quoted):
            return None, ""
        try:
            rows = self._parse(names, raw)
        except pa.ArrowInvalid as error:
            return None, str(error)
        return (rows, "") if rows.num_rows == len(records) else (None, "another number of lines")

    def _kept(self, path: Path, records: list[Record], rows: pa.RecordBatch) -> Chunk:
        """Returns the rows that can be used, and refuses the others."""
        wrong = self.columns.wrong_rows(rows)
        for row in wrong:
            self._refuse(path, records[row], self.columns.fault(rows, row), records[row].raw)
        kept = np.setdiff1d(np.arange(len(records)), wrong, assume_unique=True)
        lines = [records[row].line for row in kept]
        return Chunk(rows.take(pa.array(kept)), _Place(path, lines))

    def _refuse(self, path: Path, record: Record, fault: Fault, raw: bytes) -> None:
        if self.bad_lines is None:
            raise fault.at(_place(path, record.line))
        self.bad_lines.add(path, record.line, fault.reason, raw)

    def _explained(self, names: Names, record: Record, said: str) -> Fault:
        """Returns why pyarrow refuses a record, or else what it said."""
        if b"\0" in record.raw:
            return Fault(
                "a line has no null character, got one",
                "see whether the file was cut short or is in UTF-16",
            )
        if not is_closed(record.raw, self.delimiter, self.is_quoted):
            return Fault(
                "a quoted field ends within 1 MiB, found no closing quote",
                "close the quote, or double it if it belongs to the text",
            )
        fields = self._fields(record)
        if len(fields) != len(names):
            return self._misfit(record, [len(names)])
        for name in self.columns.numbers:
            found = fields[names.index(name)]
            if not _is_number(found):
                is_label = name == self.columns.label
                use = "label" if is_label else "dense column"
                remedy = "mend it" if is_label else "mend it, or read the column as a slot"
                return Fault(
                    f"{use} {name!r} needs a number, got {found!r}",
                    f"{remedy} (booleans are 1 and 0)",
                )
        for name in self.columns.slots:
            text = fields[names.index(name)].encode(errors="surrogateescape")
            if not _is_utf8(text):
                return Fault(
                    f"slot {name!r} needs text in UTF-8, got {text!r}", "convert the file to UTF-8"
                )
        return Fault(
            f"a line is well formed, got what pyarrow refuses ({' '.join(said.split())})",
            "mend or quote what stands there",
        )

    def _misfit(self, record: Record, numbers: list[int]) -> Fault:
        must = f"as many fields as the header, {numbers[0]}"
        if self.layouts:
            must = f"{' or '.join(map(str, numbers))} fields"
        quoting = f"quote fields that hold the delimiter {self.delimiter!r}, or "
        return Fault(
            f"a line has {must}, got {len(self._fields(record))}",
            f"{quoting if self.is_quoted else ''}mend the line",
        )

    def _records(self, block: Block) -> Iterator[Record]:
        return self._read(block.text.splitlines(keepends=True), block.line)

    def _read(self, lines: Sequence[bytes], first: int) -> Iterator[Record]:
        return read_records(lines, first, delimiter=self.delimiter, is_quoted=self.is_quoted)

    def _fields(self, record: Record) -> list[str]:
        return fields_of(record, delimiter=self.delimiter, is_quoted=self.is_quoted)

    @contextmanager
    def _translated(self, path: Path) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            raise DataError(
                f"a CSV file must be readable text, could not read {path}: "
                f"{str(error).rstrip('.')}; write it again, or use read_parquet if it is Parquet"
            ) from error


@dataclass(frozen=True)
class _Place:
    """Where the rows of a chunk stand in their file."""

    path: Path
    lines: Sequence[int]

    def __call__(self, row: int) -> str:
        return _place(self.path, self.lines[row])


@dataclass(frozen=True)
class _PlaceInBlock:
    """The same for a whole block, whose lines are counted on demand."""

    source: CsvSource
    path: Path
    block: Block

    def __call__(self, row: int) -> str:
        return _place(self.path, self.source.lines(self.block)[row])


def _place(path: Path, line: int) -> str:
    return f"{path}, line {line}"


def _chain(first: Block, others: Iterator[Block]) -> Generator[Block, None, None]:
    if first.text:
        yield first
    yield from others


def _cut(records: list[Record], said: str) -> tuple[list[Record], ...]:
    """Returns the pieces of some records of which pyarrow refused one.

    It names the row, for a person to read. A wrong name costs time and nothing else.
    """
    named = re.search(r"Row #(\d+)", said)
    at = int(named[1]) - 1 if named else -1
    if not 0 <= at < len(records):
        at = len(records) // 2
    # Where faults are many, halves cost less than one after the other.
    half = (at + 1 + len(records)) // 2
    return records[:at], records[at : at + 1], records[at + 1 : half], records[half:]


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
