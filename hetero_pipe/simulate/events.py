"""Events: what happens when. The clock of a simulation, and what waits for its time."""

import heapq
import math
from collections import deque
from collections.abc import Callable

__all__ = ["Action", "Door", "Events"]

Action = Callable[[], object]
"""What is done at a time; its result is nobody's."""


class Events:
    """Does actions in the order of their times; those of one time in the order they were said.

    SimPy does this, too. Of a pipeline's pieces of work it does 130,000 a second
    on one core, without cores that are shared; so a hundred workers would take
    minutes where they take seconds here (benchmarks/simulate).

    Args:
        now: Seconds at which it begins.
        wake_seconds: What a thread that waits for another takes to go on.

    Attributes:
        now: Seconds since the simulation began. Set by `run` alone.
    """

    def __init__(self, now: float = 0.0, *, wake_seconds: float = 0.0) -> None:
        self.now = now
        self._wake_seconds = wake_seconds
        self._later: list[tuple[float, int, Action]] = []
        self._soon: deque[Action] = deque()
        self._num_said = 0

    def time(self) -> float:
        """Returns `now`: the clock that whatever is simulated reads."""
        return self.now

    def soon(self, action: Action) -> None:
        """Does something now, after what is being done."""
        self._soon.append(action)

    def wake(self, resume: Action) -> None:
        """Has a thread go on that waited for another."""
        if self._wake_seconds:
            self.after(self._wake_seconds, resume)
        else:
            self.soon(resume)

    def at(self, time: float, action: Action) -> None:
        """Does something at a time that is not over."""
        self._num_said += 1
        heapq.heappush(self._later, (time, self._num_said, action))

    def after(self, seconds: float, action: Action) -> None:
        """Does something in so many seconds."""
        self.at(self.now + seconds, action)

    def run(self, until: float = math.inf) -> None:
        """Does all there is up to a time; without one, until there is nothing left."""
        soon, later, pop = self._soon, self._later, heapq.heappop
        while True:
            while soon:
                soon.popleft()()
            if not later or later[0][0] > until:
                break
            self.now, _, action = pop(later)
            action()
        if not math.isinf(until):
            self.now = until


class Door:
    """What a process that is down is behind: who comes waits until it is up again."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._waiting: list[Action] = []
        self.is_closed = False

    def close(self) -> None:
        """Lets nobody through."""
        self.is_closed = True

    def open(self) -> None:
        """Lets all through, in the order in which they came."""
        self.is_closed = False
        for action in self._waiting:
            self._events.soon(action)
        self._waiting.clear()

    def wait(self, action: Action) -> None:
        """Does something when the door is opened."""
        self._waiting.append(action)
