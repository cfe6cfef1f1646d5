"""Catalog: the tables of a server by name, and the buckets of them that are here."""

import dataclasses
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps_server.route import Route, ServerRef, share_fingerprint
from ps_server.spec import TableSpec
from ps_server.table import Table

__all__ = [
    "NO_IDS",
    "Catalog",
    "RouteMismatch",
    "SpecMismatch",
    "StoreError",
    "TableNotFound",
    "TableStats",
]

logger = logging.getLogger(__name__)

NO_IDS: Mapping[str, int] = {}


class StoreError(Exception):
    """A store refused a request; nothing changed."""


class TableNotFound(StoreError):
    """The store holds no table of that name."""


class SpecMismatch(StoreError):
    """The store holds a table of that name with another spec."""


class RouteMismatch(StoreError):
    """The store owns other buckets than the request says, or serves with another set of servers."""


@dataclass(frozen=True)
class TableStats:
    """What a table holds on one server.

    Attributes:
        spec: What the table is.
        num_rows: Rows on this server.
        memory_bytes: Of rows, optimizer state and index on this server.
        last_step: The largest step pushed, 0 before the first.
        id: Drawn at random when the table was created, never 0: a table that
            was dropped and created anew is another.
    """

    spec: TableSpec
    num_rows: int
    memory_bytes: int
    last_step: int
    id: int


class Catalog:
    """Tables by name. All methods may be called from any thread.

    A catalog takes the route of its first table, and its *share* of that, the
    buckets that this server owns, until its last table is dropped. Requests that
    take it to own others are refused. A route is knowledge, and grows with what
    others tell; the share changes by `give` and `take` alone, for a server that
    is said to own a bucket may not have its rows yet.

    Args:
        server_id: Of this server.
    """

    def __init__(self, server_id: str) -> None:
        self._server_id = server_id
        self._lock = threading.Lock()  # guards all below, never held during table work
        self._tables: dict[str, Table] = {}
        self._ids: dict[str, int] = {}
        self._route: Route | None = None
        self._share: NDArray[np.intp] = np.empty(0, np.intp)
        self._fingerprint = 0  # of the share

    @property
    def route(self) -> Route | None:
        """What is known of who owns which bucket, None while there is no table."""
        return self._route

    @property
    def share(self) -> NDArray[np.intp] | None:
        """The buckets that this server owns, ascending, None while there is no table."""
        with self._lock:
            return None if self._route is None else self._share

    def stats(self) -> list[TableStats]:
        """Returns what each table holds, by name."""
        with self._lock:
            tables = [(table, self._ids[name]) for name, table in sorted(self._tables.items())]
        return [_stats_of(table, table_id) for table, table_id in tables]

    def holds(self, spec: TableSpec, route: Route) -> bool:
        """Returns whether a table is there already.

        Raises:
            SpecMismatch: A table of that name with another spec is there.
            RouteMismatch: The tables here were created on other servers, or the
                route is not told yet what has moved.
            ValueError: This server is not in the route.
        """
        with self._lock:
            owned = route.buckets_of(self._server_id)
            self._merged(route)
            if self._route is not None:
                self._check(share_fingerprint(self._server_id, owned))
            table = self._tables.get(spec.name)
            if table is not None and table.spec != spec:
                raise SpecMismatch(_difference(table.spec, spec))
            return table is not None

    def create(self, spec: TableSpec, route: Route, *, table_id: int) -> None:
        """Creates a table that `holds` has not found, and learns what its route tells."""
        with self._lock:
            assert spec.name not in self._tables
            if self._route is None:
                self._own(route.buckets_of(self._server_id))
            self._route = self._merged(route)
            self._tables[spec.name] = Table(spec)
            self._ids[spec.name] = table_id
        optimizer = type(spec.optimizer).__name__
        logger.info("created table %s, dim %d, %s", spec.name, spec.dim, optimizer)

    def table(self, name: str) -> Table:
        """Returns a table that is here."""
        with self._lock:
            return self._tables[name]

    def stats_of(self, name: str) -> TableStats:
        """Returns what one table holds."""
        with self._lock:
            table, table_id = self._tables[name], self._ids[name]
        return _stats_of(table, table_id)

    def drop(self, name: str) -> None:
        """Drops a table; one that is not there is no error."""
        with self._lock:
            if self._tables.pop(name, None) is not None:
                logger.info("dropped table %s", name)
            if not self._tables:
                self._route = None

    def __contains__(self, name: str) -> bool:
        """Returns whether a table of that name is here."""
        return name in self._tables

    def find(
        self, share: int, names: Sequence[str] | Mapping[str, object], ids: Mapping[str, int]
    ) -> tuple[list[Table], NDArray[np.intp]]:
        """Returns tables, and the buckets of them that are here, ascending.

        Args:
            share: Fingerprint of what the caller takes this server to own.
            names: Of the tables.
            ids: Of those that are meant; one that is not named may be any.

        Raises:
            TableNotFound: There is no such table, or it is another by id.
            RouteMismatch: This server owns other buckets.
        """
        with self._lock:
            tables = []
            for name in names:
                if name not in self._tables:
                    held = ", ".join(sorted(self._tables)) or "none"
                    raise TableNotFound(
                        f"table {name!r} must be created first, this server holds {held}; "
                        "a server that was restarted starts empty"
                    )
                if ids.get(name, self._ids[name]) != self._ids[name]:
                    raise TableNotFound(
                        f"table {name!r} must be the one that was attached to, got one that was "
                        "created since; another trainer dropped it, with fresh=True (--fresh)"
                    )
                tables.append(self._tables[name])
            if self._route is not None:
                self._check(share)
            return tables, self._share

    def give(self, buckets: Collection[int], *, to: ServerRef) -> None:
        """Leaves buckets to another server, from now on. Their rows are the caller's business.

        Raises:
            RouteMismatch: One is not this server's to give.
        """
        with self._lock:
            if self._route is None or not np.isin(list(buckets), self._share).all():
                raise RouteMismatch(
                    f"a server gives what it owns, got some of {len(buckets)} buckets that are "
                    "another's"
                )
            self._route = self._route.moved(buckets, to=to)
            self._own(np.setdiff1d(self._share, list(buckets)))

    def take(self, buckets: Collection[int], route: Route) -> None:
        """Owns buckets whose rows are here by now, on the word of who gave them.

        Args:
            buckets: To take; those that are this server's already stay.
            route: Of the server that gave them.

        Raises:
            RouteMismatch: The route says that one is another server's.
        """
        with self._lock:
            merged = self._merged(route)
            if not np.isin(list(buckets), merged.buckets_of(self._server_id)).all():
                raise RouteMismatch(
                    f"a server takes what it was given, got some of {len(buckets)} buckets that "
                    "are another's"
                )
            self._route = merged
            self._own(np.union1d(self._share, list(buckets)))

    def _merged(self, route: Route) -> Route:
        """Returns what is known here and what is told, together."""
        if self._route is None:
            return route
        try:
            return self._route.merged(route)
        except ValueError as error:
            raise RouteMismatch(
                f"this server's tables were created on the servers {self._route}, "
                f"got the servers {route}; name the same servers, or drop the tables first"
            ) from error

    def _check(self, share: int) -> None:
        if share != self._fingerprint:
            raise RouteMismatch(
                f"a request must come for the {len(self._share)} buckets that this server owns "
                f"({self._fingerprint:#x}) on the servers {self._route}, got {share:#x}; some have "
                "moved, or another trainer dropped and re-created the tables"
            )

    def _own(self, buckets: NDArray[np.intp]) -> None:
        self._share = buckets.astype(np.intp)
        self._share.setflags(write=False)
        self._fingerprint = share_fingerprint(self._server_id, buckets)


def _stats_of(table: Table, table_id: int) -> TableStats:
    return TableStats(table.spec, table.num_rows, table.memory_bytes, table.last_step, table_id)


def _difference(have: TableSpec, want: TableSpec) -> str:
    fields = [field.name for field in dataclasses.fields(have)]
    changed = [name for name in fields if getattr(have, name) != getattr(want, name)]
    here = ", ".join(f"{name}={getattr(have, name)}" for name in changed)
    got = ", ".join(f"{name}={getattr(want, name)}" for name in changed)
    return (
        f"table {have.name!r} has {here} here, got {got}; "
        "drop it (fresh=True, --fresh) or rename the new one"
    )
