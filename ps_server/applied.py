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
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps_server.change import Gradients, Origin
from ps_server.keys import bucket_of
from ps_server.spec import NUM_BUCKETS

__all__ = ["MAX_REMEMBERED", "Applied", "AppliedState", "Buckets", "InWork", "still_to_apply"]

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
    """

    workers: NDArray[np.uint64]
    sequences: NDArray[np.uint64]


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

    def pending(self, origin: Origin, owned: Buckets) -> Buckets:
        """Returns the buckets of `owned` that a push is not in yet.

        Raises:
            ValueError: It is not the next of its worker in one of them.
        """
        with self._lock:
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
            last = self._last.setdefault(origin.worker, _nothing())
            last[owned & (last < origin.sequence)] = origin.sequence
            self._last.move_to_end(origin.worker)
            self._forget_the_oldest()

    def forget(self, worker: int) -> None:
        """Forgets a worker that pushes no more; one that is not known is no error."""
        with self._lock:
            self._last.pop(worker, None)

    def state(self) -> AppliedState:
        """Returns a copy of all that is known."""
        with self._lock:
            return self._copy()

    def restore(self, state: AppliedState) -> None:
        """Takes what was known for all that is."""
        with self._lock:
            pairs = zip(state.workers.tolist(), state.sequences, strict=True)
            self._last = OrderedDict((worker, last.copy()) for worker, last in pairs)
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
            self._forget_the_oldest()

    def forget_buckets(self, buckets: Sequence[int]) -> None:
        """Forgets what is known of buckets that are another server's now."""
        none = np.empty(0, np.uint64)
        self.set_sequences(buckets, none, none.reshape(0, len(buckets)))

    def _copy(self) -> AppliedState:
        sequences = np.array(list(self._last.values()), dtype=np.uint64)
        return AppliedState(
            np.array(list(self._last), dtype=np.uint64), sequences.reshape(-1, NUM_BUCKETS)
        )

    def _forget_the_oldest(self) -> None:
        while len(self._last) > self._max_workers:
            self._last.popitem(last=False)


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
