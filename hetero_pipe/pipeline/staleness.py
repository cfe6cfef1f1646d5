"""StalenessGate: how many of the latest pushes a pull may miss."""

import threading
import time
from collections.abc import Callable

from hetero_pipe.pipeline.handoff import Closed
from hetero_pipe.pipeline.timeline import GATE
from ps_server.spans import SpanRing

__all__ = ["StalenessGate"]


class StalenessGate:
    """Holds the pull of a step until enough pushes are acknowledged.

    With staleness k the pull of step t waits for the acknowledgement of push
    t - 1 - k, so it misses at most pushes t - k to t - 1::

        k = 0   pull 0 · push 0 · pull 1 · push 1 · pull 2 · ...
        k = 1   pull 0 · pull 1 · push 0 · pull 2 · push 1 · ...

    Steps count from `first_step` and pushes are acknowledged in step order.

    Args:
        staleness: Pushes that a pull may miss, at least 0.
        first_step: Number of the first step.
        ring: Records each wait, as one of `pull`; None records none.
        clock: Tells the time, in seconds.

    Raises:
        ValueError: `staleness` is negative.
    """

    def __init__(
        self,
        staleness: int,
        *,
        first_step: int = 0,
        ring: SpanRing | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if staleness < 0:
            raise ValueError(f"staleness must be at least 0, got staleness={staleness}")
        self._staleness = staleness
        self._ring = ring
        self._clock = clock
        self._changed = threading.Condition()
        self._num_done = first_step  # pushes of all steps below this are acknowledged
        self._largest = 0
        self._num_missed = 0
        self._seconds_waited = 0.0
        self._closed = False

    @property
    def largest_seen(self) -> int:
        """The most pushes that a pull has missed."""
        return self._largest

    @property
    def num_missed(self) -> int:
        """The pushes that pulls have missed, summed over the pulls."""
        return self._num_missed

    @property
    def seconds_waited(self) -> float:
        """Seconds that pulls have waited here."""
        return self._seconds_waited

    def wait_to_pull(self, step: int) -> None:
        """Returns when the pull of `step` may start.

        Raises:
            Closed: The gate was closed.
        """
        start = self._clock()
        with self._changed:
            self._changed.wait_for(lambda: self._closed or step - self._num_done <= self._staleness)
            end = self._clock()
            self._seconds_waited += end - start
            if self._closed:
                raise Closed
            missed = step - self._num_done
            self._largest = max(self._largest, missed)
            self._num_missed += missed
        if self._ring is not None:
            self._ring.record("pull", GATE, step, start, end)

    def acknowledge(self, step: int) -> None:
        """Says that the push of `step` is applied on every server."""
        with self._changed:
            assert step == self._num_done, f"push {step} acknowledged after {self._num_done - 1}"
            self._num_done = step + 1
            self._changed.notify_all()

    def close(self) -> None:
        """Wakes a pull that waits; it and later ones raise `Closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
