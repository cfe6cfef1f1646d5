"""Order: how the changes of a server follow one another, and the log of them."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ps_server.change import Change, Log

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

    While it is held, who wants a turn waits, and what is alone goes on.

    Args:
        clock: Tells the time, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entrance = threading.Lock()  # held by one that is alone, or waits to be
        self._left = threading.Condition()  # guards the number
        self._num_inside = 0
        self._log: Log | None = None
        self._failure: BaseException | None = None
        self._held = threading.Condition()  # guards the time
        self._held_until = -math.inf  # changed by one that is alone

    @property
    def is_kept(self) -> bool:
        """Whether there is a log, so that changes are made one at a time."""
        return self._log is not None

    def keep(self, log: Log) -> None:
        """Appends to a log from now on. To be called before requests come."""
        with self.alone():
            self._log = log

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

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Is in to make changes: alone if a log keeps them, otherwise beside others."""
        while True:
            with self.shared() if self._log is None else self.alone():
                if not self.is_held:
                    yield
                    return
            with self._held:
                self._held.wait_for(
                    lambda: not self.is_held, max(0.0, self._held_until - self._clock())
                )

    @property
    def is_held(self) -> bool:
        """Whether turns wait, now. What is alone finds it as it stays until it has left."""
        return self._clock() < self._held_until

    def hold(self, seconds: float) -> None:
        """Lets turns wait, so long at most; 0 lets them go on. To be called alone."""
        with self._held:
            self._held_until = self._clock() + seconds if seconds else -math.inf
            self._held.notify_all()

    def make(self, change: Change, how: Callable[[], None]) -> None:
        """Appends a change to the log, if there is one, and makes it. Within a turn, or alone.

        Args:
            change: What is appended.
            how: Makes it. All that could be refused has been; if it fails
                nevertheless, what is here is not what the log says, and nothing
                is changed any more.

        Raises:
            NotLogged: It could not be appended; nothing changed.
            RuntimeError: A change before it failed half-way.
        """
        if self._log is None:
            how()
            return
        if self._failure is not None:
            raise RuntimeError(
                "a change must follow one that was made whole, got one that failed after it was "
                "logged; restart this server, which makes it anew from its log"
            ) from self._failure
        self._log.append(change)
        try:
            how()
        except BaseException as error:
            self._failure = error
            raise
