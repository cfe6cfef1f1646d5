"""Job: all threads of a plan, from one checkpoint to the next, or to a failure."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from hetero_pipe.cluster import Cluster
from hetero_pipe.pipeline import StageTime, Timeline
from hetero_pipe.plan import Breakdown, Plan, Prediction, StagePrediction
from hetero_pipe.simulate.conditions import Conditions, Straggler
from hetero_pipe.simulate.events import Action, Events
from hetero_pipe.simulate.intake import (
    Answer,
    CountBatches,
    Deliver,
    Intake,
    TakeCredit,
    TakeWork,
    TellBatches,
)
from hetero_pipe.simulate.machines import Machines, Process
from hetero_pipe.simulate.operations import ALL_REDUCE, Costs, Piece
from hetero_pipe.simulate.resource import Lock, Queue
from hetero_pipe.simulate.stage import Handoff, Operation, StageThread
from hetero_pipe.simulate.waits import (
    Acknowledge,
    Arrival,
    Arrive,
    Barrier,
    Clocks,
    Gate,
    Serve,
    SetOut,
    Told,
    WaitForClocks,
)
from hetero_pipe.simulate.work import Work
from ps_server.spans import SpanRing

__all__ = ["Job", "Setting", "WorkerThreads"]

SPANS_A_STAGE = 4
"""Of a step, at most: input, work, output, and a wait within the work."""


@dataclass(frozen=True)
class Setting:
    """What is simulated.

    Attributes:
        plan: Of the workers.
        prediction: What each stage takes.
        cluster: Where they are.
        conditions: What does not go as predicted.
        rng: Draws times that vary; None where none does.
        is_recorded: Whether spans are kept.
    """

    plan: Plan
    prediction: Prediction
    cluster: Cluster
    conditions: Conditions
    rng: np.random.Generator | None
    is_recorded: bool


@dataclass(frozen=True, eq=False)
class WorkerThreads:
    """One worker.

    Attributes:
        process: Who it is.
        threads: Of its stages, in order.
        gate: Of its pulls; None of a dense worker.
        ring: What it did when; None is not recorded.
    """

    process: Process
    threads: tuple[StageThread, ...]
    gate: Gate | None
    ring: SpanRing | None

    @property
    def timeline(self) -> Timeline:
        """Where the time of its stages went."""
        return Timeline(tuple(self._time(thread) for thread in self.threads))

    def _time(self, thread: StageThread) -> StageTime:
        at_gate = self.gate.seconds_waited if self.gate and thread.name == "pull" else 0.0
        return thread.clock.time(
            waiting_at_gate=at_gate, waiting_for_credit=thread.waiting_for_credit
        )


@dataclass(eq=False)
class Job:
    """The threads of all workers, which run so many steps.

    Args:
        setting: What is simulated.
        steps: Of each worker that reads.
        start: Seconds into the run at which they begin.

    Attributes:
        workers: Those that read, then dense ones.
        server_ring: What each server did when; None is not recorded.
    """

    setting: Setting
    steps: range
    start: float
    events: Events = field(init=False)
    machines: Machines = field(init=False)
    workers: list[WorkerThreads] = field(init=False)
    server_ring: SpanRing | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        plan = self.setting.plan
        self.events = Events(self.start, wake_seconds=self.setting.conditions.wake_seconds)
        self.machines = Machines.of(self.events, plan, self.setting.cluster)
        readers, dense = self.machines.readers, self.machines.workers.get("dense", [])
        self._is_async = plan.workers.mode == "async"
        self._is_sync = plan.workers.is_sync
        self._clocks = Clocks(self.events, len(readers), first_step=self.steps.start)
        self._parts = Barrier(self.events, len(readers))
        self._replicas = Barrier(self.events, len(dense or readers))
        self._num_replicas = len(dense or readers)
        if self.setting.is_recorded and self.machines.servers:
            self.server_ring = SpanRing(4 * len(readers) * len(self.steps) + 1)
        self._results = [Arrival(self.events) for _ in readers]
        self._intakes = [self._intake(each) for each in dense]
        self.workers = [self._reader(each) for each in readers]
        self.workers += [self._dense_worker(each) for each in dense]
        self._disturb()

    @property
    def readers(self) -> list[WorkerThreads]:
        """Workers that read."""
        return [each for each in self.workers if each.process.role != "dense"]

    @property
    def num_done(self) -> int:
        """Steps that every worker has pushed."""
        return min(len(worker.threads[-1].ends) for worker in self.readers)

    @property
    def end(self) -> float:
        """When the last step of any worker that reads was done; `start` if none was."""
        ends = [worker.threads[-1].ends[-1:] for worker in self.readers]
        return max((end for each in ends for end in each), default=self.start)

    def run(self, until: float) -> None:
        """Runs up to a time, or to the end."""
        for worker in self.workers:
            for thread in worker.threads:
                thread.start()
        self.events.run(until)

    # ------------------------------------------------------------ workers that read

    def _reader(self, process: Process) -> WorkerThreads:
        plan, events = self.setting.plan, self.events
        staleness = sys.maxsize if self._is_async else plan.staleness
        gate = Gate(events, staleness, first_step=self.steps.start)
        chain = list(self._chain(process, gate))
        capacities = {stage.name: stage.capacity for stage in plan.stages}
        capacities |= {"send": capacities["pull"], "recv": capacities["dense"]}
        ring = self._ring(len(chain), len(self.steps))
        threads = self._threads(process, chain, capacities, self.steps, ring)
        return WorkerThreads(process, threads, gate, ring)

    def _chain(self, process: Process, gate: Gate) -> Iterator[tuple[str, list[Operation]]]:
        """Yields stages in order; where a batch is moved behind one, the next waits for it."""
        costs = self._costs(process)
        waits: list[Operation] = []
        for stage in self.setting.prediction.stages:
            if stage.role == "dense":
                continue
            operations = [*waits, *self._operations(stage, process, costs, gate)]
            waits = []
            if (moves := stage.moves).parts:
                arrival = Arrival(self.events)
                operations.append(SetOut(costs.way(stage.name, moves), arrival))
                waits.append(arrival)
            yield stage.name, operations

    def _operations(
        self, stage: StagePrediction, process: Process, costs: Costs, gate: Gate
    ) -> Iterator[Operation]:
        share = self.setting.conditions.interpreter.get(stage.name, 0.0)
        pieces = list(costs.pieces(stage.name, stage.cost, interpreter=share))
        rank, events = process.rank, self.events
        if stage.name == "pull":
            yield gate
        yield from costs.aside(stage.name, stage.aside)
        if stage.name == "pull":
            yield from self._request(pieces, rank, "Pull")
        elif stage.name == "push":
            yield from self._request(pieces, rank, "Push")
            yield Acknowledge(gate, self._clocks, rank)
        elif stage.name == "send":
            yield from _before(pieces, "network", [TakeCredit(events, rank, self._intakes)])
            yield Deliver(rank, self._intakes)
        elif stage.name == "recv":
            yield self._results[rank]
            ordered = sorted(pieces, key=lambda piece: piece.resource != "network")
            yield from _flat(ordered)
        elif stage.name == "dense":
            yield from self._dense(pieces)
        else:
            yield from _flat(pieces)

    def _request(self, pieces: Sequence[Piece], rank: int, name: str) -> Iterator[Operation]:
        """Yields a pull or a push: where it reaches the servers, it may wait for other workers."""
        num_workers, staleness = len(self.machines.readers), self.setting.plan.staleness
        is_push = name == "Push"
        track = f"request_{2 * rank + is_push}"
        told = Told(self.events, self.server_ring, track, name)
        meets = self._is_sync and num_workers > 1 and is_push
        waits: list[Operation] = [Arrive(told, self._parts if meets else None)]
        is_bounded = not (self._is_sync or self._is_async)
        if is_bounded and num_workers > 1 and not is_push:
            waits.append(WaitForClocks(self._clocks, staleness, told=told))
        server = next((piece for piece in pieces if piece.resource == "server"), None)
        if server is None:  # whoever has the tables, it waits at once
            yield from (*waits, *_flat(pieces))
            return
        for operation in _before(pieces, "server", waits):
            yield operation
            if operation is server.operations[-1]:
                yield Serve(told)

    def _dense(self, pieces: Sequence[Piece]) -> Iterator[Operation]:
        """Yields a dense step; in `sync` all replicas meet before they add up gradients."""
        meets = self._is_sync and self._num_replicas > 1
        yield from _before(pieces, "network", [self._replicas] if meets else [], label=ALL_REDUCE)

    # ------------------------------------------------------------ dense workers

    def _intake(self, process: Process) -> Intake:
        dense = self.machines.workers["dense"]
        readers = range(len(self.machines.readers))
        sizes = None
        if self._is_sync:
            sizes = [
                sum((reader + step) % len(dense) == process.rank for reader in readers)
                for step in self.steps
            ]
        return Intake(
            self.events,
            readers,
            capacity=self.setting.plan.stage("pull").capacity,
            way=self._way(process, "upload"),
            sizes=sizes,
            first_step=self.steps.start,
        )

    def _dense_worker(self, process: Process) -> WorkerThreads:
        events, intake = self.events, self._intakes[process.rank]
        costs, stage = self._costs(process), self._dense_stage
        share = self.setting.conditions.interpreter.get("dense", 0.0)
        pieces = list(costs.pieces("dense", stage.cost, interpreter=share))
        aside = costs.aside("dense", stage.aside)
        dense = [CountBatches(), *aside, *self._dense(pieces), TellBatches(events)]
        chain: list[tuple[str, list[Operation]]] = [
            ("recv", [TakeWork(intake)]),
            ("dense", dense),
            ("send", [Answer(self._way(process, "download"), self._results)]),
        ]
        works = range(self.steps.start, self.steps.start + self._num_works(process.rank))
        ring = self._ring(len(chain), len(works))
        # As DenseWorker has them: one work waits behind each stage.
        threads = self._threads(process, chain, {"recv": 1, "dense": 1}, works, ring)
        intake.receiver = threads[0]
        return WorkerThreads(process, threads, None, ring)

    @property
    def _dense_stage(self) -> StagePrediction:
        return next(s for s in self.setting.prediction.stages if s.role == "dense")

    def _way(self, process: Process, copy: str) -> Work:
        """Returns what a batch waits for at a dense worker, before it is computed or after.

        A message is packed as long as it is unpacked: half of what both take is here.
        """
        moves = self._dense_stage.moves
        message = moves.labelled("message").times(0.5)
        copied = moves.labelled(copy)
        both = (message, copied) if copy == "upload" else (copied, message)
        return self._costs(process).way("dense", Breakdown.sum(both))

    def _num_works(self, rank: int) -> int:
        if self._is_sync:
            return len(self.steps)
        num_dense = len(self._intakes)
        return sum(
            (reader + step) % num_dense == rank
            for reader in range(len(self.machines.readers))
            for step in self.steps
        )

    # ------------------------------------------------------------ all of them

    def _costs(self, process: Process) -> Costs:
        name = f"{process.role} worker {process.rank}"
        device = Queue(self.events, f"device of {name}")
        return Costs(self.events, self.machines, process, device, Lock(self.events))

    def _ring(self, num_stages: int, num_steps: int) -> SpanRing | None:
        if not self.setting.is_recorded:
            return None
        return SpanRing(SPANS_A_STAGE * num_stages * num_steps + 1)

    def _threads(
        self,
        process: Process,
        chain: Sequence[tuple[str, Sequence[Operation]]],
        capacities: Mapping[str, int],
        steps: range,
        ring: SpanRing | None,
    ) -> tuple[StageThread, ...]:
        """Returns the threads of a chain of stages, with hand-offs between them."""
        found: list[StageThread] = []
        before: Handoff | None = None
        for number, (name, operations) in enumerate(chain):
            is_last = number == len(chain) - 1
            after = None if is_last else Handoff(self.events, capacities[name])
            thread = StageThread(
                name,
                self.events,
                process.door,
                operations=operations,
                steps=steps,
                before=before,
                after=after,
                ring=ring,
            )
            thread.vary(self._varied(name, len(steps)), self._straggling(process, steps))
            found.append(thread)
            before = after
        return tuple(found)

    # ------------------------------------------------------------ what does not go as predicted

    def _varied(self, stage: str, num_steps: int) -> list[float] | None:
        """Returns by what the times of a stage are multiplied, 1 in the mean."""
        variation = self.setting.conditions.variation.get(stage, 0.0)
        if not variation:
            return None
        assert self.setting.rng is not None, "times that vary are drawn"
        variance = float(np.log1p(variation**2))
        drawn = self.setting.rng.lognormal(-variance / 2, variance**0.5, num_steps)
        found: list[float] = drawn.tolist()
        return found

    def _straggling(self, process: Process, steps: range) -> list[float] | None:
        found = [each for each in self.setting.conditions.stragglers if _is_of(each, process)]
        if not found:
            return None
        factors = np.ones(len(steps))
        numbers = np.arange(steps.start, steps.stop)
        for each in found:
            last = steps.stop if each.last_step is None else each.last_step
            factors[(each.first_step <= numbers) & (numbers < last)] *= each.factor
        listed: list[float] = factors.tolist()
        return listed

    def _disturb(self) -> None:
        """Has machines be slow and processes down when they shall be."""
        conditions = self.setting.conditions
        for slow in conditions.slowdowns:
            for machine in self.machines.named(slow.host):
                links = (machine.sends, machine.receives)
                for shared in (machine.cores,) if slow.what == "cores" else links:
                    slower = partial(shared.set_speed, 1 / slow.factor)
                    self._during(slow.start, slow.end, slower, partial(shared.set_speed, 1.0))
        if conditions.restart is not None:
            return  # the whole job ends
        for failure in conditions.failures:
            door = self.machines.door
            if failure.role != "server":
                door = self.machines.workers[failure.role][failure.rank].door
            back = failure.at + failure.back_after
            self._during(failure.at, back, door.close, door.open)

    def _during(self, start: float, end: float, begin: Action, finish: Action) -> None:
        if end > self.start:
            self.events.at(max(start, self.start), begin)
            if not math.isinf(end):
                self.events.at(end, finish)


def _is_of(straggler: Straggler, process: Process) -> bool:
    role = straggler.role or ("whole" if process.role == "whole" else "sparse")
    return (role, straggler.rank) == (process.role, process.rank)


def _flat(pieces: Sequence[Piece]) -> Iterator[Operation]:
    for piece in pieces:
        yield from piece.operations


def _before(
    pieces: Sequence[Piece],
    resource: str,
    operations: Sequence[Operation],
    *,
    label: str | None = None,
) -> Iterator[Operation]:
    """Yields operations before the first piece on a resource; behind all if there is none."""
    left = list(operations)
    for piece in pieces:
        if piece.resource == resource and label in (None, piece.label):
            yield from left
            left = []
        yield from piece.operations
    yield from left
