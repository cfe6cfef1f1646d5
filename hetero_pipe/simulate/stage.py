"""StageThread: the thread of a stage, as the executor runs it, in simulated time."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from hetero_pipe.pipeline import StageClock
from hetero_pipe.simulate.events import Door, Events
from ps_server.spans import SpanRing

__all__ = ["Handoff", "Operation", "StageThread"]


class Operation(Protocol):
    """One thing of those that a stage does at a step, one after another."""

    def begin(self, thread: "StageThread") -> bool:
        """Begins it; returns whether it is over. If not, `thread.resume` is done when it is."""


class Handoff:
    """The bounded queue between two stages, as `hetero_pipe.pipeline.Handoff` is one.

    Args:
        events: Of the simulation.
        capacity: Items that may wait.
    """

    def __init__(self, events: Events, capacity: int) -> None:
        self._events = events
        self._capacity = capacity
        self._items: deque[Any] = deque()
        self._taker: StageThread | None = None
        self._putter: tuple[StageThread, Any] | None = None

    def put(self, thread: "StageThread", item: Any) -> bool:
        """Adds an item; returns False if there is no room: then the thread waits until it is in."""
        if self._taker is not None:
            taker, self._taker = self._taker, None
            taker.item = item
            self._events.wake(taker.resume)
            return True
        if len(self._items) == self._capacity:
            self._putter = thread, item
            return False
        self._items.append(item)
        return True

    def take(self, thread: "StageThread") -> bool:
        """Gives the thread an item; returns False if there is none: then the thread waits."""
        if not self._items:
            self._taker = thread
            return False
        thread.item = self._items.popleft()
        if self._putter is not None:
            (putter, item), self._putter = self._putter, None
            self._items.append(item)
            self._events.wake(putter.resume)
        return True


class StageThread:
    """Takes an item of each step, does its operations, hands the item on.

    What it does when goes to the clock that a stage of the executor has, so that
    timeline and spans of both are the same thing.

    Args:
        name: Of the stage.
        events: Of the simulation.
        door: Of its process.
        operations: Of each step, in order.
        steps: Which it does.
        before: Where items come from; None makes them.
        after: Where they go; None is a caller that never waits.
        ring: Records what it does; None records nothing.

    Attributes:
        step: Under way.
        item: Likewise.
        began: When its work did.
        scale: By what the work of this step is multiplied, wherever it is done.
        own_scale: Likewise, of what is done in this process.
        cpu: Seconds on a core.
        waiting_for_credit: Seconds that its work waited for another worker to have room.
        clock: Where its time went.
        resume: Goes on.
        ends: When each step was done, in order.
    """

    def __init__(
        self,
        name: str,
        events: Events,
        door: Door,
        *,
        operations: Sequence[Operation],
        steps: range,
        before: Handoff | None,
        after: Handoff | None,
        ring: SpanRing | None,
    ) -> None:
        self.name = name
        self.ring = ring
        self.step = steps.start
        self.item: Any = None
        self.began = 0.0
        self.scale = self.own_scale = 1.0
        self.cpu = 0.0
        self.ends: list[float] = []
        self.waiting_for_credit = 0.0
        self.clock = StageClock(name, ring=ring, clock=events.time, cpu_clock=self._cpu_time)
        self._events = events
        self._door = door
        self._operations = operations
        self._steps = steps
        self._before = before
        self._after = after
        self._scales: Sequence[float] | None = None
        self._own_scales: Sequence[float] | None = None
        self.resume = self._run().__next__

    def start(self) -> None:
        """Begins, at the time that it is."""
        self._events.soon(self.resume)

    def vary(self, scales: Sequence[float] | None, own_scales: Sequence[float] | None) -> None:
        """Sets by what the work of each of its steps is multiplied; None by 1."""
        self._scales, self._own_scales = scales, own_scales

    def _cpu_time(self) -> float:
        return self.cpu

    def _run(self) -> Iterator[None]:
        """Does all steps; yields where the thread waits. As `Executor._work`."""
        clock, before, after, door = self.clock, self._before, self._after, self._door
        clock.start()
        for number, step in enumerate(self._steps):
            self.step = step
            if before is not None:
                if not before.take(self):
                    yield
                clock.has_input(step)
            self.began = self._events.now
            self.scale = 1.0 if self._scales is None else self._scales[number]
            own = 1.0 if self._own_scales is None else self._own_scales[number]
            self.own_scale = self.scale * own
            for operation in self._operations:
                while door.is_closed:
                    door.wait(self.resume)
                    yield
                if not operation.begin(self):
                    yield
            clock.has_run(step)
            self.ends.append(self._events.now)
            if after is not None and not after.put(self, self.item):
                yield
            clock.has_output(step)
        yield  # nobody resumes it
