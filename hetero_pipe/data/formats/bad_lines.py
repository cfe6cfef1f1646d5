"""Where the lines go that a tolerant reader leaves out."""

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

from hetero_pipe.errors import ConfigError, DataError

__all__ = ["BadLines"]


@dataclass(frozen=True, eq=False)
class BadLines:
    """A side file of bad lines, each in it once however often it is read. Thread safe.

    A line of it is the file, the line, the reason and, from there to its end, the
    raw line as it stands in the file, separated by tabs. A first line names these
    columns.

    Attributes:
        path: The side file, which is replaced.
        limit: Bad lines that are let pass, at least 0.

    Raises:
        ConfigError: `limit` is negative, or the file cannot be written.
    """

    path: Path = field(compare=False)  # a run may be resumed with another, and a higher limit
    limit: int = field(compare=False)
    _seen: set[tuple[Path, int]] = field(default_factory=set, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.limit < 0:
            raise ConfigError(f"max_bad_lines is at least 0, got max_bad_lines={self.limit}")
        self._write("wb", b"file\tline\treason\traw\n")

    def add(self, path: Path, line: int, reason: str, raw: bytes) -> None:
        r"""Writes down a bad line, unless it is there.

        Args:
            path: Its file.
            line: From 1.
            reason: One line without tabs.
            raw: The line. A newline in it, as a quoted field may hold, is
                written as `\n`.

        Raises:
            DataError: There are more than `limit`.
            ConfigError: The side file cannot be written.
        """
        with self._lock:
            if (path, line) not in self._seen:
                text = raw.rstrip(b"\r\n").replace(b"\r", b"\\r").replace(b"\n", b"\\n")
                place = os.fsencode(path) + f"\t{line}\t{reason}\t".encode(errors="replace")
                self._write("ab", place + text + b"\n")
                self._seen.add((path, line))
            if len(self._seen) > self.limit:
                raise DataError(
                    f"at most max_bad_lines={self.limit} lines are left out, found "
                    f"{len(self._seen)}, the last at {path}, line {line}: {reason}; "
                    f"{self.path} has them all: mend them, or raise max_bad_lines"
                )

    def _write(self, mode: str, text: bytes) -> None:
        try:
            with self.path.open(mode) as file:
                file.write(text)
        except OSError as error:
            raise ConfigError(
                f"bad_lines names a file to write, could not write {self.path}: {error.strerror}"
            ) from error
