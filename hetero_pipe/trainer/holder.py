"""Holder: the ranges of batches that a worker holds, and that it lives."""

import logging
import threading
from types import TracebackType

import numpy as np

from hetero_pipe.client import Ask, Client, Lease, LeaseKind
from hetero_pipe.errors import HeteroPipeError, ServerError
from hetero_pipe.plan import WorkersPlan

__all__ = ["Holder"]

logger = logging.getLogger(__name__)

# Of a request for a range, so that who is told to stop notices.
WAIT_SECONDS = 0.5
# Of the time that a worker may be silent: two signs of life may be lost.
RENEW_SHARE = 1 / 4


class Holder:
    """The ranges that this worker holds. Used by several threads.

    A context manager; while it is entered, a thread of its own says to the servers
    that the worker lives. Leaving it gives back what is held, so that others need
    not wait until the leases end.

    Args:
        client: Has attached the table.
        table: Whose run it is.
        workers: Says how large a range is, and how long a worker may be silent.
        epochs: After how many the run ends.
        rng: Draws the worker's number; None takes one of its own.
    """

    def __init__(
        self,
        client: Client,
        table: str,
        *,
        workers: WorkersPlan,
        epochs: int,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._client = client
        self._table = table
        self._workers = workers
        self._epochs = epochs
        rng = rng or np.random.default_rng()
        self._number = int(rng.integers(1, 2**64, dtype=np.uint64))
        self._lock = threading.Lock()  # guards `_held`
        self._held: dict[int, int] = {}  # `Origin.worker` of each, by number
        self._left = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="renew-leases")

    def acquire(self) -> tuple[Lease, int] | None:
        """Returns the next range and whose its pushes are, or END; None if others hold the rest.

        Raises:
            ServerError: A server refused, failed or did not answer.
        """
        with self._lock:
            held = frozenset(self._held)
        ask = Ask(
            self._number,
            held,
            size=self._workers.range_batches,
            seconds=self._workers.lease_seconds,
            epochs=self._epochs,
        )
        lease, worker = self._client.lease(self._table, ask, wait_seconds=WAIT_SECONDS)
        if lease.kind is LeaseKind.WAIT:
            return None
        if lease.kind is not LeaseKind.END:
            with self._lock:
                self._held[lease.number] = worker
        return lease, worker

    def complete(self, number: int, *, num_batches: int) -> None:
        """Ends a range whose pushes are applied on every server.

        Args:
            number: Of the range.
            num_batches: That it has, 0 of one that opens or closes.

        Raises:
            ServerError: A server refused, failed or did not answer.
        """
        with self._lock:
            worker = self._held[number]
        self._client.finish(worker, worker)
        self._client.end_lease(self._table, number, holder=self._number, num_batches=num_batches)
        with self._lock:  # until now it was held: what a server leases anew is what nobody knows of
            del self._held[number]

    def _renew(self) -> None:
        seconds = self._workers.lease_seconds
        while not self._left.wait(seconds * RENEW_SHARE):
            try:
                self._client.renew_lease(self._number, seconds=seconds)
            except HeteroPipeError as error:  # the next call meets it, too
                logger.debug("%s", error)

    def __enter__(self) -> "Holder":
        self._renewing.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._left.set()
        self._renewing.join()
        if isinstance(error, ServerError):
            return  # it was waited for already; the leases end by themselves
        try:
            for number in sorted(self._held):
                self._client.end_lease(self._table, number, holder=self._number)
        except HeteroPipeError as failure:
            logger.debug("ranges are not given back: %s", failure)
