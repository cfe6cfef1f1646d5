"""LeasedBatches: the batches of the ranges that a worker is leased, and what becomes of them."""

import threading
from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import islice

from hetero_pipe.client import Client, Lease, LeaseKind, Origin
from hetero_pipe.data import Batch, Reader
from hetero_pipe.trainer.holder import Holder

__all__ = ["LeasedBatches", "Place"]


@dataclass(frozen=True)
class Place:
    """Which batch of a run one is.

    Attributes:
        lease: Of its range.
        origin: Of its push.
    """

    lease: Lease
    origin: Origin

    @property
    def step(self) -> int:
        """From 1: which batch of the run it is, as an optimizer counts the updates of a table."""
        return self.lease.num_before + self.origin.sequence


class LeasedBatches:
    """The batches of this worker, range by range, until something else than training is due.

    An iterator, for one thread. Another one, which pushes, asks where each batch
    belongs, in their order, and says when it is pushed: a range is completed when all
    that it has are read and pushed, by whichever thread comes last.

    Args:
        reader: Of all workers' batches.
        client: Tells how far a range is that another worker has begun.
        holder: Leases.
        limit: Batches after which it ends; None is no limit.

    Attributes:
        found: What is due after the last batch: an OPEN, CLOSE or END; None if it was
            stopped, or came to the limit.
    """

    def __init__(
        self, reader: Reader, *, client: Client, holder: Holder, limit: int | None
    ) -> None:
        self._client = client
        self._holder = holder
        self._limit = limit
        self._stream = _Stream(reader)
        self._stopping = threading.Event()
        self._places: deque[Place] = deque()  # of batches that were read and not pushed yet
        self._lock = threading.Lock()  # guards the two below
        self._num_pending: dict[int, int] = {}  # batches read and not pushed, by range
        self._num_batches: dict[int, int] = {}  # of ranges that were read to their end
        self._batches: Generator[Batch, None, None] = self._read()
        self.found: tuple[Lease, int] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def next_place(self) -> Place:
        """Returns where the next batch belongs that is to be pushed."""
        return self._places.popleft()

    def pushed(self, place: Place) -> None:
        """Says that a batch is applied on every server.

        Raises:
            ServerError: Its range was the last one's, and a server could not be told.
        """
        number = place.lease.number
        with self._lock:
            self._num_pending[number] -= 1
        self._complete(number)

    def stop(self) -> None:
        """Ends it, wherever it waits; called by another thread."""
        self._stopping.set()

    def close(self) -> None:
        """Ends the reading. Called when nobody iterates."""
        self._batches.close()
        self._stream.close()

    def _read(self) -> Generator[Batch, None, None]:
        num_given = 0
        while not self._stopping.is_set():
            if num_given == self._limit:
                return
            leased = self._holder.acquire()
            if leased is None:
                continue
            lease, worker = leased
            if lease.kind is not LeaseKind.TRAIN:
                self.found = leased
                return
            with self._lock:
                self._num_pending[lease.number] = 0
            num_done = self._client.progress(worker)  # by those who held it before
            num_read = 0
            for batch in self._stream.range(lease):
                num_read += 1
                if num_done is None or num_read <= num_done:
                    continue
                if num_given == self._limit or self._stopping.is_set():
                    return
                with self._lock:
                    self._num_pending[lease.number] += 1
                self._places.append(Place(lease, Origin(worker, num_read)))
                num_given += 1
                yield batch
            with self._lock:
                self._num_batches[lease.number] = num_read
            self._complete(lease.number)

    def _complete(self, number: int) -> None:
        """Completes a range if all that it has are read and pushed."""
        with self._lock:
            if self._num_pending.get(number, 1) or number not in self._num_batches:
                return  # or another thread has been faster
            del self._num_pending[number]
            num_batches = self._num_batches.pop(number)
        self._holder.complete(number, num_batches=num_batches)


class _Stream:
    """A reader's batches by their numbers; it goes on where it stands, if that is not too far."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._batches: Iterator[Batch] = iter(())
        self._at = -1, 0  # epoch, and the number in it of the next batch

    def range(self, lease: Lease) -> Iterator[Batch]:
        """Yields the batches of a range, those that the data have."""
        epoch, number = self._at
        if epoch != lease.epoch or number > lease.first_batch:
            self.close()
            self._batches = self._reader.batches(lease.epoch, skip=lease.first_batch)
            number = lease.first_batch
        # Those of others are read and dropped, as a reader's `skip` would do.
        for _ in islice(self._batches, lease.first_batch - number):
            pass
        self._at = lease.epoch, lease.first_batch
        for batch in islice(self._batches, lease.size):
            self._at = lease.epoch, self._at[1] + 1
            yield batch

    def close(self) -> None:
        """Ends the reading."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
