"""Handoff: the bounded queue between two stages."""

import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Closed", "Handoff"]

Item = TypeVar("Item")


class Closed(Exception):
    """The hand-off has no more items, or will take none."""


class Handoff(Generic[Item]):
    """Passes items from one thread to another, at most `capacity` waiting.

    `finish` says that no more items come: those that wait are still taken.
    `abort` drops them and wakes both sides.

    Args:
        capacity: Items that may wait, at least 1.

    Raises:
        ValueError: `capacity` is below 1.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a hand-off needs capacity >= 1, got capacity={capacity}")
        self._capacity = capacity
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._finished = False
        self._aborted = False

    def put(self, item: Item) -> None:
        """Adds an item; blocks while the hand-off is full.

        Raises:
            Closed: The hand-off was aborted or finished.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed() or len(self._items) < self._capacity)
            if self._is_closed():
                raise Closed
            self._items.append(item)
            self._changed.notify_all()

    def get(self) -> Item:
        """Takes the oldest item; blocks while there is none.

        Raises:
            Closed: The hand-off was aborted, or finished and is empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed() or len(self._items) > 0)
            if self._aborted or not self._items:
                raise Closed
            item = self._items.popleft()
            self._changed.notify_all()
            return item

    def finish(self) -> None:
        """Says that no more items come."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def abort(self) -> None:
        """Drops what waits and takes no more."""
        with self._changed:
            self._aborted = True
            self._items.clear()
            self._changed.notify_all()

    def _is_closed(self) -> bool:
        return self._aborted or self._finished
