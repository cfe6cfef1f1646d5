"""Store: the named tables of one server. Knows no transport.

The daemon serves a store over gRPC; a trainer without servers holds one in its
own process. Both reach the same code, so both give the same bits.
"""

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ps_server.applied import (
    Applied,
    AppliedState,
    Buckets,
    InWork,
    range_worker,
    still_to_apply,
)
from ps_server.catalog import (
    NO_IDS,
    Catalog,
    RouteMismatch,
    SpecMismatch,
    StoreError,
    TableNotFound,
    TableStats,
)
from ps_server.change import (
    Change,
    ClockSet,
    CreateTable,
    DropTable,
    Gradients,
    Joined,
    Left,
    Log,
    MoveChange,
    NotLogged,
    Origin,
    Push,
    PushesFinished,
    RangeCompleted,
    RangeLeased,
    RangeReturned,
    ReplaceRows,
    RosterState,
)
from ps_server.leases import Ask, Lease, LeaseKind, Leases
from ps_server.moves import Moves, MovesState
from ps_server.order import Order
from ps_server.part import Part, mean_of_parts
from ps_server.ranges import RangesState
from ps_server.route import Route
from ps_server.side_by_side import side_by_side
from ps_server.snapshot import (
    MAX_STEP,
    SnapshotError,
    are_apart,
    buckets_of_snapshot,
    read_snapshot,
    rows_within,
    snapshots,
)
from ps_server.spans import Recorder
from ps_server.spec import NUM_BUCKETS, TableSpec
from ps_server.table import Frozen, Rows, Table
from ps_server.workers import MAX_WORKERS, WAIT_SECONDS, Stopping, WorkerLost, Workers

__all__ = [
    "MAX_WORKERS",
    "WAIT_SECONDS",
    "Ask",
    "FreezeError",
    "Held",
    "HeldTable",
    "Lease",
    "LeaseKind",
    "NotLogged",
    "Origin",
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

_TableChange = Push | PushesFinished | ReplaceRows | CreateTable | DropTable


class FreezeError(StoreError):
    """Tables cannot be frozen now, or what was frozen is kept no longer."""


@dataclass(frozen=True, eq=False)
class HeldTable:
    """A table as it was at one moment, and the buckets of it that are here or on their way."""

    table: Table
    id: int
    buckets: NDArray[np.intp]
    frozen: Frozen

    def snapshots(self) -> Iterator[tuple[str, memoryview]]:
        """Returns the file name and content of each snapshot of its rows, once."""
        return snapshots(self.table, self.buckets, frozen=self.frozen, release=True)


@dataclass(frozen=True, eq=False)
class _Freeze:
    """What a trainer's freeze keeps.

    Attributes:
        number: Of the freeze.
        owned: Buckets that were this server's.
        tables: What is kept of each; nothing once it was let go.
    """

    number: int
    owned: NDArray[np.intp]
    tables: dict[Table, Frozen]


@dataclass(frozen=True, eq=False)
class Held:
    """All that a server remembers after a kill, as it was between two changes.

    Attributes:
        number: What `Store.hold` was to note at that moment.
        route: Of the tables.
        share: The buckets that are this server's.
        tables: By name.
        applied: Which pushes are in the rows.
        roster: The members and their clocks.
        moves: Of buckets, that are under way.
        ranges: Which batches of whose runs are trained.
    """

    number: int
    route: Route | None
    share: NDArray[np.intp]
    tables: tuple[HeldTable, ...]
    applied: AppliedState
    roster: RosterState
    moves: MovesState
    ranges: Mapping[str, RangesState]


class Store:
    """The tables of one server. All methods may be called from any thread.

    Requests that take it to own other buckets than it does are refused.

    Args:
        num_workers: How many workers will join; None leaves it to them.
        on_over: Called when they have left, with whether all said goodbye.
        rejoin_seconds: How long a worker whose connection broke may be away.
        server_id: Of the server that this one goes on as; None is a new one.
        clock: Tells leases the time, in seconds.

    Attributes:
        id: Drawn at random, unless it was given.
        recorder: Of what its callers' threads do when.
        workers: Those that joined. They wait for one another in `pull` and `push`.
        applied: Which pushes of each worker are in the rows here.
        moves: Of buckets, to and from other servers.
        leases: Which workers train which batches, where this server says so.
        is_durable: Whether it comes back after a kill, with all that it answered.
    """

    def __init__(
        self,
        *,
        num_workers: int | None = None,
        on_over: Callable[[bool], None] | None = None,
        rejoin_seconds: float = 0.0,
        server_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.id = server_id or uuid4().hex
        self.recorder = Recorder()
        self._changes = Order()  # what is alone in it sees no change half done
        self.workers: Workers[Part] = Workers(
            num_workers=num_workers,
            on_over=on_over,
            recorder=self.recorder,
            rejoin_seconds=rejoin_seconds,
            order=self._changes,
        )
        self.applied = Applied()
        self.leases = Leases(self._changes, clock=clock)
        self.is_durable = False
        self._on_freeze: Callable[[], None] = lambda: None
        self._in_work = InWork()
        self._catalog = Catalog(self.id)
        self._reads = Order()  # rows are dropped when nobody is in it who takes them to be here
        self.moves = Moves(
            self._catalog,
            self.applied,
            self.workers,
            order=self._changes,
            reads=self._reads,
            is_leased=lambda: self.applied.has_any_finished or bool(self.leases.state()),
        )
        # Number of the latest freeze, the buckets that were here, and what it keeps of each table.
        # Replaced, never changed, in a moment alone. A server that was started again begins
        # elsewhere: no number comes twice.
        self._frozen = _Freeze(secrets.randbits(62), np.empty(0, np.intp), {})

    @property
    def route(self) -> Route | None:
        """What is known of who owns which bucket, None while there is no table."""
        return self._catalog.route

    @property
    def share(self) -> tuple[Route | None, int]:
        """What is known of who owns which bucket, and the fingerprint of what is here, 0 if none.

        Of one moment. The share is not what the route says where a bucket was given to
        this server that it has not taken yet.
        """
        return self._catalog.known()

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
            if not self._catalog.holds(spec, route):
                self._make(CreateTable(spec, secrets.randbelow(2**64 - 1) + 1, route))
            return self._catalog.stats_of(spec.name)

    def drop_table(self, name: str) -> None:
        """Drops a table; one that is not there is no error."""
        with self._changes.alone():
            if name in self._catalog:
                self._make(DropTable(name))

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
        with self._reads.shared():
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
        origin: Origin | None = None,
    ) -> None:
        """Applies gradients `[n, dim]` to the rows of keys `[n]` of each table.

        With a weight, they are the worker's part of a step. The call returns
        when the parts of all ranks are here and applied as one update, by their
        mean: a part of weight w counts w / total, one of weight 0 not at all.

        With an origin, it may be repeated, with the same arguments, until it is
        answered: it is applied once. One that is repeated while the first is
        still in work waits for the end of that, and is tried if that failed.

        Args:
            route: Fingerprint of this server's share, as the caller's route has it.
            gradients: Keys and gradients by table, the latter as rows or flat,
                `[n * dim]`.
            step: From 1: which update of the tables this is. A worker's own
                steps follow one another.
            ids: As in `pull`.
            rank: Of the worker that pushes, if it has joined: moves its clock.
            weight: Samples of the part; None applies the gradients as they are.
            origin: Who pushes, and which of its pushes it is: each comes to
                every server, also without keys.

        Raises:
            TableNotFound: There is no such table, or it is another by id.
            RouteMismatch: This server owns other buckets.
            ValueError: Shapes do not agree, the step is out of range or not the
                worker's next, the sequence is not, or a weight is negative or
                comes without a rank.
            WorkerLost: A worker is gone; nothing of the step is applied.
            NotLogged: The log is full; nothing of the step is applied.
            Stopping: The server stops; nothing of the step is applied.
        """
        self._check_push(route, gradients, step, ids)
        if weight is not None and (rank is None or not (math.isfinite(weight) and weight >= 0)):
            raise ValueError(
                f"a part of a step has a rank and a weight of at least 0, got rank={rank}, "
                f"weight={weight}"
            )
        part = Part(route, gradients, ids, rank, origin)
        if origin is None:
            self._push(part, step, weight)
            return
        with self._in_work.turn(origin):
            if self._is_left(route, origin):
                self._push(part, step, weight)
            elif rank is not None and self.workers.is_next(rank, step, worker=origin.worker):
                # Its rows are here, and its step is not: buckets that have it came from a server
                # that had it first. Nobody waits for the parts of others, which came along.
                self._push(part, step, None)

    def _is_left(self, share: int, origin: Origin) -> bool:
        """Whether a push is not in all buckets that are here."""
        with self._changes.shared():  # in a change, buckets and what is known of them may differ
            self._check(share)
            return bool(self.applied.pending(origin, self._owned()).any())

    def _push(self, part: Part, step: int, weight: float | None) -> None:
        def apply(parts: Sequence[tuple[float, Part]]) -> None:
            self._apply(parts, step)

        worker = 0 if part.origin is None else part.origin.worker
        if part.rank is None:
            with self._changes.turn():
                apply([(1.0, part)])
        elif weight is None:
            self.workers.push(part.rank, step, lambda: apply([(1.0, part)]), worker=worker)
        else:
            self.workers.push_part(part.rank, step, weight, part, apply, worker=worker)

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

    def _apply(self, parts: Sequence[tuple[float, Part]], step: int) -> None:
        """Applies what `_check_push` has found good, by its mean, in the order of the parts.

        To be called within a turn: what is looked up here holds until it is applied.
        """
        for _, part in parts:  # a table may be dropped, or buckets move, while the parts wait
            self._catalog.find(part.share, part.gradients, part.ids)
        owned = self._owned()
        left = [(weight, self._left_of(part, owned)) for weight, part in parts]
        push = Push(
            step=step,
            gradients=mean_of_parts(left),
            origins=tuple(part.origin for _, part in parts if part.origin is not None),
            ranks=tuple(part.rank for _, part in parts if part.rank is not None),
        )
        self._make(push)

    def _left_of(self, part: Part, owned: Buckets) -> Part:
        """Returns a part without what of it is applied."""
        if part.origin is None:
            return part
        pending = self.applied.pending(part.origin, owned)
        return replace(part, gradients=still_to_apply(part.gradients, pending, owned))

    def _owned(self) -> Buckets:
        """Returns the buckets that are here: all, where no table is, and nothing to be owned."""
        share = self._catalog.share
        owned = np.ones(NUM_BUCKETS, dtype=np.bool_)
        if share is not None:
            owned[:] = False
            owned[share] = True
        return owned

    def keep(self, log: Log, *, on_freeze: Callable[[], None] = lambda: None) -> None:
        """Appends each change to a log before it is made, from now on.

        To be called before requests come. Changes are then made one at a time.

        Args:
            log: Of the changes.
            on_freeze: Called after each `freeze`, which says that a trainer saves.
        """
        self._changes.keep(log)
        self._on_freeze = on_freeze
        self.is_durable = True

    @contextmanager
    def hold(self, note: Callable[[], int]) -> Iterator[Held]:
        """Holds what is here between two changes, while others are made.

        Args:
            note: Called at that moment; returns the number that is held with it.
        """
        with ExitStack() as held:
            with self._changes.alone():
                number, route, share = note(), self._catalog.route, self._catalog.share
                share = np.empty(0, np.intp) if share is None else share
                moves = self.moves.state()
                buckets = np.union1d(share, [b for each in moves.incoming for b in each.buckets])
                tables = []
                for stats in self._catalog.stats():
                    table = self._catalog.table(stats.spec.name)
                    frozen = held.enter_context(table.freeze())
                    tables.append(HeldTable(table, stats.id, buckets.astype(np.intp), frozen))
                moment = Held(
                    number,
                    route,
                    share,
                    tuple(tables),
                    self.applied.state(),
                    self.workers.state(),
                    moves,
                    self.leases.state(),
                )
            yield moment

    def restore(self, route: Route | None, share: Sequence[int], moves: MovesState) -> None:
        """Takes what was known of buckets before a kill; to be called before `replay`."""
        if route is not None:
            self._catalog.restore(route, share)
        self.moves.restore(moves)

    def replay(self, change: Change) -> None:
        """Makes a change that was logged before a kill; to be called before `keep`.

        What it finds is what it found when it was made first.
        """
        with self._changes.alone():
            if isinstance(change, Joined | ClockSet | Left):
                self.workers.replay(change)
                return
            if isinstance(change, MoveChange):
                self.moves.replay(change)
                return
            if isinstance(change, RangeLeased | RangeReturned | RangeCompleted):
                self.leases.replay(change)
                return
            self._do(change)
            if isinstance(change, Push):
                self.workers.replay_push(change.ranks, change.step)

    def restore_rows(self, name: str, rows: Rows) -> None:
        """Adds rows of a checkpoint to a table; to be called before `keep`.

        Several threads may call it at once, each with rows of other keys.
        """
        self._catalog.table(name).import_rows(rows)

    def _make(self, change: _TableChange) -> None:
        self._changes.make(change, lambda: self._do(change))

    def _do(self, change: _TableChange) -> None:
        """Makes a change of the tables: all of them are made here, live and from a log."""
        match change:
            case Push():
                self._do_push(change)
            case ReplaceRows(name, parts):
                self.moves.begin_anew()
                table = self._catalog.table(name)
                table.clear()
                if are_apart(parts):
                    side_by_side(table.import_rows, parts)
                else:  # of equal keys the last one stays
                    for rows in parts:
                        table.import_rows(rows)
            case CreateTable(spec, table_id, route):
                self.moves.begin_anew()
                self._catalog.create(spec, route, table_id=table_id)
            case DropTable(name):
                self.moves.begin_anew()
                self._catalog.drop(name)
                self.leases.drop(name)
            case PushesFinished(first, last):
                self.applied.finish(first, last)

    def _do_push(self, push: Push) -> None:
        for name, (keys, gradient) in push.gradients.items():
            table = self._catalog.table(name)
            table.push(keys, gradient.reshape(len(keys), table.spec.dim), step=push.step)
        owned = self._owned()
        for origin in push.origins:
            self.applied.note(origin, owned)
        self.moves.note(push)

    def set_clock(self, route: int, rank: int, first_step: int | None) -> None:
        """Starts a worker's clock, or stops it. Raises as `Workers.begin`, or RouteMismatch."""
        if first_step is None:
            self.workers.end(rank, check=lambda: self._check(route))
        else:
            self.workers.begin(rank, first_step, check=lambda: self._check(route))

    def goodbye(self, route: int, rank: int) -> None:
        """Ends a membership. Raises as `Workers.goodbye`, or RouteMismatch."""
        self.workers.goodbye(rank, check=lambda: self._check(route))

    def _check(self, share: int) -> None:
        """Refuses one who takes this server to own other buckets; 0 does not say."""
        self._catalog.find(share or None, (), NO_IDS)

    def lease(
        self,
        route: int,
        name: str,
        ask: Ask,
        *,
        wait_seconds: float,
        ids: Mapping[str, int] = NO_IDS,
    ) -> tuple[Lease, int]:
        """Leases a range of the batches of a table's run, and says whose its pushes are.

        Args:
            route: Fingerprint of this server's share, as the caller's route has it.
            name: Of the table.
            ask: Who asks for what.
            wait_seconds: How long to wait for one.
            ids: As in `pull`.

        Returns:
            The lease, and the `worker` of the pushes of its range.

        Raises:
            TableNotFound: There is no such table, or it is another by id.
            RouteMismatch: This server owns other buckets.
            NotLogged: The log is full; nothing changed.
        """
        table_id = 0

        def check() -> None:
            nonlocal table_id
            self._catalog.find(route, [name], ids)
            table_id = self._catalog.stats_of(name).id

        lease = self.leases.acquire(name, ask, wait_seconds=wait_seconds, check=check)
        return lease, range_worker(table_id, lease.number)

    def progress(self, worker: int) -> int | None:
        """Returns the last push of a worker that is applied here; None if it has finished."""
        return self.applied.progress(worker, self._owned())

    def finish(self, first: int, last: int) -> None:
        """Applies no push any more by the numbers from `first` to `last`.

        To be called when those that are to be are applied on every server.

        Raises:
            ValueError: There are no such numbers.
            NotLogged: The log is full; nothing changed.
        """
        if not 0 < first <= last < 2**64:
            raise ValueError(
                f"numbers that finish need 0 < first <= last < 2**64, got first={first}, "
                f"last={last}"
            )
        with self._changes.alone():
            if not self.applied.has_finished(first, last):
                self._make(PushesFinished(first, last))

    def set_rows(
        self,
        route: int,
        name: str,
        keys: NDArray[np.uint64],
        weights: NDArray[np.float32],
        *,
        worker: int,
        ids: Mapping[str, int] = NO_IDS,
    ) -> None:
        """Gives a table these rows and no others, as if they had never been pushed to.

        Args:
            route: Fingerprint of this server's share, as the caller's route has it.
            name: Of the table.
            keys: `[n]`, each once.
            weights: `[n, dim]`, or flat.
            worker: In whose name. Nothing happens if it has finished.
            ids: As in `pull`.

        Raises:
            TableNotFound: There is no such table, or it is another by id.
            RouteMismatch: This server owns other buckets.
            ValueError: Shapes do not agree, or a key comes twice.
            NotLogged: The log is full; nothing changed.
        """
        (table,), _ = self._catalog.find(route, [name], ids)
        spec, num_rows = table.spec, len(keys)
        if weights.size != num_rows * spec.dim or len(np.unique(keys)) != num_rows:
            raise ValueError(
                f"rows of table {name!r} must have weights [{num_rows}, {spec.dim}] and distinct "
                f"keys, got {weights.size} weights and {len(np.unique(keys))} distinct keys"
            )
        order = np.argsort(keys)
        rows = Rows(
            keys=keys[order],
            weights=weights.reshape(num_rows, spec.dim)[order],
            state=np.full(
                (num_rows, spec.dim * spec.optimizer.state_per_weight),
                spec.optimizer.initial_state,
                np.float32,
            ),
            num_pushes=np.zeros(num_rows, np.uint32),
            steps=np.zeros(num_rows, np.uint64),
        )
        with self._changes.alone():
            if not self.applied.has_finished(worker, worker):
                self._make(ReplaceRows(name, (rows,)))

    def freeze(self, route: int) -> int:
        """Keeps the rows of all tables as they are between two pushes, for `save`.

        Pulls and pushes go on; what they change meanwhile takes memory twice. One
        freeze is kept: the next one lets it go, whoever asked for it.

        Args:
            route: Fingerprint of this server's share, as the caller's route has it.

        Returns:
            The number of the freeze, above 0.

        Raises:
            RouteMismatch: This server owns other buckets.
            FreezeError: A table is frozen already, for a checkpoint of the server.
        """
        with self._changes.alone():
            names = [stats.spec.name for stats in self._catalog.stats()]
            tables, owned = self._catalog.find(route, names, NO_IDS)
            before = self._frozen
            self._frozen = freeze = _Freeze(before.number + 1, owned, {})
            for frozen in before.tables.values():
                frozen.release()
            with ExitStack() as undo:
                held = {}
                for table in tables:
                    try:
                        held[table] = undo.enter_context(table.freeze())
                    except RuntimeError as error:
                        raise FreezeError(f"{error}; it is for a checkpoint, save again") from error
                undo.pop_all()
            self._frozen = replace(freeze, tables=held)
        self._on_freeze()
        return freeze.number

    def release(self, freeze: int) -> None:
        """Lets go what a freeze kept; one that is not kept is no error."""
        with self._changes.alone():
            held = self._frozen
            if freeze == held.number:
                self._frozen = replace(held, tables={})
                for frozen in held.tables.values():
                    frozen.release()

    def save(
        self, route: int, name: str, *, freeze: int | None = None, ids: Mapping[str, int] = NO_IDS
    ) -> Iterator[tuple[str, memoryview]]:
        """Returns the file name and content of each snapshot of a table's rows here.

        Args:
            route: Fingerprint of this server's share, as the caller's route has it.
            name: Of the table.
            freeze: Number of the freeze whose rows are saved, in the buckets that were here
                by then, whatever the route says; None saves those of now.
            ids: As in `pull`.

        Raises:
            TableNotFound: There is no such table.
            RouteMismatch: This server owns other buckets; while the result is read, too.
            FreezeError: The freeze is not kept, or came before the table. Raised while
                the result is read, too, if it is let go meanwhile.
        """
        if freeze is None:
            (table,), owned = self._catalog.find(route, [name], ids)
            return self._snapshots_of_now(table, owned, route)
        (table,), _ = self._catalog.find(None, [name], ids)
        return self._frozen_snapshots(table, freeze)

    def _snapshots_of_now(
        self, table: Table, owned: NDArray[np.intp], share: int
    ) -> Iterator[tuple[str, memoryview]]:
        for snapshot in snapshots(table, owned):
            self._catalog.find(share, (), NO_IDS)  # their rows were here until it was made
            yield snapshot

    def _frozen_snapshots(self, table: Table, freeze: int) -> Iterator[tuple[str, memoryview]]:
        held = self._frozen
        frozen = held.tables.get(table) if freeze == held.number else None
        gone = (
            f"table {table.spec.name!r} must be frozen while it is saved, got freeze {freeze}, "
            "which is kept no longer: a server keeps the latest alone, until it ends"
        )
        if frozen is None:
            raise FreezeError(gone)
        pieces = snapshots(table, held.owned, frozen=frozen)
        try:
            yield from pieces
        except RuntimeError as error:
            raise FreezeError(gone) from error

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
        # The rows stay in the files' memory maps, but for those of snapshots that go to several
        # servers.
        rows = side_by_side(lambda path: rows_within(read_snapshot(path, table.spec), owned), paths)
        with self._changes.alone():  # two loads of one table would mix their rows
            self._catalog.find(route, [name], ids)  # buckets may have moved meanwhile
            self._make(ReplaceRows(name, rows))
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
        self._catalog.find(route, [name], NO_IDS)
        with self._changes.alone():
            self._make(ReplaceRows(name, (rows,)))
