"""Applied: which pushes are in the rows of each bucket, so that each is applied once.

A push may come again: its answer was lost, or its server was killed after it had
the push and before it could say so. Whoever pushes numbers its pushes 1, 2, 3, ...
and begins the next when the last was answered. So of each worker one number a
bucket says it all: pushes up to that one are in the rows of the bucket, later
ones are not. It is a number for each bucket as buckets move from server to server
and bring theirs along.

    last[worker][bucket]    a push of sequence n
    n or more               is in these rows: it is not applied again
    n - 1                   is the next: it is applied
    less                    would leave one out: it is refused

A worker that is not known has pushed nothing, so its first push is 1. That holds
too for one that was forgotten since: what it pushes on is refused, neither lost
nor doubled. Its push 1 alone could be applied again, if so many others began to
push between it and its repetition that it was forgotten.

Where batches are leased in ranges, a push is known by its range: its worker is the
range's number (`range_worker`), its sequence which batch of the range it is. When all
of a range is applied on every server, it is *finished*: of it, a server remembers that
for ever, and no sequences. A holder that slept through all that can do no harm.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ps_server.change import Gradients, Origin
from ps_server.intervals import Intervals
from ps_server.keys import bucket_of
from ps_server.spec import NUM_BUCKETS

__all__ = [
    "MAX_REMEMBERED",
    "Applied",
    "AppliedState",
    "Buckets",
    "InWork",
    "range_worker",
    "still_to_apply",
]

MAX_REMEMBERED = 1024
"""Workers whose pushes a server remembers, 32 KiB each: 16 generations of the most that join."""

Buckets = NDArray[np.bool_]
"""Some of the buckets, `[4096]`."""


@dataclass(frozen=True, eq=False)
class AppliedState:
    """What an `Applied` knows, of some buckets or all.

    Attributes:
        workers: Those known, the one that pushed last at the end, `[w]`.
        sequences: The last push of each in each bucket, 0 if none is known,
            `[w, 4096]`.
        finished: First and last of each run of numbers whose pushes are finished,
            `[r, 2]`.
    """

    workers: NDArray[np.uint64]
    sequences: NDArray[np.uint64]
    finished: NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 2), np.uint64))


class Applied:
    """The last push of each worker in each bucket. May be used from any thread.

    Args:
        max_workers: How many are remembered; the one that has not pushed for
            longest goes first.
    """

    def __init__(self, *, max_workers: int = MAX_REMEMBERED) -> None:
        self._max_workers = max_workers
        self._lock = threading.Lock()  # guards the rest
        self._last: OrderedDict[int, NDArray[np.uint64]] = OrderedDict()
        self._finished = Intervals()

    def pending(self, origin: Origin, owned: Buckets) -> Buckets:
        """Returns the buckets of `owned` that a push is not in yet.

        Raises:
            ValueError: It is not the next of its worker in one of them.
        """
        with self._lock:
            if origin.worker in self._finished:
                return np.zeros(NUM_BUCKETS, dtype=np.bool_)
            last = self._last.get(origin.worker)
            if last is None:
                last = _nothing()
            pending = owned & (last < origin.sequence)
            skips = pending & (last < origin.sequence - 1)
            if skips.any():
                lowest, where = int(last[skips].min()), np.flatnonzero(skips)
                raise ValueError(
                    f"worker {origin.worker:#x} pushes one after the other, to every server, got "
                    f"sequence={origin.sequence} where {lowest} was its last, in {len(where)} "
                    f"buckets from {where[0]} on; pushes {lowest + 1} to {origin.sequence - 1} "
                    "are missing here: go on from a checkpoint (this server remembers the last "
                    f"{self._max_workers} workers that pushed)"
                )
            return pending

    def note(self, origin: Origin, owned: Buckets) -> None:
        """Remembers that a push is in the rows of `owned`, also where it had no keys."""
        with self._lock:
            if origin.worker in self._finished:
                return
            last = self._last.setdefault(origin.worker, _nothing())
            last[owned & (last < origin.sequence)] = origin.sequence
            self._last.move_to_end(origin.worker)
            self._forget_the_oldest()

    def forget(self, worker: int) -> None:
        """Forgets a worker that pushes no more; one that is not known is no error."""
        with self._lock:
            self._last.pop(worker, None)

    def progress(self, worker: int, owned: Buckets) -> int | None:
        """Returns the last push of a worker that is in all of `owned`; None if it is finished."""
        with self._lock:
            if worker in self._finished:
                return None
            last = self._last.get(worker)
            return 0 if last is None else int(last[owned].min(initial=np.uint64(2**63)))

    @property
    def has_any_finished(self) -> bool:
        """Whether pushes by any number have finished."""
        with self._lock:
            return len(self._finished.state()) > 0

    def has_finished(self, first: int, last: int) -> bool:
        """Whether all numbers from `first` to `last` are among those that have finished."""
        with self._lock:
            return self._finished.has_run(first, last)

    def finish(self, first: int, last: int) -> None:
        """Remembers that pushes by the numbers from `first` to `last` are applied no more.

        All that were to be are, on every server.
        """
        with self._lock:
            self._finished.add_run(first, last)
            self._forget_the_finished()

    def state(self) -> AppliedState:
        """Returns a copy of all that is known."""
        with self._lock:
            return self._copy()

    def restore(self, state: AppliedState) -> None:
        """Takes what was known for all that is."""
        with self._lock:
            pairs = zip(state.workers.tolist(), state.sequences, strict=True)
            self._last = OrderedDict((worker, last.copy()) for worker, last in pairs)
            self._finished = Intervals()
            self._finished.update(state.finished)
            self._forget_the_oldest()

    def sequences_of(self, buckets: Sequence[int]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Returns the workers `[w]` and the last push of each in each bucket, `[w, buckets]`."""
        with self._lock:
            known = self._copy()
        return known.workers, known.sequences[:, list(buckets)]

    def set_sequences(
        self,
        buckets: Sequence[int],
        workers: NDArray[np.uint64],
        sequences: NDArray[np.uint64],
    ) -> None:
        """Takes what is known of buckets that come from another server, and nothing else of them.

        Args:
            buckets: Which.
            workers: Those known there, `[w]`.
            sequences: The last push of each in each bucket, `[w, buckets]`.
        """
        where = list(buckets)
        with self._lock:
            for last in self._last.values():
                last[where] = 0
            for worker, known in zip(workers.tolist(), sequences, strict=True):
                self._last.setdefault(worker, _nothing())[where] = known
            self._forget_the_finished()
            self._forget_the_oldest()

    def forget_buckets(self, buckets: Sequence[int]) -> None:
        """Forgets what is known of buckets that are another server's now."""
        none = np.empty(0, np.uint64)
        self.set_sequences(buckets, none, none.reshape(0, len(buckets)))

    def _copy(self) -> AppliedState:
        sequences = np.array(list(self._last.values()), dtype=np.uint64)
        return AppliedState(
            np.array(list(self._last), dtype=np.uint64),
            sequences.reshape(-1, NUM_BUCKETS),
            self._finished.state(),
        )

    def _forget_the_finished(self) -> None:
        for worker in [each for each in self._last if each in self._finished]:
            del self._last[worker]

    def _forget_the_oldest(self) -> None:
        while len(self._last) > self._max_workers:
            self._last.popitem(last=False)


def range_worker(table_id: int, number: int) -> int:
    """Returns the number by which the pushes of a range are known.

    Those of the ranges of one run follow one another.

    Args:
        table_id: Of the table whose run it is, on the server that leases.
        number: Of the range, below 2**32 - 1.

    >>> hex(range_worker(0xABCDEF0123456789, 4))
    '0xabcdef0100000005'
    """
    return (table_id >> 32 << 32) + number + 1


def still_to_apply(gradients: Gradients, pending: Buckets, owned: Buckets) -> Gradients:
    """Returns the gradients of the keys in buckets that a push is not in yet.

    Keys are looked at only where a push is in some of the buckets and not in
    others, which is when buckets have moved between it and its repetition.

    Args:
        gradients: Of a push.
        pending: Buckets that it is not in.
        owned: All that it may be for here.
    """
    if np.array_equal(pending, owned):
        return gradients
    if not pending.any():
        return {}
    left = {}
    for name, (keys, gradient) in gradients.items():
        is_left = pending[bucket_of(keys)]
        dim = gradient.size // max(len(keys), 1)
        left[name] = keys[is_left], gradient.reshape(len(keys), dim)[is_left]
    return left


class InWork:
    """The pushes that are in work: one that is repeated waits for the end of the first.

    Whatever the first waits for, the other does: for its rows, or the parts of
    other workers. Used from any thread.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the rest
        self._origins: set[Origin] = set()

    @contextmanager
    def turn(self, origin: Origin) -> Iterator[None]:
        """Is in work with a push, while no other has the same origin."""
        with self._changed:
            self._changed.wait_for(lambda: origin not in self._origins)
            self._origins.add(origin)
        try:
            yield
        finally:
            with self._changed:
                self._origins.discard(origin)
                self._changed.notify_all()


def _nothing() -> NDArray[np.uint64]:
    return np.zeros(NUM_BUCKETS, dtype=np.uint64)
