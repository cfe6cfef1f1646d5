"""Riding through: calls to a durable server that is away wait for it and are made again.

A durable server comes back with all that it has answered, on any address. So a
call that failed because the server is away is made again, and a push that comes
twice is applied once: its client's number and sequence tell.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client.link import Link, Membership
from hetero_pipe.client.repeat import Repeated, Saving
from hetero_pipe.client.transport import (
    Gradients,
    Keys,
    Reply,
    ServerStats,
    ServerTrace,
    TraceAction,
)
from hetero_pipe.client.transport.grpc import GrpcTransport
from hetero_pipe.errors import RouteMismatch, ServerError, ServerUnavailable
from ps_server.route import Route
from ps_server.spec import TableSpec
from ps_server.store import Ask, Lease, TableStats

__all__ = ["RetryingTransport"]

Value = TypeVar("Value")


class RetryingTransport:
    """Both planes to one durable server, which may be away for a while.

    Every call is made again while the server is away, or its disk is full, until
    `Retry.seconds` after the call's first failure. All are safe to repeat:

    - a pull and a query change nothing that counts;
    - a push is known by its worker and sequence, and is applied once;
    - a table that was created is attached to, one that was dropped is not there;
    - a worker that has joined is found by its number; a clock is set to where it is;
    - a load replaces all rows, and a goodbye that was heard needs no second answer;
    - a freeze that nobody knows of makes room for the next, and one is gone with its server;
    - a range that was leased and is not known of is leased again; one that has ended, and a number
      that has finished, stay so; rows are set in the name of a number, until that has finished;
    - a save goes on where it broke off, if the rows there are still the same.

    Spans that a server recorded for a trace are lost with its process.

    Args:
        link: To the server; owned from now on.
    """

    def __init__(self, link: Link) -> None:
        self._link = link

    def pull(
        self,
        route: int,
        keys: Keys,
        *,
        insert: bool,
        rank: int | None = None,
        after_step: int | None = None,
        step: int = 0,
    ) -> Reply[list[NDArray[np.float32]]]:
        return self._call(
            lambda t: t.pull(
                route, keys, insert=insert, rank=rank, after_step=after_step, step=step
            )
        )

    def push(
        self,
        route: int,
        gradients: Gradients,
        *,
        step: int,
        rank: int | None = None,
        weight: float | None = None,
        worker: int = 0,
        sequence: int = 0,
    ) -> Reply[None]:
        return self._call(
            lambda t: t.push(
                route,
                gradients,
                step=step,
                rank=rank,
                weight=weight,
                worker=worker,
                sequence=sequence,
            )
        )

    def stats(self) -> Reply[ServerStats]:
        return self._call(lambda t: t.stats())

    def create_table(self, spec: TableSpec, route: Route) -> Reply[TableStats]:
        return self._call(lambda t: t.create_table(spec, route))

    def drop_table(self, name: str) -> Reply[None]:
        return self._call(lambda t: t.drop_table(name))

    def freeze(self, route: int) -> Reply[int]:
        return self._call(lambda t: t.freeze(route))

    def release(self, freeze: int) -> Reply[None]:
        return self._call(lambda t: t.release(freeze))

    def save(
        self, route: int, table: str, *, freeze: int | None = None
    ) -> Iterator[tuple[str, Iterable[bytes]]]:
        saving = Saving(self._link, lambda t: t.save(route, table, freeze=freeze))
        while (name := saving.next_name()) is not None:
            yield name, saving.pieces()
            for _ in saving.pieces():  # what the caller did not want of this one
                pass

    def load(self, route: int, table: str, paths: Sequence[Path]) -> Reply[int]:
        return self._call(lambda t: t.load(route, table, paths))

    def trace(self, action: TraceAction) -> Reply[ServerTrace]:
        return self._call(lambda t: t.trace(action))

    def join(self, rank: int, *, num_workers: int, name: str, worker: int = 0) -> Reply[bool]:
        membership = Membership(rank, num_workers, name, worker)
        self._link.set_membership(membership)
        return _Joining(
            self._link, self._call(lambda t: self._link.join(t, membership)), membership
        )

    def leave(self) -> None:
        self._link.set_membership(None)
        self._link.transport.leave()

    def set_clock(self, route: int, rank: int, first_step: int | None) -> Reply[None]:
        return self._call(lambda t: t.set_clock(route, rank, first_step))

    def goodbye(self, route: int, rank: int) -> Reply[None]:
        self._link.set_membership(None)  # one that may have said it does not join again
        return _Goodbye(self._call(lambda t: t.goodbye(route, rank)))

    def take(self, route: Route) -> Reply[Route]:
        return self._call(lambda t: t.take(route))

    def lease(
        self, route: int, table: str, ask: Ask, *, wait_seconds: float
    ) -> Reply[tuple[Lease, int]]:
        return self._call(lambda t: t.lease(route, table, ask, wait_seconds=wait_seconds))

    def renew_lease(self, holder: int, *, seconds: float) -> Reply[None]:
        return self._call(lambda t: t.renew_lease(holder, seconds=seconds))

    def end_lease(
        self, table: str, number: int, *, holder: int, num_batches: int | None
    ) -> Reply[None]:
        return self._call(
            lambda t: t.end_lease(table, number, holder=holder, num_batches=num_batches)
        )

    def progress(self, worker: int) -> Reply[int | None]:
        return self._call(lambda t: t.progress(worker))

    def finish(self, first: int, last: int) -> Reply[None]:
        return self._call(lambda t: t.finish(first, last))

    def set_rows(
        self,
        route: int,
        table: str,
        keys: NDArray[np.uint64],
        weights: NDArray[np.float32],
        *,
        worker: int,
    ) -> Reply[None]:
        return self._call(lambda t: t.set_rows(route, table, keys, weights, worker=worker))

    def close(self) -> None:
        self._link.close()

    def _call(self, start: Callable[[GrpcTransport], Reply[Value]]) -> Repeated[Value]:
        return Repeated(self._link, start)


@dataclass(frozen=True)
class _Joining(Reply[bool]):
    """A `join`. Until it is answered, a server need not know who comes back."""

    link: Link
    call: Reply[bool]
    membership: Membership

    def result(self) -> bool:
        try:
            is_back = self.call.result()
        except BaseException:
            self.link.set_membership(None)
            raise
        self.link.confirm(self.membership)
        return is_back


@dataclass(frozen=True)
class _Goodbye(Reply[None]):
    """A goodbye; a server that heard it may have ended the job, and knows no worker then."""

    call: Repeated[None]

    def result(self) -> None:
        try:
            self.call.result()
        except (ServerUnavailable, RouteMismatch):
            raise
        except ServerError:
            if self.call.num_attempts == 1:
                raise
