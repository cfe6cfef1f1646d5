"""Order: which changes of a server go beside one another, and which one goes alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Order"]


class Order:
    """A gate through which every change of a server goes. Used from any thread.

    Changes of different rows pass side by side. What needs a moment without any
    change, a freeze of all tables or a log that tells one change from the next,
    goes alone::

        shared   ──────        │ waits ···──────
        shared      ───────    │ waits ···────
        alone         waits ···██████│

    One that wants to be alone waits for those that are in, and holds up those
    that come after it: it gets its turn however many others there are. Whoever
    is in must not enter again, nor wait for another that has yet to enter.
    """

    def __init__(self) -> None:
        self._entrance = threading.Lock()  # held by one that is alone, or waits to be
        self._left = threading.Condition()  # guards the number
        self._num_inside = 0

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Is in beside others that share."""
        with self._entrance, self._left:
            self._num_inside += 1
        try:
            yield
        finally:
            with self._left:
                self._num_inside -= 1
                self._left.notify()  # one at most waits: it holds the entrance

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Is in while nobody else is."""
        with self._entrance:
            with self._left:
                self._left.wait_for(lambda: self._num_inside == 0)
            yield
