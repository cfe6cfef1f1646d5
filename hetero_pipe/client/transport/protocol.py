"""What a transport does for one server.

Rows and gradients go over the data plane, once a step; tables, statistics and
snapshots over the control plane. They are two, so that a faster data plane can
stand beside the same control plane.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ps_server.route import Route
from ps_server.spans import Spans
from ps_server.spec import TableSpec
from ps_server.store import Ask, Lease, TableStats

Value_co = TypeVar("Value_co", covariant=True)

Keys = Mapping[str, NDArray[np.uint64]]
"""Keys `[n]` by table."""

Gradients = Mapping[str, tuple[NDArray[np.uint64], NDArray[np.float32]]]
"""Keys `[n]` and gradients `[n, dim]` by table."""


class TraceAction(Enum):
    """What a server is asked for its trace."""

    CLOCK = "CLOCK"
    START = "START"
    STOP = "STOP"


@dataclass(frozen=True, eq=False)
class IncomingMove:
    """Buckets that come to a server.

    Attributes:
        move: Number of the move.
        buckets: Which, `[n]`.
        versions: Of the buckets, once it has come whole, `[n]`; before, `[0]`.
    """

    move: int
    buckets: NDArray[np.uint16]
    versions: NDArray[np.uint32]


@dataclass(frozen=True)
class ServerStats:
    """What a server is and holds.

    Attributes:
        id: What the server calls itself.
        version: Of ps_server there.
        route: Of its tables; None while it holds none.
        tables: By name.
        is_durable: Whether it comes back, after a kill, with all that it has answered.
        share: Fingerprint of the buckets that it owns, 0 while it holds no table. The
            route may say more: what it was given, and has not taken yet.
        incoming: Moves to it that have begun and not ended.
        num_members: Workers that have joined and not left.
    """

    id: str
    version: str
    route: Route | None
    tables: Mapping[str, TableStats]
    is_durable: bool = False
    share: int = 0
    incoming: tuple[IncomingMove, ...] = ()
    num_members: int = 0


@dataclass(frozen=True)
class ServerTrace:
    """What a server tells of when it did what.

    Attributes:
        clock: Seconds of its own clock, read as it answered.
        spans: What it recorded, on that clock; None if it was not asked to.
    """

    clock: float
    spans: Spans | None


class Reply(Protocol[Value_co]):
    """What a server will have answered: all servers are asked before one is waited for."""

    def result(self) -> Value_co:
        """Returns the answer; blocks until it is there or its deadline has passed.

        Raises:
            ServerError: The server refused, failed or did not answer.
        """


class DataPlane(Protocol):
    """Rows from and gradients to one server. Called from any thread."""

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
        """Asks for the rows `[n, dim]` of keys of each table.

        With `after_step`, the server waits until no worker's clock is below it;
        `rank` is who asks. `step` is what a trace calls it, from 1; 0 is of no step.
        """

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
        """Sends gradients; the reply says that they are applied.

        With `rank`, they are the step of a worker that has joined; with `weight`
        too, its part of everybody's step. `worker`, a client's number, and
        `sequence`, from 1, tell the push from all others: one that comes again is
        answered and left alone. 0 is of nobody.
        """

    def close(self) -> None:
        """Gives up the connection; replies that are awaited fail."""


class ControlPlane(Protocol):
    """Tables, snapshots and workers of one server. Called from any thread."""

    def stats(self) -> Reply[ServerStats]:
        """Asks what the server is and holds."""

    def create_table(self, spec: TableSpec, route: Route) -> Reply[TableStats]:
        """Creates a table, or attaches to the one there."""

    def drop_table(self, name: str) -> Reply[None]:
        """Drops a table; one that is not there is no error."""

    def freeze(self, route: int) -> Reply[int]:
        """Keeps the rows of all tables as they are; the reply is the number of the freeze."""

    def release(self, freeze: int) -> Reply[None]:
        """Lets go what a freeze kept; one that is not kept is no error."""

    def save(
        self, route: int, table: str, *, freeze: int | None = None
    ) -> Iterator[tuple[str, Iterable[bytes]]]:
        """Yields file name and content of each snapshot, the content in pieces.

        With `freeze`, its rows; else those of now.
        """

    def load(self, route: int, table: str, paths: Sequence[Path]) -> Reply[int]:
        """Replaces the rows of a table on this server; the reply is how many it then holds."""

    def trace(self, action: TraceAction) -> Reply[ServerTrace]:
        """Begins or ends the recording of spans, or asks for the time alone."""

    def join(self, rank: int, *, num_workers: int, name: str, worker: int = 0) -> Reply[bool]:
        """Makes this process a worker that others wait for, until it is gone.

        The reply says whether it was one before, by its number `worker`, and is back.
        """

    def leave(self) -> None:
        """Breaks what `join` began, without a goodbye."""

    def set_clock(self, route: int, rank: int, first_step: int | None) -> Reply[None]:
        """Starts a worker's clock after so many steps; None stops it."""

    def goodbye(self, route: int, rank: int) -> Reply[None]:
        """Says that a worker leaves for good."""

    def take(self, route: Route) -> Reply[Route]:
        """Tells a route, by which the server takes what it was given; returns what it knows."""


class RangePlane(Protocol):
    """Ranges of batches, on one server. Called from any thread; all is safe to repeat."""

    def lease(
        self, route: int, table: str, ask: Ask, *, wait_seconds: float
    ) -> Reply[tuple[Lease, int]]:
        """Asks for a range of a table's run; the reply has the `worker` of its pushes, too."""

    def renew_lease(self, holder: int, *, seconds: float) -> Reply[None]:
        """Says that a worker lives, and how long it may be silent."""

    def end_lease(
        self, table: str, number: int, *, holder: int, num_batches: int | None
    ) -> Reply[None]:
        """Says that a range is complete, and how long it is; None gives it back."""

    def progress(self, worker: int) -> Reply[int | None]:
        """Asks for the last push by a number that is applied; None if that has finished."""

    def finish(self, first: int, last: int) -> Reply[None]:
        """Says that no push by the numbers from `first` to `last` is to be applied any more."""

    def set_rows(
        self,
        route: int,
        table: str,
        keys: NDArray[np.uint64],
        weights: NDArray[np.float32],
        *,
        worker: int,
    ) -> Reply[None]:
        """Gives a table these rows `[n, dim]` and no others, if `worker` has not finished."""
