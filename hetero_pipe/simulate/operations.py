"""From a stage's predicted cost to what its thread does at a step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from hetero_pipe.plan import MOVES, Breakdown, Part
from hetero_pipe.simulate.events import Action, Events
from hetero_pipe.simulate.machines import Machine, Machines, Process
from hetero_pipe.simulate.resource import Lock, Queue
from hetero_pipe.simulate.stage import Operation, StageThread
from hetero_pipe.simulate.work import Aside, InTurn, Locked, Pause, Together, Use, Work

__all__ = ["ALL_REDUCE", "Costs", "Piece"]

NETWORK = "network"
"""The label of bytes between machines; others of that resource are a device's or a collective's."""

ALL_REDUCE = "all-reduce"
"""The label of what workers do together, once all are there."""

RECEIVING = ("pull", "recv")
"""Stages to which the bytes come; from the others they go."""


@dataclass(frozen=True)
class Piece:
    """Parts of a cost that follow one another on one resource.

    Attributes:
        resource: Of the parts.
        label: Of the first.
        operations: That take its time.
    """

    resource: str
    label: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True, eq=False)
class Costs:
    """Turns the costs of one worker's stages into operations.

    Attributes:
        events: Of the simulation.
        machines: Of all processes.
        process: The worker.
        device: Where its dense part is computed.
        lock: Of its interpreter.
    """

    events: Events
    machines: Machines
    process: Process
    device: Queue
    lock: Lock

    def pieces(self, name: str, cost: Breakdown, *, interpreter: float = 0.0) -> Iterator[Piece]:
        """Yields the pieces of a stage's cost, in order.

        Args:
            name: Of the stage.
            cost: Of a step.
            interpreter: The share of its time on a core in which it holds the lock.
        """
        for (resource, label), parts in groupby(cost.parts, key=_kind):
            seconds = sum(part.amount for part in parts)
            found = self._operations(name, resource, label, seconds, interpreter)
            yield Piece(resource, label, tuple(found))

    def aside(self, name: str, cost: Breakdown) -> Iterator[Operation]:
        """Yields what begins the work of others beside a stage, if there is any.

        Args:
            name: Of the stage.
            cost: Of all that is aside of it.
        """
        works = list(self._works(name, cost.without(*MOVES)))
        if works:
            yield Aside(Together(works))

    def way(self, name: str, cost: Breakdown) -> Work:
        """Returns what a batch waits for, part after part, while no thread does."""
        return InTurn(list(self._works(name, cost)))

    def _works(self, name: str, cost: Breakdown) -> Iterator[Work]:
        for part in cost.parts:
            yield from self._operations(name, part.resource, part.label, part.amount, 0.0)

    def _operations(
        self, name: str, resource: str, label: str, seconds: float, interpreter: float
    ) -> Iterator[Work]:
        if resource == "worker":
            yield from self._on_core(seconds, interpreter)
        elif resource == "server":
            yield self._on_servers(seconds)
        elif resource == "device":
            yield Use(self.device, seconds, is_own=True)
        elif label == NETWORK:
            yield self._transfer(name, seconds)
        else:
            yield Pause(self.events, seconds)

    def _on_core(self, seconds: float, interpreter: float) -> Iterator[Work]:
        cores = self.process.machine.cores
        locked, free = seconds * interpreter, seconds * (1 - interpreter)
        if free:
            yield Use(cores, free, is_own=True, is_cpu=True)
        if locked:
            yield Locked(self.lock, cores, locked)

    def _on_servers(self, seconds: float) -> Work:
        """Returns a request that all servers have at once, with `seconds` on a core of each."""
        door = self.machines.door
        if not self.machines.servers:  # the tables are in this process
            return Use(self.process.machine.cores, seconds, is_own=True, is_cpu=True)
        found = [
            Use(machine.cores, seconds, weight=count, door=door)
            for machine, count in self.machines.servers
        ]
        return found[0] if len(found) == 1 else Together(found)

    def _transfer(self, name: str, seconds: float) -> Work:
        """Returns bytes on their way, which share the links at both ends with others."""
        receives = name in RECEIVING
        if name not in ("send", "recv"):
            return self._way(seconds, self.machines.servers, receives=receives)
        dense = [each.machine for each in self.machines.workers["dense"]]
        ways = [self._way(seconds, [(machine, 1)], receives=receives) for machine in dense]
        return ways[0] if len(ways) == 1 else _ByTurns(self.process.rank, ways)

    def _way(
        self, seconds: float, others: Sequence[tuple[Machine, int]], *, receives: bool
    ) -> Work:
        """Returns bytes between this worker and others, each of whom has a share of them.

        A link of more bandwidth than the narrowest of the way is held for less time.
        """
        mine = self.process.machine
        total = sum(machine.stands_for * count for machine, count in others)
        found: list[Use] = []
        longest = 0.0
        for other, count in others:
            if other.host == mine.host:
                continue
            narrowest, first, last = self.machines.bandwidths(mine.name, other.name)
            longest = max(longest, narrowest / first)
            link = other.sends if receives else other.receives
            found.append(Use(link, seconds * narrowest / last * count / total))
        if not found:
            return Pause(self.events, seconds)
        found.append(Use(mine.receives if receives else mine.sends, seconds * longest))
        if longest < 1:  # neither end's link may be the narrowest
            found.append(Pause(self.events, seconds))
        return Together(found)


class _ByTurns:
    """The work that belongs to the dense worker of a step's batch."""

    def __init__(self, rank: int, choices: Sequence[Work]) -> None:
        self._rank = rank
        self._choices = choices

    def begin(self, thread: StageThread) -> bool:
        """Begins that one."""
        self.start(thread, thread.resume)
        return False

    def start(self, thread: StageThread, done: Action) -> None:
        """Does something once that one is over."""
        self._choices[(self._rank + thread.step) % len(self._choices)].start(thread, done)


def _kind(part: Part) -> tuple[str, str]:
    if part.resource != "network":
        return part.resource, ""
    return part.resource, part.label
