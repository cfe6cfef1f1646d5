"""The records of a text one by one, for a block that has a fault."""

import csv
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["Record", "fields_of", "read_records"]


class Record(NamedTuple):
    """A line of a table, or several if a quoted field holds newlines.

    Attributes:
        line: The line of the file, from 1, on which it begins.
        lines: Its lines, with what ends them.
    """

    line: int
    lines: tuple[bytes, ...]

    @property
    def raw(self) -> bytes:
        """The record as it stands in the file."""
        return b"".join(self.lines)


def read_records(
    lines: Sequence[bytes], first: int, *, delimiter: str, is_quoted: bool
) -> Iterator[Record]:
    """Yields the records of some lines that are not blank.

    Args:
        lines: With what ends them.
        first: The line of the file that is the first.
        delimiter: One ASCII character.
        is_quoted: Whether quotes guard delimiters and newlines.
    """
    if not is_quoted or not any(b'"' in line for line in lines):
        for number, line in enumerate(lines, first):
            if line.strip(b"\r\n"):
                yield Record(number, (line,))
        return
    stop = 0
    reader = csv.reader(_texts(lines), delimiter=delimiter)
    for fields in reader:
        start, stop = stop, reader.line_num
        if fields:
            yield Record(first + start, tuple(lines[start:stop]))


def fields_of(record: Record, *, delimiter: str, is_quoted: bool) -> list[str]:
    """Returns the fields; bytes that are no UTF-8 as lone surrogates, which no text of it has."""
    reader = csv.reader(
        _texts(record.lines),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
    )
    return next(reader)


def _texts(lines: Sequence[bytes]) -> Iterator[str]:
    csv.field_size_limit(2**31 - 1)  # pyarrow has none; it is the module's, for all readers
    # Before 3.11, the csv module refuses a null character.
    return (line.decode(errors="surrogateescape").replace("\0", "\ufffd") for line in lines)
