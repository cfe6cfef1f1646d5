"""Store: the named tables of one server. Knows no transport.

The daemon serves a store over gRPC; a trainer without servers holds one in its
own process. Both reach the same code, so both give the same bits.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ps_server.catalog import (
    NO_IDS,
    Catalog,
    RouteMismatch,
    SpecMismatch,
    StoreError,
    TableNotFound,
    TableStats,
)
from ps_server.order import Order
from ps_server.part import Gradients, Part, mean_of_parts
from ps_server.route import Route
from ps_server.snapshot import (
    MAX_STEP,
    SnapshotError,
    buckets_of_snapshot,
    read_snapshot,
    rows_within,
    snapshots,
)
from ps_server.spans import Recorder
from ps_server.spec import NUM_BUCKETS, TableSpec
from ps_server.table import Rows
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


class Store:
    """The tables of one server. All methods may be called from any thread.

    Requests that take it to own other buckets than it does are refused.

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
        self.workers: Workers[Part] = Workers(
            num_workers=num_workers, on_over=on_over, recorder=self.recorder
        )
        self._catalog = Catalog(self.id)
        self._changes = Order()  # of the tables: what is alone in it sees no push half done

    @property
    def route(self) -> Route | None:
        """What is known of who owns which bucket, None while there is no table."""
        return self._catalog.route

    def stats(self) -> list[TableStats]:
        """Returns what each table holds, by name."""
        return self._catalog.stats()

    def create_table(self, spec: TableSpec, route: Route) -> TableStats:
        """Creates a table, or attaches to the one there.

        Raises:
            SpecMismatch: A table of that name with another spec is there.
            RouteMismatch: The tables here were created on other servers, or the
                route does not know yet what has moved.
            ValueError: This server is not in the route.
        """
        with self._changes.alone():
            return self._catalog.create(spec, route)

    def drop_table(self, name: str) -> None:
        """Drops a table; one that is not there is no error."""
        with self._changes.alone():
            self._catalog.drop(name)

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
            route: Fingerprint of this server's share, as the caller's route has it.
            keys: By table.
            insert: Whether a missing row is created. Its weights are returned
                either way.
            ids: Of the tables that are meant; one that is not named may be any.
            rank: Of the worker that pulls, if it waits.
            after_step: Wait until every worker whose clock runs has pushed this
                step; None does not wait.

        Raises:
            TableNotFound: There is no such table, or it is another by id.
            RouteMismatch: This server owns other buckets.
            ValueError: A pull that waits names no rank, or one that has not joined.
            WorkerLost: A worker that is waited for is gone.
            Stopping: The server stops.
        """
        if after_step is not None:
            if rank is None:
                raise ValueError(f"a pull that waits names its rank, got after_step={after_step}")
            self.workers.wait_to_pull(rank, after_step)
        tables, _ = self._catalog.find(route, keys, ids)
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
            route: Fingerprint of this server's share, as the caller's route has it.
            gradients: Keys and gradients by table, the latter as rows or flat,
                `[n * dim]`.
            step: From 1: which update of the tables this is. A worker's own
                steps follow one another.
            ids: As in `pull`.
            rank: Of the worker that pushes, if it has joined: moves its clock.
            weight: Samples of the part; None applies the gradients as they are.

        Raises:
            TableNotFound: There is no such table, or it is another by id.
            RouteMismatch: This server owns other buckets.
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
        part = Part(gradients, ids)
        self.workers.push_part(
            rank, step, weight, part, lambda parts: self._apply_parts(route, parts, step)
        )

    def _check_push(
        self, route: int, gradients: Gradients, step: int, ids: Mapping[str, int]
    ) -> None:
        tables, _ = self._catalog.find(route, gradients, ids)
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
        with self._changes.shared():
            tables, _ = self._catalog.find(route, gradients, ids)
            for table, (keys, gradient) in zip(tables, gradients.values(), strict=True):
                table.push(keys, gradient.reshape(len(keys), table.spec.dim), step=step)

    def _apply_parts(self, route: int, parts: Sequence[tuple[float, Part]], step: int) -> None:
        """Applies the mean of the parts of a step, in the order of their ranks, as one push."""
        for _, part in parts:  # a table may have been dropped while the parts waited
            self._catalog.find(route, part.gradients, part.ids)
        self._apply(route, mean_of_parts(parts), step, NO_IDS)

    def save(
        self, route: int, name: str, *, ids: Mapping[str, int] = NO_IDS
    ) -> Iterator[tuple[str, bytes]]:
        """Returns the file name and content of each snapshot of a table's rows here.

        Raises:
            TableNotFound: There is no such table.
            RouteMismatch: This server owns other buckets.
        """
        (table,), owned = self._catalog.find(route, [name], ids)
        return snapshots(table, owned)

    def load(
        self, route: int, name: str, paths: Sequence[Path], *, ids: Mapping[str, int] = NO_IDS
    ) -> int:
        """Replaces a table's rows by those in snapshots that this server owns.

        Args:
            route: Fingerprint of this server's share, as the caller's route has it.
            name: Of the table.
            paths: Snapshots, in any order. All are checked before a row changes.
            ids: As in `pull`.

        Returns:
            Rows of the table here, after the load.

        Raises:
            TableNotFound: There is no such table.
            RouteMismatch: This server owns other buckets.
            SnapshotError: A snapshot is broken or of another table.
        """
        (table,), owned = self._catalog.find(route, [name], ids)
        for path in paths:
            read_snapshot(path, table.spec)
        with self._changes.alone():  # two loads of one table would mix their rows
            table.clear()
            for path in paths:
                table.import_rows(rows_within(read_snapshot(path, table.spec), owned))
        logger.info("loaded table %s: %d rows", name, table.num_rows)
        return table.num_rows

    def export_rows(self, route: int, name: str) -> Rows:
        """Returns a copy of a table's rows here, in the order of their keys.

        Raises:
            TableNotFound: There is no such table.
            RouteMismatch: This server owns other buckets.
        """
        (table,), _ = self._catalog.find(route, [name], NO_IDS)
        return table.export_rows(0, NUM_BUCKETS)

    def import_rows(self, route: int, name: str, rows: Rows) -> None:
        """Replaces a table's rows here.

        Raises:
            TableNotFound: There is no such table.
            RouteMismatch: This server owns other buckets.
        """
        (table,), _ = self._catalog.find(route, [name], NO_IDS)
        with self._changes.alone():
            table.clear()
            table.import_rows(rows)
