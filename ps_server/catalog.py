"""Catalog: the tables of a server by name, and the route that all of them are under."""

import dataclasses
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ps_server.route import Route
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
    """The store serves as one of another set of servers."""


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

    A catalog takes the route of its first table and keeps it until its last
    table is dropped; requests under another route are refused.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards all below, never held during table work
        self._tables: dict[str, Table] = {}
        self._ids: dict[str, int] = {}
        self._route: Route | None = None

    @property
    def route(self) -> Route | None:
        """The route of the tables here, None while there is none."""
        return self._route

    def stats(self) -> list[TableStats]:
        """Returns what each table holds, by name."""
        with self._lock:
            tables = [(table, self._ids[name]) for name, table in sorted(self._tables.items())]
        return [_stats_of(table, table_id) for table, table_id in tables]

    def holds(self, spec: TableSpec, route: Route) -> bool:
        """Returns whether a table is there already.

        Raises:
            SpecMismatch: A table of that name with another spec is there.
            RouteMismatch: The tables here were created under another route.
        """
        with self._lock:
            if self._route is not None and self._route.fingerprint != route.fingerprint:
                raise RouteMismatch(
                    f"this server's tables were created on the servers {self._route}, "
                    f"got the servers {route}; name the same servers, or drop the tables first"
                )
            table = self._tables.get(spec.name)
            if table is not None and table.spec != spec:
                raise SpecMismatch(_difference(table.spec, spec))
            return table is not None

    def create(self, spec: TableSpec, route: Route, *, table_id: int) -> None:
        """Creates a table that `holds` has not found."""
        with self._lock:
            assert spec.name not in self._tables
            self._tables[spec.name] = Table(spec)
            self._ids[spec.name] = table_id
            self._route = route
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
        self, route: int, names: Sequence[str] | Mapping[str, object], ids: Mapping[str, int]
    ) -> tuple[list[Table], Route | None]:
        """Returns tables, and the route under which all of them are here.

        Args:
            route: Fingerprint of the caller's route.
            names: Of the tables.
            ids: Of those that are meant; one that is not named may be any.

        Raises:
            TableNotFound: There is no such table, or it is another by id.
            RouteMismatch: The route is another.
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
            if self._route is not None and self._route.fingerprint != route:
                raise RouteMismatch(
                    f"a request must come under the route of this server's tables, {self._route} "
                    f"({self._route.fingerprint:#x}), got {route:#x}; another trainer dropped "
                    "and re-created them"
                )
            return tables, self._route


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
