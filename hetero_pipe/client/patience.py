"""How long a call to a server that is away is repeated, and how often."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["Patience", "Retry", "delays"]

FIRST_DELAY = 0.1
LONGEST_DELAY = 0.5  # a server is back in about as long


@dataclass(frozen=True)
class Retry:
    """How calls are repeated.

    Attributes:
        seconds: From the first failure of a call until it is given up; 0 gives it up
            at once.
        rng: Draws the jitter.
        clock: Tells the time, in seconds.
    """

    seconds: float
    rng: np.random.Generator
    clock: Callable[[], float] = time.monotonic


def delays(rng: np.random.Generator) -> Iterator[float]:
    """Yields the seconds before each attempt: 0.1 doubling to 0.5, each shortened by up to a half.

    By a random part of it, so that many workers do not knock all at once on a
    server that comes back.

    >>> [round(delay, 2) for delay, _ in zip(delays(np.random.default_rng(0)), range(7))]
    [0.08, 0.13, 0.21, 0.25, 0.45, 0.48, 0.4]
    """
    delay = FIRST_DELAY
    while True:
        yield delay * float(rng.uniform(0.5, 1.0))
        delay = min(2 * delay, LONGEST_DELAY)


class Patience:
    """What is left of it, for one call, since that failed. Used by one thread at a time.

    Args:
        retry: How long it lasts.

    Attributes:
        is_told: Whether somebody said what the call waits for.
        was_refused: Whether it waits, or waited, for room on the server.
    """

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._delays = delays(retry.rng)
        self._began = retry.clock()
        self.is_told = False
        self.was_refused = False

    @property
    def spent(self) -> float:
        """Seconds since the first failure."""
        return self._retry.clock() - self._began

    @property
    def left(self) -> float:
        """Seconds until the call is given up, 0 or less when it is."""
        return self._retry.seconds - self.spent

    def next_delay(self) -> float | None:
        """Returns the seconds to wait before the next attempt; None if there is to be none."""
        left = self.left
        return min(next(self._delays), left) if left > 0 else None
