"""Leases: workers take ranges of batches for a while, and lose them if they fall silent."""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from ps_server.change import RangeCompleted, RangeLeased, RangeReturned
from ps_server.order import Order
from ps_server.ranges import Ranges, RangesState

__all__ = ["Ask", "Lease", "LeaseKind", "Leases"]

logger = logging.getLogger(__name__)


class LeaseKind(Enum):
    """What a worker that asked for a range is to do."""

    WAIT = "WAIT"  # and ask again: others hold what is left
    OPEN = "OPEN"
    TRAIN = "TRAIN"
    CLOSE = "CLOSE"
    END = "END"  # all epochs are over


@dataclass(frozen=True)
class Ask:
    """What a worker says when it asks for a range.

    Attributes:
        holder: The worker's number, not 0.
        held: Numbers of the ranges that it knows to hold. One that it does not
            know of is given to it again: the answer was lost.
        size: Batches of a range; that of the first who asks counts.
        seconds: How long it may be silent.
        epochs: After how many it ends.
    """

    holder: int
    held: frozenset[int]
    size: int
    seconds: float
    epochs: int

    def __post_init__(self) -> None:
        if self.holder == 0 or self.size < 1 or not self.seconds > 0 or self.epochs < 0:
            raise ValueError(
                "a lease needs a holder, a range of batches, seconds above 0 and epochs, got "
                f"holder={self.holder}, size={self.size}, seconds={self.seconds}, "
                f"epochs={self.epochs}"
            )


@dataclass(frozen=True)
class Lease:
    """The answer: a range, if `kind` is not WAIT or END.

    Attributes:
        kind: What to do.
        number: Of the range.
        epoch: That it is of, from 0.
        first_batch: Where in the epoch it begins.
        size: Batches that it has, if the data do not end in it.
        num_before: Batches of the run before it: of the epochs that are over, and of
            this one.
    """

    kind: LeaseKind
    number: int = 0
    epoch: int = 0
    first_batch: int = 0
    size: int = 0
    num_before: int = 0


class Leases:
    """Who holds which range of which table's run. May be used from any thread.

    A run goes with a table: when that is dropped, it is over. A range whose
    holder has been silent for as long as it said goes to the next who asks.
    Changes go through `order`, and so into its log; signs of life do not: after a
    kill, each holder has all of its time again.

    A worker that lost its range and does not know can go on: what it pushes was
    applied, or is by then (`applied`), and that it has completed the range is true.

    Locks are taken in this order: a turn of `order`, then `_changed`.

    Args:
        order: Of the changes of the server.
        clock: Tells the time, in seconds.
    """

    def __init__(self, order: Order, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._order = order
        self._time = clock
        self._changed = threading.Condition()  # guards all below
        self._runs: dict[str, Ranges] = {}
        self._silent: dict[int, tuple[float, float]] = {}  # holder: since when, how long it may be
        self._num_changes = 0
        self._is_closed = False

    def acquire(
        self, table: str, ask: Ask, *, wait_seconds: float, check: Callable[[], None]
    ) -> Lease:
        """Returns a range, as soon as there is one; WAIT after so many seconds.

        Args:
            table: Whose run it is.
            ask: Who asks for what.
            wait_seconds: How long to wait for one.
            check: Raises if there is no such table.

        Raises:
            NotLogged: The log is full; nothing changed.
        """
        until = self._time() + wait_seconds
        while True:
            with self._order.turn():
                check()
                with self._changed:
                    self._hear(ask.holder, ask.seconds)
                    lease, seen = self._take(table, ask), self._num_changes
            with self._changed:
                if lease.kind is not LeaseKind.WAIT or self._is_closed or self._time() >= until:
                    return lease
                left = min(until, self._next_deadline()) - self._time()
                if self._num_changes == seen:
                    self._changed.wait(max(left, 0.0))

    def renew(self, holder: int, seconds: float) -> None:
        """Says that a worker lives, and how long it may be silent from now on."""
        with self._changed:
            self._hear(holder, seconds)

    def complete(self, table: str, number: int, *, num_batches: int) -> None:
        """Ends a range, whoever holds it; one that is complete, or of no run, is no error.

        Raises:
            NotLogged: The log is full; nothing changed.
        """
        change = RangeCompleted(table, number, num_batches)
        with self._order.turn(), self._changed:
            run = self._runs.get(table)
            if run is not None and not run.is_complete(number):
                self._make(change)

    def give_back(self, table: str, number: int, *, holder: int) -> None:
        """Ends a lease before its range is complete; one that is over is no error.

        Raises:
            NotLogged: The log is full; nothing changed.
        """
        with self._order.turn(), self._changed:
            run = self._runs.get(table)
            if run is not None and run.held.get(number) == holder:
                self._make(RangeReturned(table, number))

    def drop(self, table: str) -> None:
        """Ends the run of a table that is dropped. To be called alone in `order`."""
        with self._changed:
            self._runs.pop(table, None)
            self._tell()

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def state(self) -> dict[str, RangesState]:
        """Returns a copy of all runs, by table. To be called alone in `order`."""
        with self._changed:
            return {table: run.state() for table, run in self._runs.items()}

    def restore(self, state: Mapping[str, RangesState]) -> None:
        """Takes what was known for all that is."""
        with self._changed:
            self._runs = {table: Ranges(run) for table, run in state.items()}

    def replay(self, change: RangeLeased | RangeReturned | RangeCompleted) -> None:
        """Makes a change that was logged before a kill."""
        with self._changed:
            self._do(change)

    def _take(self, table: str, ask: Ask) -> Lease:
        run = self._runs.get(table) or Ranges(RangesState(ask.size))
        forgotten = [n for n, h in run.held.items() if h == ask.holder and n not in ask.held]
        if forgotten:
            return _lease(run, min(forgotten))
        self._take_back(table, run)
        if run.epoch >= ask.epochs:
            return Lease(LeaseKind.END, epoch=run.epoch)
        number = run.offered()
        if number is None:
            return Lease(LeaseKind.WAIT)
        self._make(RangeLeased(table, number, ask.holder, run.size))
        return _lease(self._runs[table], number)

    def _take_back(self, table: str, run: Ranges) -> None:
        for number, holder in sorted(run.held.items()):
            since, seconds = self._silent.setdefault(holder, (self._time(), _SECONDS))
            if self._time() >= since + seconds:
                logger.warning(
                    "range %d of table %s goes to another worker: its holder has been silent for "
                    "%g s",
                    number,
                    table,
                    seconds,
                )
                self._make(RangeReturned(table, number))

    def _next_deadline(self) -> float:
        """Returns when the next range may be taken back, infinity if none is held."""
        holders = {holder for run in self._runs.values() for holder in run.held.values()}
        heard = [self._silent[holder] for holder in holders if holder in self._silent]
        return min((since + seconds for since, seconds in heard), default=float("inf"))

    def _hear(self, holder: int, seconds: float) -> None:
        self._silent.pop(holder, None)
        self._silent[holder] = self._time(), seconds
        held = {each for run in self._runs.values() for each in run.held.values()}
        for other in [each for each in self._silent if each != holder and each not in held]:
            del self._silent[other]  # who holds nothing has nothing to lose

    def _make(self, change: RangeLeased | RangeReturned | RangeCompleted) -> None:
        self._order.make(change, lambda: self._do(change))
        self._tell()

    def _tell(self) -> None:
        self._num_changes += 1
        self._changed.notify_all()

    def _do(self, change: RangeLeased | RangeReturned | RangeCompleted) -> None:
        match change:
            case RangeLeased(table, number, holder, size):
                self._runs.setdefault(table, Ranges(RangesState(size))).lease(number, holder)
            case RangeReturned(table, number):
                self._runs[table].give_back(number)
            case RangeCompleted(table, number, num_batches):
                self._runs[table].complete(number, num_batches)


_SECONDS = 10.0  # of a holder that has not been heard since this server was started


def _lease(run: Ranges, number: int) -> Lease:
    kind = LeaseKind[run.kind_of(number).name]
    first = run.first_batch(number) if kind is LeaseKind.TRAIN else 0
    return Lease(kind, number, run.epoch, first, run.size, run.num_before + first)
