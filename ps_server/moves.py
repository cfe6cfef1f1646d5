"""Moves: how buckets leave a server and come to another, while both serve.

docs/scaling.md is the protocol. Of a move the source remembers little, and the target all::

    source   copy ─▶ catch_up ... ─▶ hold ─▶ give        a log of what is pushed to the buckets
    target   stage_rows ─▶ stage_pushes ... ─▶ prepare ─▶ take
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ps_server.applied import Applied
from ps_server.catalog import NO_IDS, Catalog, RouteMismatch, StoreError
from ps_server.change import (
    Discard,
    Give,
    Gradients,
    Hold,
    MoveChange,
    Prepare,
    Push,
    RosterState,
    StagePush,
    StageRows,
    Take,
)
from ps_server.keys import bucket_of
from ps_server.order import Order
from ps_server.part import Part
from ps_server.route import Route, ServerRef
from ps_server.snapshot import snapshots
from ps_server.spec import NUM_BUCKETS
from ps_server.table import Rows, Table
from ps_server.workers import Workers

__all__ = [
    "HOLD_SECONDS",
    "Copied",
    "Incoming",
    "MoveError",
    "Moves",
    "MovesState",
    "Prepared",
    "StagedPush",
    "Tail",
]

logger = logging.getLogger(__name__)

HOLD_SECONDS = 1.0
"""How long pushes wait for the end of a move, at most; then they go on, and it begins again."""

# A driver that died leaves its move behind: what is pushed to it is kept so long, or so much of it.
IDLE_SECONDS = 60.0
MAX_TAIL_BYTES = 1 << 28


class MoveError(StoreError):
    """A step of a move is not the next one; the move begins again with its copy."""


@dataclass(frozen=True, eq=False)
class StagedPush:
    """What a push has brought for the buckets of a move."""

    step: int
    gradients: Gradients


@dataclass(frozen=True, eq=False)
class Copied:
    """The rows of buckets as they were at one moment.

    Attributes:
        move: The number of the move that begins by it.
        tables: Of each its name, and the name and content of its snapshots. Read once.
    """

    move: int
    tables: Iterator[tuple[str, Iterator[tuple[str, memoryview]]]]


@dataclass(frozen=True, eq=False)
class Tail:
    """What was pushed to the buckets of a move since its copy.

    Attributes:
        pushes: From the one on that was asked for.
        prepared: What goes with them at the end, while they are held; else None.
    """

    pushes: tuple[StagedPush, ...]
    prepared: Prepare | None = None


@dataclass(frozen=True, eq=False)
class Prepared:
    """What a move that is safe at its target brings beside rows; aligned with its buckets."""

    versions: tuple[int, ...]
    workers: NDArray[np.uint64]
    sequences: NDArray[np.uint64]
    roster: RosterState


@dataclass(frozen=True, eq=False)
class Incoming:
    """A move to this server that has begun.

    Attributes:
        move: Its number.
        buckets: Which.
        num_pushes: That were staged after the rows.
        prepared: Once all of it is here.
    """

    move: int
    buckets: tuple[int, ...]
    num_pushes: int = 0
    prepared: Prepared | None = None


@dataclass(frozen=True, eq=False)
class MovesState:
    """What a server remembers of moves after it was killed.

    Attributes:
        versions: The highest of each bucket that a hold has used, uint32 `[4096]`.
        incoming: Moves to it.
    """

    versions: NDArray[np.uint32]
    incoming: tuple[Incoming, ...] = ()


@dataclass(eq=False)
class _Outgoing:
    """A move from this server. Changed by one that is alone in the order.

    Attributes:
        move: Its number.
        buckets: Which.
        is_moving: The same, `[4096]`.
        deadline: When it is given up if nobody asks for it.
        first: Number of the first push of `pushes`, those before it were handed out.
        pushes: Since the copy.
        num_bytes: Of these.
        versions: Of the buckets, once they were held.
    """

    move: int
    buckets: tuple[int, ...]
    is_moving: NDArray[np.bool_]
    deadline: float
    first: int = 0
    pushes: list[StagedPush] = field(default_factory=list)
    num_bytes: int = 0
    versions: tuple[int, ...] | None = None


class Moves:
    """The moves of one server. May be used from any thread, `do`, `note` and `void` in a turn.

    Args:
        server_id: Of the server.
        catalog: Its tables and its share.
        applied: Which pushes are in them.
        workers: Its members.
        order: Of its changes.
        reads: A gate that pulls share.
        is_leased: Whether workers lease ranges here, which do not move with buckets.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self,
        catalog: Catalog,
        applied: Applied,
        workers: "Workers[Part]",
        *,
        order: Order,
        reads: Order,
        is_leased: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalog = catalog
        self._applied = applied
        self._workers = workers
        self._order = order
        self._reads = reads
        self._is_leased = is_leased
        self._clock = clock
        self._giving = threading.Lock()  # one at a time drops rows, and nobody stages meanwhile
        # All below is changed by one that is alone in the order.
        self._versions = np.zeros(NUM_BUCKETS, np.uint32)
        self._outgoing: _Outgoing | None = None
        self._incoming: dict[int, Incoming] = {}

    # ------------------------------------------------------------------ from here

    def copy(self, share: int, buckets: Sequence[int]) -> Copied:
        """Begins a move of buckets that are here; one that was under way is given up.

        Raises:
            RouteMismatch: This server owns other buckets.
            MoveError: It keeps no journal.
            ValueError: A bucket is not its own, or there is none.
        """
        with self._order.alone(), ExitStack() as undo:
            if not self._order.is_kept:
                raise MoveError(
                    "buckets move between servers that come back after a kill, got one without a "
                    "journal; start it with --durability process"
                )
            if self._is_leased():
                raise MoveError(
                    "the ranges of workers that come and go (mode elastic) stay with their "
                    "servers, got buckets to be moved of such a job; it keeps its servers"
                )
            names = [stats.spec.name for stats in self._catalog.stats()]
            tables, owned = self._catalog.find(share, names, NO_IDS)
            moving = np.unique(np.array(buckets, np.intp))
            if not len(moving) or not np.isin(moving, owned).all():
                raise ValueError(
                    f"a move is of some of the {len(owned)} buckets that are here, got "
                    f"{len(moving)}, of which {int(np.isin(moving, owned).sum())} are"
                )
            is_moving = np.zeros(NUM_BUCKETS, np.bool_)
            is_moving[moving] = True
            self._order.hold(0.0)  # of the move before
            self._outgoing = _Outgoing(
                secrets.randbits(62) + 1, tuple(moving.tolist()), is_moving, self._patience()
            )
            frozen = [undo.enter_context(table.freeze()) for table in tables]
            held = undo.pop_all()
        move = self._outgoing.move

        def pieces() -> Iterator[tuple[str, Iterator[tuple[str, memoryview]]]]:
            with held:
                for table, rows in zip(tables, frozen, strict=True):
                    yield table.spec.name, snapshots(table, moving, frozen=rows, release=True)

        return Copied(move, pieces())

    def catch_up(self, move: int, start: int) -> Tail:
        """Returns what was pushed to the buckets of a move, from push `start` on, from 0.

        Raises:
            MoveError: The move is not under way, or these were handed out before.
        """
        with self._order.alone():
            return Tail(self._tail(move, start))

    def hold(self, move: int, start: int, *, seconds: float = HOLD_SECONDS) -> Tail:
        """Lets all that changes this server wait, for so long at most, and returns the last of it.

        Each bucket gets a new version. Pulls go on.

        Raises:
            MoveError: As `catch_up`.
            NotLogged: The log is full; nothing waits.
        """
        with self._order.alone():
            pushes = self._tail(move, start)
            outgoing = self._current(move)
            where = list(outgoing.buckets)
            route = self._catalog.route
            assert route is not None, "a move is of buckets that are here"
            used = np.maximum(self._versions[where], route.versions[where])
            versions = tuple((used + 1).tolist())
            self._make(Hold(outgoing.buckets, versions))
            outgoing.versions = versions
            workers, sequences = self._applied.sequences_of(outgoing.buckets)
            prepared = Prepare(move, versions, workers, sequences, self._workers.state())
            self._order.hold(seconds)
            return Tail(pushes, prepared)

    def give(self, move: int, *, to: ServerRef) -> Route:
        """Leaves the buckets of a move to another server; the move is decided by that.

        Returns:
            The route that says so, by which the other takes them.

        Raises:
            MoveError: They are not held any more.
            NotLogged: The log is full; they are still this server's.
        """
        with self._giving:
            with self._order.alone():
                outgoing = self._current(move)
                if outgoing.versions is None or not self._order.is_held:
                    raise MoveError(
                        "buckets are given while they are held, got some that are not any more; "
                        "copy them again"
                    )
                self._make(Give(outgoing.buckets, outgoing.versions, to))
                self._workers.interrupt_step(_moved())
                route = self._catalog.route
                assert route is not None
            self._drop(outgoing.buckets)
        logger.info("gave %d buckets to server %s", len(outgoing.buckets), to.address)
        return route

    def unhold(self, move: int) -> bool:
        """Ends a move from here that is not decided, and its hold.

        Returns:
            Whether it was under way. If not, it was given, or it is void: its versions are
            then of no hold that is, or ever will be.
        """
        with self._order.alone():
            outgoing = self._outgoing
            if outgoing is None or outgoing.move != move:
                return False
            self.void()
            return True

    def note(self, push: Push) -> None:
        """Notes for a move what a push has brought, in its turn."""
        outgoing = self._outgoing
        if outgoing is None:
            return
        gradients = {}
        for name, (keys, gradient) in push.gradients.items():
            is_moving = outgoing.is_moving[bucket_of(keys)]
            if is_moving.any():
                dim = gradient.size // len(keys)
                gradients[name] = keys[is_moving], gradient.reshape(len(keys), dim)[is_moving]
        if gradients:
            outgoing.pushes.append(StagedPush(push.step, gradients))
            outgoing.num_bytes += sum(k.nbytes + g.nbytes for k, g in gradients.values())
        if outgoing.num_bytes > MAX_TAIL_BYTES or self._clock() > outgoing.deadline:
            self.void()

    def void(self) -> None:
        """Gives up the move from here, as what it has copied is no more what is there."""
        self._outgoing = None
        self._order.hold(0.0)

    def _tail(self, move: int, start: int) -> tuple[StagedPush, ...]:
        outgoing = self._current(move)
        if not outgoing.first <= start <= outgoing.first + len(outgoing.pushes):
            raise MoveError(
                f"pushes of a move are handed out once, from {outgoing.first} on, got {start}; "
                "copy its buckets again"
            )
        del outgoing.pushes[: start - outgoing.first]
        outgoing.first = start
        outgoing.num_bytes = sum(
            k.nbytes + g.nbytes for push in outgoing.pushes for k, g in push.gradients.values()
        )
        outgoing.deadline = self._patience()
        return tuple(outgoing.pushes)

    def _current(self, move: int) -> _Outgoing:
        outgoing = self._outgoing
        if outgoing is None or outgoing.move != move:
            raise MoveError(
                f"move {move:#x} must be under way here, got one that is not: it was given up, "
                "ended, or this server was started again; copy its buckets again"
            )
        return outgoing

    def _patience(self) -> float:
        return self._clock() + IDLE_SECONDS

    def _drop(self, buckets: Sequence[int]) -> None:
        """Drops rows that are no more this server's, once nobody reads them."""
        with self._reads.alone():  # who comes later finds the share without them
            pass
        self._erase(buckets)

    # ------------------------------------------------------------------- to here

    @property
    def incoming(self) -> tuple[Incoming, ...]:
        """Moves to this server that have begun and not ended."""
        return tuple(self._incoming.values())

    def stage_rows(
        self, move: int, buckets: Sequence[int], rows: Mapping[str, tuple[Rows, ...]]
    ) -> None:
        """Takes the copy by which a move begins; nothing reads it yet.

        Raises:
            MoveError: A bucket is this server's, or has come whole by another move; or
                a table is not here.
            NotLogged: The log is full; nothing changed.
        """
        with self._giving, self._order.alone():
            missing = [name for name in rows if name not in self._catalog]
            share = self._catalog.share
            taken = [each for each in self._incoming.values() if each.prepared is not None]
            if missing or share is None:
                raise MoveError(
                    "a move brings rows of tables that are here, got those of "
                    f"{', '.join(missing) or 'none'}; create them first"
                )
            if np.isin(list(buckets), share).any() or any(
                set(buckets) & set(each.buckets) for each in taken
            ):
                raise MoveError(
                    "a move brings buckets that are not here, got some that are, or that have "
                    "come already; take or discard them first"
                )
            for each in [*self._incoming.values()]:  # a driver that began it is gone
                if each.prepared is None:
                    self._make(Discard(each.move))
            self._make(StageRows(move, tuple(buckets), rows))

    def stage_pushes(self, move: int, start: int, pushes: Sequence[StagedPush]) -> None:
        """Applies what was pushed to the source since, from push `start` on.

        Raises:
            MoveError: The move has not begun, or these are not its next.
            NotLogged: The log is full; some of them may be applied.
        """
        with self._order.alone():
            self._stage(move, start, pushes)

    def prepare(self, start: int, pushes: Sequence[StagedPush], prepared: Prepare) -> None:
        """Takes the last of a move; from here on it is safe, whatever is killed.

        Raises:
            MoveError: As `stage_pushes`.
            NotLogged: Likewise.
        """
        with self._order.alone():
            self._stage(prepared.move, start, pushes)
            self._make(prepared)

    def take(self, route: Route) -> Route:
        """Owns what has come whole, if the route says in its version that it was given.

        Returns:
            What is known by then.

        Raises:
            RouteMismatch: The route is of another job.
            NotLogged: The log is full; nothing changed.
        """
        with self._order.alone():
            known = self._catalog.learn(route)
            for each in [*self._incoming.values()]:
                if self._is_given(each, known):
                    self._make(Take(each.move, known))
                    self._workers.interrupt_step(_moved())
                    logger.info("took %d buckets", len(each.buckets))
            return known

    def discard(self, move: int) -> None:
        """Erases a move that is void, as its source has said; one that is not here is no error.

        Raises:
            NotLogged: The log is full; nothing changed.
        """
        with self._order.alone():
            if move in self._incoming:
                self._make(Discard(move))

    def discard_unfinished(self) -> None:
        """Erases what had not come whole when the server was killed."""
        for each in self.incoming:
            if each.prepared is None:
                self.discard(each.move)

    def _stage(self, move: int, start: int, pushes: Sequence[StagedPush]) -> None:
        incoming = self._incoming.get(move)
        if incoming is None or incoming.prepared is not None or incoming.num_pushes != start:
            raise MoveError(
                f"pushes of a move follow its copy and one another, got push {start} of move "
                f"{move:#x}, {'which is not here' if incoming is None else 'which is not its next'}"
                "; copy its buckets again"
            )
        for push in pushes:
            self._make(StagePush(move, push.step, push.gradients))

    def _is_given(self, incoming: Incoming, route: Route) -> bool:
        if incoming.prepared is None:
            return False
        where = list(incoming.buckets)
        is_here = np.isin(where, route.buckets_of(self._catalog.server_id)).all()
        return bool(is_here and (route.versions[where] == incoming.prepared.versions).all())

    # ---------------------------------------------------------------- what changes

    def _make(self, change: MoveChange) -> None:
        self._order.make(change, lambda: self.do(change))

    def replay(self, change: MoveChange) -> None:
        """Makes a change that was logged before a kill."""
        self.do(change)
        if isinstance(change, Give):
            self._erase(change.buckets)

    def do(self, change: MoveChange) -> None:
        """Makes a change: all of moves are made here, live and from a log."""
        match change:
            case Hold(buckets, versions):
                self._versions[list(buckets)] = versions
            case Give(buckets, versions, target):
                self._catalog.give(buckets, to=target, versions=versions)
                self._applied.forget_buckets(buckets)
                self.void()
            case StageRows(move, buckets, rows):
                for name, parts in rows.items():
                    for part in parts:
                        self._catalog.table(name).import_rows(part)
                self._incoming[move] = Incoming(move, buckets)
            case StagePush(move, step, gradients):
                self._push(step, gradients)
                begun = self._incoming[move]
                self._incoming[move] = replace(begun, num_pushes=begun.num_pushes + 1)
            case Prepare(move, versions, workers, sequences, roster):
                prepared = Prepared(versions, workers.copy(), sequences.copy(), roster)
                self._incoming[move] = replace(self._incoming[move], prepared=prepared)
            case Take(move, route):
                self._take(self._incoming.pop(move), route)
            case Discard(move):
                self._erase(self._incoming.pop(move).buckets)

    def _push(self, step: int, gradients: Gradients) -> None:
        for name, (keys, gradient) in gradients.items():
            table = self._catalog.table(name)
            table.push(keys, gradient.reshape(len(keys), table.spec.dim), step=step)

    def _take(self, incoming: Incoming, route: Route) -> None:
        prepared = incoming.prepared
        assert prepared is not None, "what is taken has come whole"
        self._catalog.take(incoming.buckets, route)
        self._applied.set_sequences(incoming.buckets, prepared.workers, prepared.sequences)
        self._workers.merge(prepared.roster)

    def _erase(self, buckets: Sequence[int]) -> None:
        for stats in self._catalog.stats():
            table: Table = self._catalog.table(stats.spec.name)
            for first, end in _ranges(buckets):
                table.drop_buckets(first, end)

    def begin_anew(self) -> None:
        """Gives up what is under way, as rows were replaced, or a table made or dropped.

        What has come whole stays: its source has given it up by the same, or will find
        that it must be taken.
        """
        self.void()
        for each in self.incoming:
            if each.prepared is None:
                self.do(Discard(each.move))

    def state(self) -> MovesState:
        """Returns what is remembered after a kill."""
        return MovesState(self._versions.copy(), self.incoming)

    def restore(self, state: MovesState) -> None:
        """Takes what was remembered."""
        self._versions = state.versions.copy()
        self._incoming = {each.move: each for each in state.incoming}


def _moved() -> RouteMismatch:
    return RouteMismatch("buckets of this server have moved in the middle of a step; ask for them")


def _ranges(buckets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields the first and the end of each run of buckets that follow one another.

    >>> list(_ranges([3, 4, 5, 9]))
    [(3, 6), (9, 10)]
    """
    numbers = np.sort(np.array(buckets, np.intp))
    for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        if len(run):
            yield int(run[0]), int(run[-1]) + 1
