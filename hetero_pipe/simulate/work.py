"""Operations that take time: pieces of work on resources, one after another or at once."""

import math
from collections.abc import Sequence
from typing import Protocol

from hetero_pipe.simulate.events import Action, Door, Events
from hetero_pipe.simulate.resource import Lock
from hetero_pipe.simulate.stage import StageThread

__all__ = ["Locked", "Pause", "Resource", "Together", "Use"]

SWITCH = 5e-3
"""Seconds after which Python asks a thread to give the interpreter to another, by default."""


class Resource(Protocol):
    """What pieces of work need."""

    def use(self, work: float, done: Action, weight: float = 1.0) -> None:
        """Does something once so many seconds of work are done here."""


class Use:
    """A piece of work on one resource.

    Args:
        resource: That it needs.
        work: Seconds on it alone.
        weight: Pieces that it stands for.
        is_own: Whether it is done in the thread's process.
        is_cpu: Whether the thread itself is on a core meanwhile.
        door: Of who does it, if that is another process.
    """

    def __init__(
        self,
        resource: Resource,
        work: float,
        *,
        weight: float = 1.0,
        is_own: bool = False,
        is_cpu: bool = False,
        door: Door | None = None,
    ) -> None:
        self._resource = resource
        self._work = work
        self._weight = weight
        self._is_own = is_own
        self._is_cpu = is_cpu
        self._door = door

    def begin(self, thread: StageThread) -> bool:
        """Begins it, behind the door."""
        self.start(thread, thread.resume)
        return False

    def start(self, thread: StageThread, done: Action) -> None:
        """Does something once it is over."""
        if self._door is not None and self._door.is_closed:
            self._door.wait(lambda: self.start(thread, done))
            return
        work = self._work * (thread.own_scale if self._is_own else thread.scale)
        if self._is_cpu:
            thread.cpu += work
        self._resource.use(work, done, self._weight)


class Locked:
    """Seconds on a core in which the thread holds its interpreter; who waits for it is on none.

    Who holds it keeps it, unless for too long.

    Args:
        lock: Of the process.
        cores: Of its machine.
        work: Seconds.
    """

    def __init__(self, lock: Lock, cores: Resource, work: float) -> None:
        self._lock = lock
        self._num_turns = math.ceil(work / SWITCH)
        self._turn = Use(cores, work / self._num_turns, is_own=True, is_cpu=True)

    def begin(self, thread: StageThread) -> bool:
        """Begins to wait for the lock."""
        self._take_turn(thread, 1)
        return False

    def _take_turn(self, thread: StageThread, number: int) -> None:
        def done() -> None:
            self._lock.release()
            if number < self._num_turns:
                self._take_turn(thread, number + 1)
            else:
                thread.resume()

        self._lock.acquire(lambda: self._turn.start(thread, done))


class Pause(Use):
    """A wait that holds nothing anyone else could have.

    Args:
        events: Of the simulation.
        seconds: That it takes.
        is_own: Whether it takes longer in a process that is slow.
    """

    def __init__(self, events: Events, seconds: float, *, is_own: bool = False) -> None:
        super().__init__(_Nothing(events), seconds, is_own=is_own)


class _Nothing:
    def __init__(self, events: Events) -> None:
        self._events = events

    def use(self, work: float, done: Action, weight: float = 1.0) -> None:
        self._events.after(work, done)


class Together:
    """Pieces that begin at once; over when all are. One that needs two resources is of two."""

    def __init__(self, pieces: Sequence[Use]) -> None:
        self._pieces = pieces

    def begin(self, thread: StageThread) -> bool:
        """Begins all."""
        left = len(self._pieces)

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                thread.resume()

        for piece in self._pieces:
            piece.start(thread, done)
        return False
