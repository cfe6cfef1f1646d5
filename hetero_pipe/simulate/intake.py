"""Operations between sparse and dense workers: credits, batches and what they gave.

docs/pipeline.md, "Sparse and dense workers", says how it goes in a real run.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial

from hetero_pipe.pipeline import BATCH_OF, CREDIT
from hetero_pipe.simulate.events import Action, Events
from hetero_pipe.simulate.stage import StageThread
from hetero_pipe.simulate.waits import Arrival
from hetero_pipe.simulate.work import Work

__all__ = [
    "Answer",
    "CountBatches",
    "Deliver",
    "Intake",
    "TakeCredit",
    "TakeWork",
    "TellBatches",
]

Batch = tuple[int, int]
"""Rank and step of a sparse worker."""


class Intake:
    """What sparse workers have sent to one dense worker, and what they may still send.

    Args:
        events: Of the simulation.
        ranks: Of the sparse workers.
        capacity: Batches of each that may wait here: its credits.
        way: Of a batch, from when it has come until it may be taken.
        sizes: In `sync`, by step, of how many batches one work is; else None: of one.

    Attributes:
        receiver: The thread that takes from here, which is set once there is one.
    """

    def __init__(
        self,
        events: Events,
        ranks: Sequence[int],
        *,
        capacity: int,
        way: Work,
        sizes: Sequence[int] | None = None,
        first_step: int = 0,
    ) -> None:
        self.receiver: StageThread
        self._events = events
        self._queues: dict[int, deque[int]] = {rank: deque() for rank in ranks}
        self._turns = deque(ranks)
        self._credits = dict.fromkeys(ranks, capacity)
        self._without: dict[int, Action] = {}  # by rank, who waits for a credit
        self._way = way
        self._sizes = sizes
        self._first_step = first_step
        self._gathered: dict[int, list[Batch]] = defaultdict(list)  # in `sync`, by step
        self._taker: StageThread | None = None

    def credit(self, rank: int, action: Action) -> bool:
        """Takes a credit; returns False without one: then does something when it has one."""
        if not self._credits[rank]:
            self._without[rank] = action
            return False
        self._credits[rank] -= 1
        return True

    def deliver(self, rank: int, step: int) -> None:
        """Adds a batch that has come, when it is unpacked and where it is computed."""
        self._way.start(self.receiver, partial(self._add, rank, step))

    def _add(self, rank: int, step: int) -> None:
        self._queues[rank].append(step)
        if self._taker is not None and self.take(taker := self._taker):
            self._taker = None
            self._events.soon(taker.resume)

    def take(self, thread: StageThread) -> bool:
        """Gives the thread its next work; returns False if there is none: then it waits."""
        while (batch := self._next()) is not None:
            rank, step = batch
            self._give_back(rank)
            if self._sizes is None:
                thread.item = (batch,)
                return True
            parts = self._gathered[step]
            parts.append(batch)
            if len(parts) == self._sizes[step - self._first_step]:
                thread.item = tuple(sorted(self._gathered.pop(step)))
                return True
        self._taker = thread
        return False

    def _next(self) -> Batch | None:
        """Takes the next batch of the workers in turns."""
        for _ in range(len(self._turns)):
            rank = self._turns[0]
            self._turns.rotate(-1)
            if self._queues[rank]:
                return rank, self._queues[rank].popleft()
        return None

    def _give_back(self, rank: int) -> None:
        if rank in self._without:
            self._events.soon(self._without.pop(rank))
        else:
            self._credits[rank] += 1


class TakeCredit:
    """A sparse worker waits until the dense one of its batch has room for it."""

    def __init__(self, events: Events, rank: int, intakes: Sequence[Intake]) -> None:
        self._events = events
        self._rank = rank
        self._intakes = intakes

    def begin(self, thread: StageThread) -> bool:
        """Takes a credit, or waits for one."""
        since = self._events.now

        def go() -> None:
            self._taken(thread, since)
            thread.resume()

        if not _dense_of(self._intakes, self._rank, thread.step).credit(self._rank, go):
            return False
        self._taken(thread, since)
        return True

    def _taken(self, thread: StageThread, since: float) -> None:
        now = self._events.now
        thread.waiting_for_credit += now - since
        if thread.ring is not None:
            thread.ring.record(thread.name, CREDIT, thread.step, since, now)


class Deliver:
    """The batch of a sparse worker has reached the dense one."""

    def __init__(self, rank: int, intakes: Sequence[Intake]) -> None:
        self._rank = rank
        self._intakes = intakes

    def begin(self, thread: StageThread) -> bool:
        """Hands it over."""
        _dense_of(self._intakes, self._rank, thread.step).deliver(self._rank, thread.step)
        return True


def _dense_of(intakes: Sequence[Intake], rank: int, step: int) -> Intake:
    return intakes[(rank + step) % len(intakes)]


class TakeWork:
    """A dense worker takes what is next."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def begin(self, thread: StageThread) -> bool:
        """Takes it, or waits for it."""
        return self._intake.take(thread)


class Answer:
    """A dense worker sends each sparse one what its batch gave.

    Args:
        way: Of it, until it can be sent.
        results: Where sparse workers wait, by rank.
    """

    def __init__(self, way: Work, results: Sequence[Arrival]) -> None:
        self._way = way
        self._results = results

    def begin(self, thread: StageThread) -> bool:
        """Has all of them be on their way."""
        for rank, step in thread.item:
            self._way.start(thread, partial(self._results[rank].come, step))
        return True


class TellBatches:
    """A dense worker's trace says whose batches were at work."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def begin(self, thread: StageThread) -> bool:
        """Records them."""
        if thread.ring is not None:
            for rank, step in thread.item:
                name = f"{BATCH_OF}sparse worker {rank}"
                thread.ring.record(thread.name, name, step, thread.began, self._events.now)
        return True


class CountBatches:
    """A dense worker computes as many batches as its work has."""

    def begin(self, thread: StageThread) -> bool:
        """Multiplies what follows in this process."""
        thread.own_scale *= len(thread.item)
        return True
