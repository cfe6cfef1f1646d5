"""Makes the next items in a thread while the caller works on this one."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ahead"]

T = TypeVar("T")


def ahead(items: Generator[T, None, None], depth: int) -> Generator[T, None, None]:
    """Yields the items of a generator, in order, that a thread makes up to `depth` early.

    A failure of the generator is raised where its item would have been. The
    generator is closed and its thread is gone when this one ends or is closed.

    Args:
        items: Runs in the thread alone.
        depth: Items that wait for the caller, at least 1.

    >>> list(ahead((i * i for i in range(4)), depth=2))
    [0, 1, 4, 9]
    """
    end = object()
    try:
        with ThreadPoolExecutor(1, "ahead") as thread:
            waiting = deque(thread.submit(next, items, end) for _ in range(depth))
            try:
                while (item := waiting.popleft().result()) is not end:
                    waiting.append(thread.submit(next, items, end))
                    yield item  # type: ignore[misc]  # `end` has left, which mypy cannot see
            finally:
                for future in waiting:
                    future.cancel()
    finally:
        items.close()
