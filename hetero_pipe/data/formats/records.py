"""The records of a text, one by one: slow, for a block that has a fault."""

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Record", "read_lines", "read_records"]


@dataclass(frozen=True)
class Record:
    """A line of a table, or several if a quoted field holds newlines.

    Attributes:
        line: The line of the file, from 1, on which it begins.
        fields: Bytes that are no UTF-8 are lone surrogates, which no text of
            UTF-8 has.
        lines: Its lines, with what ends them.
    """

    line: int
    fields: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def raw(self) -> bytes:
        """The record as it stands in the file."""
        return "".join(self.lines).encode(errors="surrogateescape")


def read_lines(text: bytes) -> list[str]:
    """Returns the lines of a text, with what ends them, as `read_records` takes them."""
    return list(io.StringIO(text.decode(errors="surrogateescape"), newline=""))


def read_records(
    lines: Iterable[str], first: int, *, delimiter: str, is_quoted: bool
) -> Iterator[Record]:
    """Yields the records of some lines that are not blank.

    Args:
        lines: From `read_lines`.
        first: The line of the file that is the first.
        delimiter: One ASCII character.
        is_quoted: Whether quotes guard delimiters and newlines.
    """
    csv.field_size_limit(2**31 - 1)  # pyarrow has none; it is the module's, for all readers
    held: list[str] = []

    def each_held() -> Iterator[str]:
        for line in lines:
            held.append(line)
            # Before 3.11, the csv module refuses a null character.
            yield line.replace("\0", "\ufffd")

    records = csv.reader(
        each_held(),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
    )
    for fields in records:
        if fields:
            yield Record(first, tuple(fields), tuple(held))
        first += len(held)
        held.clear()
