"""A journal: what a server has changed, one numbered record a change, in files that only grow.

docs/journal_format.md describes the files. A record that `append` has returned is with the
operating system: it survives the end of the process, however that comes, but no power loss.
"""

import logging
import mmap
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_server.keys import crc32c

__all__ = ["Journal", "JournalError", "Piece", "Record", "first_number", "replay"]

logger = logging.getLogger(__name__)

Piece = bytes | NDArray[Any]
"""Bytes of a record, or a contiguous array of any type."""

MAGIC = b"HPJ1"
ALIGNMENT = 64  # bytes: where each record and each piece starts, so that arrays are read in place

# magic, CRC-32C of all behind it, number, length with this header, kind, number of pieces; the
# size of each piece follows, 8 bytes each
_HEADER = struct.Struct("<4sIQQII")
_CHECKED = 8  # bytes: what the CRC is of starts here

_MAX_BUFFERS = os.sysconf("SC_IOV_MAX")

REMEDY = (
    "put back the folder as it was, or start the server with an empty --data-dir and load a "
    "checkpoint of the trainer"
)


class JournalError(Exception):
    """A journal is damaged, or cannot be written; the message names the file."""


@dataclass(frozen=True, eq=False)
class Record:
    """One change, as it was appended.

    Attributes:
        number: Of the record, from 1, without gaps.
        kind: What its writer calls it.
        pieces: Its bytes, in the file's memory map: they can be read while
            they are referred to, and each starts at a multiple of 64 bytes.
    """

    number: int
    kind: int
    pieces: tuple[memoryview, ...]


class Journal:
    """Appends records to the newest segment of a folder. For one thread at a time.

    A context manager that closes the file.

    Invariants:
        1. The files hold whole records alone, numbered without a gap, but for a
           last one that a kill may have cut short.
        2. A segment is named for its first record, and begins where the one
           before it ends.
        3. An append that raises has left nothing behind, and may be tried again.

    Args:
        folder: Of the segments; created if missing.
        next_number: Of the first record that is appended. It begins a segment.

    Raises:
        JournalError: The segment is there and has records.
        OSError: The folder cannot be written.

    Attributes:
        next_number: Of the record that is appended next.
    """

    def __init__(self, folder: Path, *, next_number: int = 1) -> None:
        self._folder = folder
        self.next_number = next_number
        folder.mkdir(parents=True, exist_ok=True)
        self._sizes = {first: path.stat().st_size for first, path in _segments(folder)}
        self._file = self._open()

    def _open(self) -> int:
        """Returns a descriptor of the segment that begins with the next record."""
        path = self._folder / _name_of(self.next_number)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if os.fstat(file).st_size:
            os.close(file)
            raise JournalError(f"a segment begins once, got records in {path}; replay them first")
        self._first, self._end = self.next_number, 0
        self._is_whole = True
        self._sizes[self._first] = 0
        return file

    @property
    def _path(self) -> Path:
        return self._folder / _name_of(self._first)

    def append(self, kind: int, pieces: Sequence[Piece]) -> int:
        """Writes one record, with one call of the operating system; returns its number.

        Raises:
            JournalError: It could not be written whole; nothing of it is left.
                Where the disk was full, a later call may succeed.
        """
        if not self._is_whole:
            self._cut()
        number = self.next_number
        buffers = _encode(number, kind, pieces)
        try:
            self._write(buffers)
        except OSError as error:
            self._is_whole = False
            self._cut()
            raise JournalError(
                f"a change must be in the journal before it is made, got {error.strerror} for "
                f"{self._path}; nothing was changed, make room on the disk"
            ) from error
        self._end += sum(map(len, buffers))
        self._sizes[self._first] = self._end
        self.next_number += 1
        return number

    def _write(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Writes all; one call does, unless a signal, a full disk or 2 GiB cut it short."""
        left = list(buffers)
        while left:
            done = os.writev(self._file, left[:_MAX_BUFFERS])
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if done:
                left[0] = memoryview(left[0])[done:]

    def _cut(self) -> None:
        """Cuts the segment behind its last whole record."""
        try:
            os.ftruncate(self._file, self._end)
        except OSError as error:
            raise JournalError(
                f"a part of a record must be cut off, got {error.strerror} for "
                f"{self._path}; nothing was changed, restart the server, which cuts it"
            ) from error
        self._is_whole = True

    def rotate(self) -> int:
        """Begins a segment, unless the newest has no records; returns its first number.

        Raises:
            OSError, JournalError: It cannot be; appends go on in the one before.
        """
        if not self._is_whole:  # a segment ends with a whole record, for others follow it
            self._cut()
        if self._end:
            before = self._file
            self._file = self._open()
            os.close(before)
        return self.next_number

    def drop_before(self, number: int) -> None:
        """Removes the segments whose records are all below `number`, from the oldest on."""
        firsts = sorted(self._sizes)
        for first, following in pairwise(firsts):
            if following > number:
                return
            (self._folder / _name_of(first)).unlink(missing_ok=True)
            del self._sizes[first]

    def size_since(self, number: int) -> int:
        """Returns the bytes of the segments that begin at or after `number`."""
        return sum(size for first, size in self._sizes.items() if first >= number)

    def close(self) -> None:
        """Closes the file; what was appended is in it."""
        os.close(self._file)
        self._file = -1  # what still appends is refused, and hits no other file

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def first_number(folder: Path) -> int | None:
    """Returns the number of the oldest record that a journal may have; None without a segment."""
    segments = _segments(folder)
    return segments[0][0] if segments else None


def replay(folder: Path, *, start: int = 1) -> Iterator[Record]:
    """Yields the records of a journal from number `start` on, in their order.

    What a kill left of a record at the end of the last segment is cut off, with a
    warning: its append did not return.

    Args:
        folder: Of the segments.
        start: With which a segment begins: 1, or where a `rotate` was.

    Raises:
        JournalError: A segment is missing or damaged. What was yielded before
            is right.
    """
    segments = _segments(folder)
    if not segments and start == 1:
        return
    if start not in (first for first, _ in segments):
        held = ", ".join(path.name for _, path in segments) or "no segment"
        raise JournalError(
            f"a journal must have the segment {_name_of(start)}, got {held} in {folder}; {REMEDY}"
        )
    number = start
    last, _ = segments[-1]
    for first, path in segments:
        if first < start:
            continue
        if first != number:
            raise JournalError(
                f"a journal's records must follow one another, got record {first} at the start of "
                f"{path} where record {number} is due; a segment is missing: {REMEDY}"
            )
        for record in _records(path, first, is_last=first == last):
            yield record
            number += 1


def _records(path: Path, first: int, *, is_last: bool) -> Iterator[Record]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return
        data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)  # closed with its last view
    view, start, number = memoryview(data), 0, first
    while start < size:
        end = _end_of_record(view, start)
        if end is None:
            if not is_last or _has_record(data, view, start + 1):
                raise JournalError(
                    f"a journal must hold whole records, got a damaged one, number {number} at "
                    f"byte {start} of {path}, with others behind it; {REMEDY}"
                )
            logger.warning(
                "cut %d bytes off %s: they are a part of record %d, as a kill in the middle of "
                "its append leaves; it was not answered",
                size - start,
                path,
                number,
            )
            os.truncate(path, start)
            return
        record = _decode(view[start:end])
        if record.number != number:
            raise JournalError(
                f"a journal's records must follow one another, got number {record.number} at byte "
                f"{start} of {path}, where {number} is due; {REMEDY}"
            )
        yield record
        start, number = end, number + 1


def _encode(number: int, kind: int, pieces: Sequence[Piece]) -> list[bytes | memoryview]:
    """Returns the buffers of a record, one after the other."""
    views = [_bytes_of(piece) for piece in pieces]
    sizes = struct.pack(f"<{len(views)}Q", *map(len, views))
    head_length = _padded(_HEADER.size + len(sizes))
    length = head_length + sum(_padded(len(view)) for view in views)
    head = bytearray(head_length)
    _HEADER.pack_into(head, 0, MAGIC, 0, number, length, kind, len(views))
    head[_HEADER.size : _HEADER.size + len(sizes)] = sizes
    buffers: list[bytes | memoryview] = [memoryview(head)]
    for view in views:
        buffers += [view, bytes(_padded(len(view)) - len(view))]
    crc = crc32c(memoryview(head)[_CHECKED:])
    for buffer in buffers[1:]:
        crc = crc32c(buffer, crc)
    struct.pack_into("<I", head, len(MAGIC), crc)
    return [buffer for buffer in buffers if len(buffer)]


def _end_of_record(view: memoryview, start: int) -> int | None:
    """Returns where the record that starts here ends, None if there is no whole one."""
    if len(view) - start < _HEADER.size:
        return None
    magic, crc, _, length, _, num_pieces = _HEADER.unpack_from(view, start)
    end: int = start + length
    if magic != MAGIC or end > len(view) or length < _HEADER.size + 8 * num_pieces:
        return None
    return end if crc32c(view[start + _CHECKED : end]) == crc else None


def _has_record(data: mmap.mmap, view: memoryview, start: int) -> bool:
    """Whether a whole record is anywhere behind `start`."""
    at = data.find(MAGIC, start)
    while at >= 0:
        if at % ALIGNMENT == 0 and _end_of_record(view, at) is not None:
            return True
        at = data.find(MAGIC, at + 1)
    return False


def _decode(view: memoryview) -> Record:
    """Returns a record whose CRC was right."""
    _, _, number, _, kind, num_pieces = _HEADER.unpack_from(view)
    sizes = struct.unpack_from(f"<{num_pieces}Q", view, _HEADER.size)
    pieces, start = [], _padded(_HEADER.size + 8 * num_pieces)
    for size in sizes:
        pieces.append(view[start : start + size])
        start += _padded(size)
    return Record(number, kind, tuple(pieces))


def _bytes_of(piece: Piece) -> memoryview:
    if isinstance(piece, np.ndarray):
        return piece.reshape(-1).view(np.uint8).data
    return memoryview(piece)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _name_of(first: int) -> str:
    return f"journal-{first:020d}.log"


def _segments(folder: Path) -> list[tuple[int, Path]]:
    """Returns the number of the first record and the path of each segment, in order."""
    if not folder.is_dir():
        return []
    found = ((re.fullmatch(r"journal-(\d{20})\.log", path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in found if match)
