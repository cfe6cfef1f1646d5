"""Credits and Intake: the two ends of a bounded hand-off between hosts."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from hetero_pipe.errors import ConfigError, HeteroPipeError, StageError
from hetero_pipe.pipeline.handoff import Closed

__all__ = ["Credits", "Intake"]

Item = TypeVar("Item")


class Credits:
    """How many more items the sender may send. Thread safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._number = 0
        self._error: HeteroPipeError | None = None

    def grant(self, number: int) -> None:
        """Adds credits."""
        with self._changed:
            self._number += number
            self._changed.notify_all()

    def take(self, *, is_given_up: Callable[[], bool] = lambda: False) -> None:
        """Takes one credit; blocks while there is none.

        Args:
            is_given_up: Asked at each `wake`: whether to wait no longer.

        Raises:
            Closed: It was given up.
            HeteroPipeError: What `fail` was told.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._number or self._error or is_given_up())
            if self._error is not None:
                raise self._error
            if is_given_up():
                raise Closed
            self._number -= 1

    def fail(self, error: HeteroPipeError) -> None:
        """Makes every `take` raise, also one that waits; the first error stays."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wake(self) -> None:
        """Makes a `take` that waits ask whether it is given up."""
        with self._changed:
            self._changed.notify_all()


class _End(str):
    """The call that a peer has no more items for."""

    __slots__ = ()


class Intake(Generic[Item]):
    """Holds what peers have sent, at most `capacity` items of each. Thread safe.

    A peer's items stay in order. Behind the end of a call, those of the next one
    wait until every peer has come to the end.

    Args:
        peers: Their names, by rank.
        capacity: Items that may wait of each, at least 1.
    """

    def __init__(self, peers: Sequence[str], *, capacity: int) -> None:
        self._names = list(peers)
        self._capacity = capacity
        self._changed = threading.Condition()
        self._queues: list[deque[Item | _End]] = [deque() for _ in peers]
        self._last = len(self._names) - 1  # whose item was taken last
        self._error: HeteroPipeError | None = None

    def rename(self, rank: int, name: str) -> None:
        """Gives a peer the name that it said it has."""
        self._names[rank] = name

    def put(self, rank: int, item: Item) -> None:
        """Adds an item of a peer; never blocks.

        Raises:
            StageError: More wait than it had credits for.
        """
        with self._changed:
            queue = self._queues[rank]
            if sum(not isinstance(each, _End) for each in queue) == self._capacity:
                raise StageError(
                    f"{self._names[rank]} may have {self._capacity} batches waiting, got one more; "
                    "it sends without credit"
                )
            queue.append(item)
            self._changed.notify_all()

    def end(self, rank: int, call: str) -> None:
        """Says that a peer has no more items of a call."""
        with self._changed:
            self._queues[rank].append(_End(call))
            self._changed.notify_all()

    def take(self, *, is_given_up: Callable[[], bool] = lambda: False) -> tuple[int, Item] | str:
        """Takes the next item of any peer, in turns; blocks while there is none.

        Args:
            is_given_up: Asked at each `wake`: whether to wait no longer.

        Returns:
            Rank and item; or, once every peer has come to the end of a call, that.

        Raises:
            Closed: It was given up.
            ConfigError: Peers have come to the ends of different calls.
            HeteroPipeError: What `fail` was told.
        """
        number = len(self._queues)
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if is_given_up():
                    raise Closed
                turns = [(self._last + 1 + i) % number for i in range(number)]
                heads = {rank: self._queues[rank][0] for rank in turns if self._queues[rank]}
                for rank, head in heads.items():
                    if not isinstance(head, _End):
                        self._last = rank
                        self._queues[rank].popleft()
                        return rank, head
                if len(heads) == number:
                    return self._end_of_call()
                self._changed.wait()

    def fail(self, error: HeteroPipeError) -> None:
        """Makes every `take` raise, also one that waits; the first error stays."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def wake(self) -> None:
        """Makes a `take` that waits ask whether it is given up."""
        with self._changed:
            self._changed.notify_all()

    def _end_of_call(self) -> str:
        calls = [str(queue[0]) for queue in self._queues]
        for rank, call in enumerate(calls):
            if call != calls[0]:
                raise ConfigError(
                    f"all workers run the same script, got {self._names[0]} at the end of "
                    f"{calls[0]} and {self._names[rank]} at the end of {call}"
                )
        for queue in self._queues:
            queue.popleft()
        return calls[0]
