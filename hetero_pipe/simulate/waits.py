"""Operations that keep workers in step: at the gate, by clocks, where the parts of a step meet.

docs/pipeline.md says what each of them guarantees in a real run.
"""

from collections import Counter, defaultdict
from functools import partial

from hetero_pipe.pipeline import GATE
from hetero_pipe.simulate.events import Action, Events
from hetero_pipe.simulate.stage import StageThread
from hetero_pipe.simulate.work import Work
from ps_server.spans import SpanRing

__all__ = [
    "Acknowledge",
    "Arrival",
    "Arrive",
    "Barrier",
    "Clocks",
    "Gate",
    "Serve",
    "SetOut",
    "Told",
    "WaitForClocks",
]

WAITING = "waiting for other workers"
"""What a server's trace calls the waits of its requests."""


class Gate:
    """The gate of one worker: the pull of step t waits for the push of t - 1 - staleness."""

    def __init__(self, events: Events, staleness: int, *, first_step: int = 0) -> None:
        self._events = events
        self._staleness = staleness
        self._num_done = first_step
        self._held: StageThread | None = None
        self._since = 0.0
        self.seconds_waited = 0.0
        self.num_missed = 0
        self.largest_seen = 0

    def begin(self, thread: StageThread) -> bool:
        """Lets a pull through, or holds it."""
        self._since = self._events.now
        if not self._lets(thread.step):
            self._held = thread
            return False
        self._passed(thread)
        return True

    def acknowledge(self, step: int) -> None:
        """Says that the push of a step is applied."""
        assert step == self._num_done, f"push {step} after {self._num_done - 1}"
        self._num_done = step + 1
        if self._held is not None and self._lets(self._held.step):
            thread, self._held = self._held, None
            self._events.wake(lambda: self._let(thread))

    def _lets(self, step: int) -> bool:
        return step - self._num_done <= self._staleness

    def _let(self, thread: StageThread) -> None:
        self._passed(thread)
        thread.resume()

    def _passed(self, thread: StageThread) -> None:
        now, missed = self._events.now, thread.step - self._num_done
        self.seconds_waited += now - self._since
        self.num_missed += missed
        self.largest_seen = max(self.largest_seen, missed)
        if thread.ring is not None:
            thread.ring.record("pull", GATE, thread.step, self._since, now)


class Clocks:
    """What servers know of all workers: the steps that each has pushed."""

    def __init__(self, events: Events, num_workers: int, *, first_step: int = 0) -> None:
        self._events = events
        self._clocks = [first_step] * num_workers
        self._num_at = Counter(self._clocks)
        self._least = first_step
        self._waiting: dict[int, list[Action]] = defaultdict(list)

    def advance(self, rank: int) -> None:
        """Moves the clock of a worker by one."""
        was = self._clocks[rank]
        self._clocks[rank] = was + 1
        self._num_at[was] -= 1
        self._num_at[was + 1] += 1
        while not self._num_at[self._least]:
            del self._num_at[self._least]
            self._least += 1
            for action in self._waiting.pop(self._least, ()):
                self._events.soon(action)

    def wait(self, least: int, action: Action) -> bool:
        """Returns whether no clock is below `least`; if one is, does something when none is."""
        if self._least >= least:
            return True
        self._waiting[least].append(action)
        return False


class WaitForClocks:
    """A pull that waits on the servers for all workers' pushes up to t - 1 - staleness."""

    def __init__(self, clocks: Clocks, staleness: int, *, told: "Told") -> None:
        self._clocks = clocks
        self._staleness = staleness
        self._told = told

    def begin(self, thread: StageThread) -> bool:
        """Begins to wait, if it must."""
        since = self._told.now

        def go() -> None:
            self._told.record(WAITING, thread.step, since)
            thread.resume()

        return self._clocks.wait(thread.step - self._staleness, go)


class Acknowledge:
    """The end of a push: it is applied on all servers, and the worker knows it."""

    def __init__(self, gate: Gate | None, clocks: Clocks | None, rank: int) -> None:
        self._gate = gate
        self._clocks = clocks
        self._rank = rank

    def begin(self, thread: StageThread) -> bool:
        """Tells gate and clocks."""
        if self._clocks is not None:
            self._clocks.advance(self._rank)
        if self._gate is not None:
            self._gate.acknowledge(thread.step)
        return True


class Barrier:
    """Where the parts of a step meet: all go on when all are there."""

    def __init__(self, events: Events, num_parts: int) -> None:
        self._events = events
        self._num_parts = num_parts
        self._waiting: dict[int, list[Action]] = defaultdict(list)

    def begin(self, thread: StageThread) -> bool:
        """Waits for the others' parts of the thread's step."""
        return self.wait(thread.step, thread.resume)

    def wait(self, step: int, action: Action) -> bool:
        """Returns whether this was the last part; if not, does something after the last."""
        waiting = self._waiting[step]
        if len(waiting) + 1 < self._num_parts:
            waiting.append(action)
            return False
        for each in waiting:
            self._events.soon(each)
        del self._waiting[step]
        return True


class Arrival:
    """Where a stage waits for what comes to its step by a way of its own.

    A sparse worker's gradients, from a dense one; rows, from the host to the device.
    """

    def __init__(self, events: Events) -> None:
        self._events = events
        self._there: set[int] = set()
        self._waiting: StageThread | None = None

    def begin(self, thread: StageThread) -> bool:
        """Takes it, or waits for it."""
        if thread.step in self._there:
            self._there.remove(thread.step)
            return True
        self._waiting = thread
        return False

    def come(self, step: int) -> None:
        """Says that what belongs to a step is there."""
        if self._waiting is not None and self._waiting.step == step:
            thread, self._waiting = self._waiting, None
            self._events.soon(thread.resume)
        else:
            self._there.add(step)


class SetOut:
    """A batch is on its way to where the next stage waits for it; the thread goes on."""

    def __init__(self, way: Work, arrival: Arrival) -> None:
        self._way = way
        self._arrival = arrival

    def begin(self, thread: StageThread) -> bool:
        """Has it begin."""
        self._way.start(thread, partial(self._arrival.come, thread.step))
        return True


class Told:
    """What the trace of the servers is told of one worker's requests of one kind.

    Args:
        events: Of the simulation.
        ring: Of the servers; None records nothing.
        track: A thread of the server: one has one request of a worker at a time.
        name: `Pull` or `Push`.
    """

    def __init__(self, events: Events, ring: SpanRing | None, track: str, name: str) -> None:
        self._events = events
        self._ring = ring
        self._track = track
        self._name = name
        self.arrived = 0.0

    @property
    def now(self) -> float:
        """The time that it is."""
        return self._events.now

    def record(self, name: str, step: int, since: float) -> None:
        """Records what was done from a time until now."""
        if self._ring is not None:
            self._ring.record(self._track, name, step, since, self._events.now)

    def served(self, step: int) -> None:
        """Records the request, from its arrival until now."""
        self.record(self._name, step, self.arrived)


class Arrive:
    """A request reaches the servers; where parts of a step meet there, it waits for them."""

    def __init__(self, told: Told, barrier: Barrier | None = None) -> None:
        self._told = told
        self._barrier = barrier

    def begin(self, thread: StageThread) -> bool:
        """Notes when it is."""
        since = self._told.arrived = self._told.now
        if self._barrier is None:
            return True

        def go() -> None:
            self._told.record(WAITING, thread.step, since)
            thread.resume()

        return self._barrier.wait(thread.step, go)


class Serve:
    """A request has been served."""

    def __init__(self, told: Told) -> None:
        self._told = told

    def begin(self, thread: StageThread) -> bool:
        """Records it."""
        self._told.served(thread.step)
        return True
