"""Least: the first of some numbers that does, where all after it do, too."""

from collections.abc import Callable

__all__ = ["least"]


def least(most: int, does: Callable[[int], bool]) -> int | None:
    """Returns the least number from 1 to `most` that does, None if none is found.

    A small one is found soon: numbers are doubled until one does, and then halved between.

    Args:
        most: Of the numbers.
        does: Of a number; if it does, larger ones do, too.

    >>> least(100, lambda number: number >= 37)
    37
    """
    low, high = 0, 1
    if most < 1:
        return None
    while not does(high):
        if high == most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if does(middle) else (middle, high)
    return high
