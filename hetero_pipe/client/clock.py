"""How far apart the clocks of two hosts are, told by round trips."""

import time
from collections.abc import Callable

from hetero_pipe.client.transport import ControlPlane, TraceAction

__all__ = ["clock_ahead", "offset_of"]

NUM_TRIPS = 16


def clock_ahead(server: ControlPlane, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Returns by how many seconds the clock of a server is ahead of this process's.

    Raises:
        ServerError: The server failed or did not answer.
    """
    trips = []
    for _ in range(NUM_TRIPS):
        sent = clock()
        there = server.trace(TraceAction.CLOCK).result().clock
        trips.append((sent, there, clock()))
    return offset_of(trips)


def offset_of(trips: list[tuple[float, float, float]]) -> float:
    """Returns how far the other clock is ahead, of what round trips have read.

    The other clock was read between the two readings of this one, so of a trip
    the offset lies within half of its length around that of the middle; of the
    shortest trip, that is closest. Where 0 is as possible, it is 0: processes of
    one host have one clock, and are not to be pulled apart by an estimate.

    Args:
        trips: Seconds of this clock before, of the other, of this one after.

    Reference:
        Cristian, "Probabilistic clock synchronization", Distributed Computing 3,
        1989.

    >>> offset_of([(10.0, 511.0, 14.0), (20.0, 520.5, 21.0)])
    500.0
    >>> offset_of([(10.0, 10.25, 11.0)])
    0.0
    """
    sent, there, back = min(trips, key=lambda trip: trip[2] - trip[0])
    return 0.0 if sent <= there <= back else there - (sent + back) / 2
