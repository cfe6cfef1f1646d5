"""What pieces of work need: cores and links, which they share; devices, which they queue for."""

import heapq
import math
from collections import deque

from hetero_pipe.simulate.events import Action, Events

__all__ = ["Lock", "Queue", "Shared"]

ROUNDING = 1e-9
"""Seconds of work that are none. What rounding leaves of some is less, in runs of up to 10 days."""


class Shared:
    """The cores of a machine, or one direction of its link.

    All who are there get on at one rate (*processor sharing*): `load` pieces of work
    on `capacity` cores each do ::

        speed * min(1, capacity / load)   seconds of their work in a second

    so nobody is on more than one core, and all cores are held while there are as
    many pieces. An operating system deals out time slices of some milliseconds
    instead, with this as its aim; flows of TCP share a link alike.

    As all do the same, what one of them does is told by a clock of its own: a piece
    ends when that clock has moved by its work. The order of ends is thus known at
    the start, and a piece costs `O(log load)`.

    Args:
        events: Of the simulation.
        name: For people.
        capacity: Pieces that are there without any delay; need not be whole.
        speed: Seconds of work in a second.

    Attributes:
        used: Seconds of capacity that were held, up to the last change.

    Reference:
        Parekh and Gallager, "A Generalized Processor Sharing Approach to Flow Control
        in Integrated Services Networks", IEEE/ACM Transactions on Networking 1993.
    """

    def __init__(
        self, events: Events, name: str, *, capacity: float = 1.0, speed: float = 1.0
    ) -> None:
        assert capacity > 0, f"{name} has no capacity"
        self.name = name
        self.capacity = capacity
        self.used = 0.0
        self._events = events
        self._speed = speed
        self._pieces: list[tuple[float, int, float, Action]] = []  # a heap, by their ends
        self._num_come = 0
        self._load = 0.0
        self._rate = speed
        self._clock = 0.0  # work that each piece has done which was there from the start
        self._at = events.now  # when it was that
        self._next = math.inf  # when an event comes that looks for ends

    def use(self, work: float, done: Action, weight: float = 1.0) -> None:
        """Does something once so many seconds of work are done.

        Args:
            work: Seconds that it takes alone.
            done: What then follows.
            weight: Pieces that it stands for, all of this work at once.
        """
        if work <= 0:
            self._events.soon(done)
            return
        self._move()
        self._num_come += 1
        heapq.heappush(self._pieces, (self._clock + work, self._num_come, weight, done))
        self._add(weight)
        self._look()

    def set_speed(self, speed: float) -> None:
        """Sets the seconds of work in a second from now on; 0 stops all."""
        self._move()
        self._speed = speed
        self._add(0.0)
        self._look()

    def _move(self) -> None:
        """Brings its clock to now."""
        now = self._events.now
        seconds = now - self._at
        if seconds > 0:
            self._clock += seconds * self._rate
            self.used += seconds * min(self._load, self.capacity)
            self._at = now

    def _add(self, weight: float) -> None:
        self._load += weight
        is_full = self._load > self.capacity
        self._rate = self._speed * self.capacity / self._load if is_full else self._speed

    def _look(self) -> None:
        """Has an event come no later than the next end; one that comes before it looks again."""
        if self._pieces and self._rate > 0:
            end = self._at + max(self._pieces[0][0] - self._clock, 0.0) / self._rate
            if end < self._next:
                self._next = end
                self._events.at(end, self._ends)

    def _ends(self) -> None:
        if self._events.now < self._next:
            return  # said before there was one that comes sooner
        self._next = -math.inf  # what `done` adds is looked for below
        self._move()
        pieces = self._pieces
        # A rest by rounding would be an end at this very time again, for ever.
        reached = self._clock + ROUNDING
        while pieces and pieces[0][0] <= reached:
            _, _, weight, done = heapq.heappop(pieces)
            self._add(-weight)
            done()
        if not pieces:
            self._clock = self._load = 0.0
        self._next = math.inf
        self._look()


class Queue:
    """A device: one piece of work at a time, in the order in which they come.

    Args:
        events: Of the simulation.
        name: For people.

    Attributes:
        used: Seconds that it was at work, or will have been when its last piece ends.
    """

    def __init__(self, events: Events, name: str) -> None:
        self.name = name
        self.capacity = 1.0
        self.used = 0.0
        self._events = events
        self._waiting: deque[tuple[float, Action]] = deque()
        self._is_busy = False

    def use(self, work: float, done: Action, weight: float = 1.0) -> None:
        """Does something once so many seconds of work are done, those before it first."""
        self._waiting.append((work * weight, done))
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        work, done = self._waiting.popleft()
        self._is_busy = True
        self.used += work
        self._events.after(work, lambda: self._end(done))

    def _end(self, done: Action) -> None:
        self._is_busy = False
        if self._waiting:
            self._begin()
        done()


class Lock:
    """A process's interpreter: held by one thread at a time, in the order in which they ask.

    Args:
        events: Of the simulation.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._waiting: deque[Action] = deque()
        self._is_held = False

    def acquire(self, action: Action) -> None:
        """Does something once the lock is held for it."""
        if self._is_held:
            self._waiting.append(action)
        else:
            self._is_held = True
            action()

    def release(self) -> None:
        """Gives it to who waits longest."""
        if self._waiting:
            self._events.soon(self._waiting.popleft())
        else:
            self._is_held = False
