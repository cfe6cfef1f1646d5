"""Store: the named tables of one server. Knows no transport.

The daemon serves a store over gRPC; a trainer without servers holds one in its
own process. Both reach the same code, so both give the same bits.
"""

import dataclasses
import logging
import math
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ps_server.checkpoint import (
    MAX_STEP,
    SnapshotError,
    buckets_of_snapshot,
    read_snapshot,
    rows_within,
    snapshots,
)
from ps_server.route import Route
from ps_server.spans import Recorder
from ps_server.spec import NUM_BUCKETS, TableSpec
from ps_server.table import Rows, Table
from ps_server.workers import MAX_WORKERS, WAIT_SECONDS, Stopping, WorkerLost, Workers

__all__ = [
    "MAX_WORKERS",
    "WAIT_SECONDS",
    "RouteMismatch",
    "Rows",
    "SnapshotError",
    "SpecMismatch",
    "Stopping",
    "Store",
    "StoreError",
    "TableNotFound",
    "TableStats",
    "WorkerLost",
    "buckets_of_snapshot",
]

logger = logging.getLogger(__name__)

NO_IDS: Mapping[str, int] = {}

Gradients = Mapping[str, tuple[NDArray[np.uint64], NDArray[np.float32]]]
"""Keys `[n]` and gradients, `[n, dim]` or flat, by table."""


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


class Store:
    """The tables of one server. All methods may be called from any thread.

    A store takes the route of its first table and keeps it until its last
    table is dropped; requests under another route are refused.

    Args:
        num_workers: How many workers will join; None leaves it to them.
        on_over: Called when they have left, with whether all said goodbye.

    Attributes:
        id: Drawn at random.
        recorder: Of what its callers' threads do when.
        workers: Those that joined. They wait for one another in `pull` and `push`.
    """

    def __init__(
        self,
        *,
        num_workers: int | None = None,
        on_over: Callable[[bool], None] | None = None,
    ) -> None:
        self.id = uuid4().hex
        self.recorder = Recorder()
        self.workers: Workers[_Part] = Workers(
            num_workers=num_workers, on_over=on_over, recorder=self.recorder
        )
        self._lock = threading.Lock()  # guards _tables and _route, never held during table work
        self._loading = threading.Lock()  # two loads of one table would mix their rows
        self._tables: dict[str, Table] = {}
        self._ids: dict[str, int] = {}  # of the tables, guarded likewise
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

    def create_table(self, spec: TableSpec, route: Route) -> TableStats:
        """Creates a table, or attaches to the one there.

        Raises:
            SpecMismatch: A table of that name with another spec is there.
            RouteMismatch: The tables here were created under another route.
            ValueError: This server is not in the route.
        """
        route.buckets_of(self.id)
        with self._lock:
            if self._route is not None and self._route.fingerprint != route.fingerprint:
                raise RouteMismatch(
                    f"this server's tables were created on the servers {self._route}, "
                    f"got the servers {route}; name the same servers, or drop the tables first"
                )
            table = self._tables.get(spec.name)
            if table is None:
                table = self._tables[spec.name] = Table(spec)
                self._ids[spec.name] = secrets.randbelow(2**64 - 1) + 1
                self._route = route
                optimizer = type(spec.optimizer).__name__
                logger.info("created table %s, dim %d, %s", spec.name, spec.dim, optimizer)
            elif table.spec != spec:
                raise SpecMismatch(_difference(table.spec, spec))
            table_id = self._ids[spec.name]
        return _stats_of(table, table_id)

    def drop_table(self, name: str) -> None:
        """Drops a table; one that is not there is no error."""
        with self._lock:
            if self._tables.pop(name, None) is not None:
                logger.info("dropped table %s", name)
            if not self._tables:
                self._route = None

    def pull(
        self,
        route: int,
        keys: Mapping[str, NDArray[np.uint64]],
        *,
        insert: bool,
        ids: Mapping[str, int] = NO_IDS,
        rank: int | None = None,
        after_step: int | None = None,
    ) -> list[NDArray[np.float32]]:
        """Returns the rows of keys `[n]`, `[n, dim]` for each table.

        Args:
            route: Fingerprint of the caller's route.
            keys: By table.
            insert: Whether a missing row is created. Its weights are returned
                either way.
            ids: Of the tables that are meant; one that is not named may be any.
            rank: Of the worker that pulls, if it waits.
            after_step: Wait until every worker whose clock runs has pushed this
                step; None does not wait.

        Raises:
            TableNotFound: There is no such table, or it is another by id.
            RouteMismatch: The route is another.
            ValueError: A pull that waits names no rank, or one that has not joined.
            WorkerLost: A worker that is waited for is gone.
            Stopping: The server stops.
        """
        if after_step is not None:
            if rank is None:
                raise ValueError(f"a pull that waits names its rank, got after_step={after_step}")
            self.workers.wait_to_pull(rank, after_step)
        tables, _ = self._find(route, keys, ids)
        return [
            table.pull(wanted, insert=insert)
            for table, wanted in zip(tables, keys.values(), strict=True)
        ]

    def push(
        self,
        route: int,
        gradients: Gradients,
        *,
        step: int,
        ids: Mapping[str, int] = NO_IDS,
        rank: int | None = None,
        weight: float | None = None,
    ) -> None:
        """Applies gradients `[n, dim]` to the rows of keys `[n]` of each table.

        With a weight, they are the worker's part of a step. The call returns
        when the parts of all ranks are here and applied as one update, by their
        mean: a part of weight w counts w / total, one of weight 0 not at all.

        Args:
            route: Fingerprint of the caller's route.
            gradients: Keys and gradients by table, the latter as rows or flat,
                `[n * dim]`.
            step: From 1: which update of the tables this is. A worker's own
                steps follow one another.
            ids: As in `pull`.
            rank: Of the worker that pushes, if it has joined: moves its clock.
            weight: Samples of the part; None applies the gradients as they are.

        Raises:
            TableNotFound: There is no such table, or it is another by id.
            RouteMismatch: The route is another.
            ValueError: Shapes do not agree, the step is out of range or not the
                worker's next, or a weight is negative or comes without a rank.
            WorkerLost: A worker is gone; nothing of the step is applied.
            Stopping: The server stops; nothing of the step is applied.
        """
        self._check_push(route, gradients, step, ids)
        if weight is None:
            if rank is None:
                self._apply(route, gradients, step, ids)
            else:
                self.workers.push(rank, step, lambda: self._apply(route, gradients, step, ids))
            return
        if rank is None or not (math.isfinite(weight) and weight >= 0):
            raise ValueError(
                f"a part of a step has a rank and a weight of at least 0, got rank={rank}, "
                f"weight={weight}"
            )
        part = _Part(gradients, ids)
        self.workers.push_part(
            rank, step, weight, part, lambda parts: self._apply_parts(route, parts, step)
        )

    def _check_push(
        self, route: int, gradients: Gradients, step: int, ids: Mapping[str, int]
    ) -> None:
        tables, _ = self._find(route, gradients, ids)
        if not 1 <= step <= MAX_STEP:
            raise ValueError(f"a push needs a step from 1 to {MAX_STEP}, got step={step}")
        for table, (keys, gradient) in zip(tables, gradients.values(), strict=True):
            rows = (len(keys), table.spec.dim)
            if gradient.shape not in (rows, (len(keys) * table.spec.dim,)):
                raise ValueError(
                    f"gradients of table {table.spec.name!r} must have shape {list(rows)}, one "
                    f"row a key, got {list(gradient.shape)}"
                )

    def _apply(self, route: int, gradients: Gradients, step: int, ids: Mapping[str, int]) -> None:
        """Applies what `_check_push` has found good."""
        tables, _ = self._find(route, gradients, ids)
        for table, (keys, gradient) in zip(tables, gradients.values(), strict=True):
            table.push(keys, gradient.reshape(len(keys), table.spec.dim), step=step)

    def _apply_parts(self, route: int, parts: Sequence[tuple[float, "_Part"]], step: int) -> None:
        """Applies the mean of the parts of a step, by weight, as one push.

        The table sums the gradients of equal keys in their order, which is that
        of the ranks, whoever came first. So the result is the same in every run.
        """
        total = sum(weight for weight, _ in parts)
        for _, part in parts:  # a table may have been dropped while the parts waited
            self._find(route, part.gradients, part.ids)
        scaled = [_scaled(part.gradients, weight / total) for weight, part in parts if weight > 0]
        self._apply(route, _joined(scaled), step, NO_IDS)

    def save(
        self, route: int, name: str, *, ids: Mapping[str, int] = NO_IDS
    ) -> Iterator[tuple[str, bytes]]:
        """Returns the file name and content of each snapshot of a table's rows here.

        Raises:
            TableNotFound: There is no such table.
            RouteMismatch: The route is another.
        """
        (table,), held = self._find(route, [name], ids)
        assert held is not None, "a store with a table has a route"
        return snapshots(table, held.buckets_of(self.id))

    def load(
        self, route: int, name: str, paths: Sequence[Path], *, ids: Mapping[str, int] = NO_IDS
    ) -> int:
        """Replaces a table's rows by those in snapshots that this server owns.

        Args:
            route: Fingerprint of the caller's route.
            name: Of the table.
            paths: Snapshots, in any order. All are checked before a row changes.
            ids: As in `pull`.

        Returns:
            Rows of the table here, after the load.

        Raises:
            TableNotFound: There is no such table.
            RouteMismatch: The route is another.
            SnapshotError: A snapshot is broken or of another table.
        """
        (table,), held = self._find(route, [name], ids)
        assert held is not None, "a store with a table has a route"
        owned = held.buckets_of(self.id)
        with self._loading:
            for path in paths:
                read_snapshot(path, table.spec)
            table.clear()
            for path in paths:
                table.import_rows(rows_within(read_snapshot(path, table.spec), owned))
        logger.info("loaded table %s: %d rows", name, table.num_rows)
        return table.num_rows

    def export_rows(self, route: int, name: str) -> Rows:
        """Returns a copy of a table's rows here, in the order of their keys.

        Raises:
            TableNotFound: There is no such table.
            RouteMismatch: The route is another.
        """
        (table,), _ = self._find(route, [name], NO_IDS)
        return table.export_rows(0, NUM_BUCKETS)

    def import_rows(self, route: int, name: str, rows: Rows) -> None:
        """Replaces a table's rows here.

        Raises:
            TableNotFound: There is no such table.
            RouteMismatch: The route is another.
        """
        (table,), _ = self._find(route, [name], NO_IDS)
        with self._loading:
            table.clear()
            table.import_rows(rows)

    def _find(
        self, route: int, names: Sequence[str] | Mapping[str, object], ids: Mapping[str, int]
    ) -> tuple[list[Table], Route | None]:
        """Returns the tables, and the route under which all of them are here."""
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


@dataclass(frozen=True, eq=False)
class _Part:
    """What one worker pushes of a step, and the tables that it means."""

    gradients: Gradients
    ids: Mapping[str, int]


def _scaled(gradients: Gradients, share: float) -> Gradients:
    if share == 1:  # of the only worker that still has data: nothing to copy
        return gradients
    return {
        name: (keys, gradient.reshape(-1) * np.float32(share))
        for name, (keys, gradient) in gradients.items()
    }


def _joined(parts: Sequence[Gradients]) -> Gradients:
    """Returns all keys and gradients, flat, of each table, part after part."""
    names = dict.fromkeys(name for part in parts for name in part)
    joined = {}
    for name in names:
        keys, gradients = zip(*(part[name] for part in parts if name in part), strict=True)
        joined[name] = np.concatenate(keys), np.concatenate([g.reshape(-1) for g in gradients])
    return joined


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
