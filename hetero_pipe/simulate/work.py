"""Operations that take time: pieces of work on resources, one after another or at once."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from hetero_pipe.simulate.events import Action, Door, Events
from hetero_pipe.simulate.resource import Lock
from hetero_pipe.simulate.stage import Operation, StageThread

__all__ = ["Aside", "InTurn", "Locked", "Pause", "Resource", "Together", "Use", "Work"]

SWITCH = 5e-3
"""Seconds after which Python asks a thread to give the interpreter to another, by default."""


class Resource(Protocol):
    """What pieces of work need."""

    def use(self, work: float, done: Action, weight: float = 1.0) -> None:
        """Does something once so many seconds of work are done here."""


class Work(Operation, Protocol):
    """An operation that other threads may do as well, for the thread whose step it is."""

    def start(self, thread: StageThread, done: Action) -> None:
        """Does something once it is over. Whoever is on a core meanwhile, the thread is not."""


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
        if self._is_cpu:
            thread.cpu += self._seconds(thread)
        self.start(thread, thread.resume)
        return False

    def start(self, thread: StageThread, done: Action) -> None:
        """Does something once it is over."""
        if self._door is not None and self._door.is_closed:
            self._door.wait(lambda: self.start(thread, done))
            return
        self._resource.use(self._seconds(thread), done, self._weight)

    def _seconds(self, thread: StageThread) -> float:
        return self._work * (thread.own_scale if self._is_own else thread.scale)


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
        self._work = work
        self._num_turns = math.ceil(work / SWITCH)
        self._turn = Use(cores, work / self._num_turns, is_own=True)

    def begin(self, thread: StageThread) -> bool:
        """Begins to wait for the lock."""
        thread.cpu += self._work * thread.own_scale
        self.start(thread, thread.resume)
        return False

    def start(self, thread: StageThread, done: Action) -> None:
        """Does something once all its turns are over."""
        self._take_turn(thread, done, 1)

    def _take_turn(self, thread: StageThread, done: Action, number: int) -> None:
        def over() -> None:
            self._lock.release()
            if number < self._num_turns:
                self._take_turn(thread, done, number + 1)
            else:
                done()

        self._lock.acquire(lambda: self._turn.start(thread, over))


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

    def __init__(self, pieces: Sequence[Work]) -> None:
        self._pieces = pieces

    def begin(self, thread: StageThread) -> bool:
        """Begins all."""
        self.start(thread, thread.resume)
        return False

    def start(self, thread: StageThread, done: Action) -> None:
        """Does something once all are over."""
        left = len(self._pieces)

        def over() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for piece in self._pieces:
            piece.start(thread, over)


class InTurn:
    """Pieces one after another; over when the last is."""

    def __init__(self, pieces: Sequence[Work]) -> None:
        self._pieces = pieces

    def begin(self, thread: StageThread) -> bool:
        """Begins the first."""
        self.start(thread, thread.resume)
        return False

    def start(self, thread: StageThread, done: Action) -> None:
        """Does something once all are over."""
        self._go_on(thread, done, 0)

    def _go_on(self, thread: StageThread, done: Action, number: int) -> None:
        if number == len(self._pieces):
            done()
        else:
            follow = partial(self._go_on, thread, done, number + 1)
            self._pieces[number].start(thread, follow)


class Aside:
    """Work that others do for a stage while it goes on: threads of a library, or of servers.

    The stage waits for none of it, unless it comes with its next step before they have done
    that of the last one: else they could be asked for more than there are cores, for ever.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._is_busy = False
        self._waiting: StageThread | None = None

    def begin(self, thread: StageThread) -> bool:
        """Has it begin, once that of the step before is over."""
        if self._is_busy:
            self._waiting = thread
            return False
        self._start(thread)
        return True

    def _start(self, thread: StageThread) -> None:
        self._is_busy = True
        self._work.start(thread, self._over)

    def _over(self) -> None:
        self._is_busy = False
        if self._waiting is not None:
            thread, self._waiting = self._waiting, None
            self._start(thread)
            thread.resume()
