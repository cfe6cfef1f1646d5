"""Calls that are made again until they are answered."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar
from zlib import crc32

from hetero_pipe.client.link import Link
from hetero_pipe.client.patience import Patience
from hetero_pipe.client.transport import Reply
from hetero_pipe.client.transport.grpc import GrpcTransport
from hetero_pipe.errors import HeteroPipeError, ServerError, ServerUnavailable

__all__ = ["Repeated", "Saving"]

Value = TypeVar("Value")

# An attempt that took longer was with a server that answered pings, so its end is a first failure.
# Only calls that wait for other workers do; longer than keep-alive's 40 s, and `ATTEMPT_SECONDS`.
LIVELY_SECONDS = 45.0


class _Attempts:
    """Those of one call: when the last began, on which connection, and how patient it still is."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._patience: Patience | None = None
        self.number = 0

    def begin(self) -> GrpcTransport:
        """Returns the connection for the next one."""
        self.number += 1
        self._began = self._link.retry.clock()
        self._transport = self._link.transport
        return self._transport

    def mend(self, error: HeteroPipeError) -> None:
        """Returns when there may be another. Raises as `Link.mend` does."""
        was_lively = self._link.retry.clock() - self._began > LIVELY_SECONDS
        if self._patience is None or was_lively:
            self._patience = Patience(self._link.retry)
        self._link.mend(self._transport, error, self._patience)

    def end(self) -> None:
        """Notes that one was answered."""
        if self._patience is not None:
            self._link.end(self._patience)


class Repeated(Reply[Value]):
    """A call that is made again until it is answered.

    Args:
        link: To the server.
        start: Makes the call on a connection; safe to repeat.

    Attributes:
        num_attempts: Times that it was made.
    """

    def __init__(self, link: Link, start: Callable[[GrpcTransport], Reply[Value]]) -> None:
        self._link = link
        self._start = start
        self._attempts = _Attempts(link)
        self._attempt()

    @property
    def num_attempts(self) -> int:
        """How often it was made."""
        return self._attempts.number

    def _attempt(self) -> None:
        transport = self._attempts.begin()
        try:
            self._link.check(transport)
            self._reply = self._start(transport)
        except ServerUnavailable as error:  # broken, or closed as it is made anew
            self._reply = _Failed(error)

    def result(self) -> Value:
        while True:
            try:
                value = self._reply.result()
            except HeteroPipeError as error:
                self._attempts.mend(error)
            else:
                self._attempts.end()
                return value
            self._attempt()


@dataclass(frozen=True)
class _Failed(Reply[Value]):
    """A call that could not be made."""

    error: HeteroPipeError

    def result(self) -> Value:
        raise self.error


class Saving:
    """A save that goes on where it broke off.

    Snapshots that were read whole are left out of the next attempt, and the bytes
    that were read of one are skipped, if they are the same again: those of rows that
    nobody has pushed to since, and of frozen ones.

    Args:
        link: To the server.
        start: Asks for the snapshots on a connection.
    """

    def __init__(
        self, link: Link, start: Callable[[GrpcTransport], Iterator[tuple[str, Iterable[bytes]]]]
    ) -> None:
        self._link = link
        self._start = start
        self._attempts = _Attempts(link)
        self._read: set[str] = set()  # names of snapshots that were begun
        self._name: str | None = None  # of the one that is being read
        self._size, self._crc = 0, 0  # of its bytes so far
        self._begin()

    def _begin(self) -> None:
        self._snapshots = self._start(self._attempts.begin())
        self._pieces: Iterator[bytes] = iter(())

    def next_name(self) -> str | None:
        """Returns the name of the next snapshot, None if that was the last."""
        self._name = None
        return self._patiently(self._find_next)

    def _find_next(self) -> str | None:
        for name, pieces in self._snapshots:
            if name not in self._read:
                self._read.add(name)
                self._name, self._pieces = name, iter(pieces)
                self._size, self._crc = 0, 0
                return name
        return None

    def pieces(self) -> Iterator[bytes]:
        """Yields what is left of a snapshot."""
        while piece := self._patiently(lambda: next(self._pieces, b"")):
            self._size += len(piece)
            self._crc = crc32(piece, self._crc)
            yield piece

    def _patiently(self, read: Callable[[], Value]) -> Value:
        is_broken = False
        while True:
            try:
                if is_broken:
                    self._resume()
                value = read()
            except HeteroPipeError as error:
                self._attempts.mend(error)
                is_broken = True
            else:
                self._attempts.end()
                return value

    def _resume(self) -> None:
        """Asks again, and reads up to where it broke off.

        Raises:
            ServerError: What was read is there no more.
        """
        self._begin()
        if self._name is None:
            return
        for name, pieces in self._snapshots:
            if name != self._name:
                continue
            self._pieces = iter(pieces)
            left, crc = self._size, 0
            while left and (piece := next(self._pieces, b"")):
                crc = crc32(piece[:left], crc)
                if len(piece) > left:
                    self._pieces = chain([piece[left:]], self._pieces)
                left -= min(left, len(piece))
            if not left and crc == self._crc:
                return
        raise ServerError(
            f"a snapshot is of rows that do not change while it is read, got others of "
            f"{self._name} after the connection to server {self._link.address} broke; save again"
        )
