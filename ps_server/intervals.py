"""Intervals: a set of numbers that mostly follow one another, kept by its gaps."""

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Intervals"]


class Intervals:
    """A set of 64-bit numbers; takes 16 bytes a run of numbers, however long that is.

    >>> numbers = Intervals()
    >>> for number in (4, 6, 5, 9):
    ...     numbers.add(number)
    >>> 5 in numbers, 7 in numbers, numbers.state().tolist()
    (True, False, [[4, 6], [9, 9]])
    """

    def __init__(self) -> None:
        self._firsts: list[int] = []  # ascending, aligned with the next
        self._lasts: list[int] = []  # each below the next run's first by 2 or more

    def __contains__(self, number: int) -> bool:
        """Whether a number was added."""
        return self.has_run(number, number)

    def has_run(self, first: int, last: int) -> bool:
        """Whether all numbers from `first` to `last` were added."""
        run = bisect_right(self._firsts, first) - 1
        return run >= 0 and last <= self._lasts[run]

    def add(self, number: int) -> None:
        """Adds a number; one that is there is no error."""
        self.add_run(number, number)

    def add_run(self, first: int, last: int) -> None:
        """Adds the numbers from `first` to `last`."""
        start = bisect_right(self._lasts, first - 2)  # runs before it neither touch nor overlap
        stop = bisect_right(self._firsts, last + 1)
        if start < stop:
            first = min(first, self._firsts[start])
            last = max(last, self._lasts[stop - 1])
        self._firsts[start:stop], self._lasts[start:stop] = [first], [last]

    def state(self) -> NDArray[np.uint64]:
        """Returns first and last of each run, `[r, 2]`, ascending."""
        return np.array([self._firsts, self._lasts], dtype=np.uint64).T.reshape(-1, 2).copy()

    def update(self, runs: NDArray[np.uint64] | Iterable[tuple[int, int]]) -> None:
        """Adds all that another's `state` has."""
        for first, last in runs:
            self.add_run(int(first), int(last))
