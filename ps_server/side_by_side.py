"""What a server does with many things at once: native calls, which release the GIL."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["side_by_side"]

Item = TypeVar("Item")
Result = TypeVar("Result")

NUM_THREADS = min(os.cpu_count() or 1, 8)


def side_by_side(act: Callable[[Item], Result], items: Iterable[Item]) -> tuple[Result, ...]:
    """Does something with each item, as many at a time as there are cores.

    Returns:
        What came of each, in the order of the items.

    Raises:
        Exception: What `act` raised, for the first item in order that it failed for; all that were
            begun have ended then.

    >>> side_by_side(abs, [-3, 2, -1])
    (3, 2, 1)
    """
    with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="side") as pool:
        return tuple(pool.map(act, items))
