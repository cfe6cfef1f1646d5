"""Below what can a step not be? Each stage, the gate, the cores and the links bound it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hetero_pipe.cost.job import Job
from hetero_pipe.cost.memory import KEY_BYTES
from hetero_pipe.cost.roles import Roles
from hetero_pipe.cost.sharing import Thread, shared_step_time, stretches
from hetero_pipe.cost.step import cores_time, gate_time, queued_step_time, step_bounds
from hetero_pipe.cost.traffic import Flow, network_times
from hetero_pipe.plan import Breakdown, Part, StagePrediction

__all__ = ["predict_bounds", "predict_loads", "stretched"]

AHEAD = ("read", "route")
"""Stages that a batch goes through before a pull waits at the gate."""

MOVES = ("message", "upload", "download")
"""What a batch waits for of what is done aside of a stage."""

NOTED = 1.002
"""By how much less than it makes a step longer, sharing cores counts: its largest bound is to be
what bounds a step that is hardly longer."""


def predict_bounds(
    job: Job, stages: Sequence[StagePrediction], loads: Mapping[str, float]
) -> tuple[Part, ...]:
    """Returns the least seconds of a step by what does not allow less, the largest first.

    Args:
        job: Has the stages.
        stages: Of one worker of each role.
        loads: As `predict_loads` returns them.
    """
    return step_bounds(dict(_bounds(job, stages, loads)))


def _bounds(
    job: Job, stages: Sequence[StagePrediction], loads: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    roles = job.roles
    for stage in stages:
        yield stage.name, stage.cost.total * _turns(job, stage)
    if job.plan.workers.mode != "async":
        cycle = _cycle(job, stages, {stage.name: stage.cost.total for stage in stages})
        yield "gate", gate_time(cycle, job.plan.staleness)
    # What several stages ask of one device, one after another.
    on_device = sum(stage.cost.on("device") for stage in stages)
    yield f"{roles.dense.device} of {roles.dense.host}", on_device * roles.readers_per_dense
    yield from ((f"cores of {host}", load) for host, load in loads.items())
    yield from _network(job).items()


def _cycle(job: Job, stages: Sequence[StagePrediction], busy: Mapping[str, float]) -> list[float]:
    """Returns the seconds of all that is between a pull and its push, in turn.

    Args:
        job: Has the stages.
        stages: Of one worker of each role.
        busy: Seconds of each, by name.
    """
    cycle = [stage for stage in stages if stage.name not in AHEAD]
    return [
        *(busy[stage.name] * _in_turn(job, stage) for stage in cycle),
        *(_on_the_way(stage) for stage in cycle),
    ]


def _on_the_way(stage: StagePrediction) -> float:
    """Returns the seconds in which a batch is moved: aside of a stage, but in its own way."""
    return sum(part.amount for part in stage.aside.parts if part.label in MOVES)


def _in_turn(job: Job, stage: StagePrediction) -> float:
    """Returns how many batches of a stage lie between the pull of a step and its push.

    Without staleness all readers pull at once, so that their batches reach the dense workers
    at once; of those that one of them gets, the last waits for all. With staleness they
    drift apart.
    """
    return _turns(job, stage) if job.plan.staleness == 0 else 1.0


def _turns(job: Job, stage: StagePrediction) -> float:
    """Returns how many times a stage runs, one after another, in a step of the readers.

    A reader sends its step s to dense worker (rank + s) % D. Where a pull misses at most
    k steps of any worker, batches under way are of k + 1 steps in a row, so that of R
    readers they are with R + k dense workers at the most, and more of these wait::

        R = 2, k = 1, D = 4     step 0   0 1 . .    never more than 3 of 4 at work
                                step 1   . 1 2 .
                                step 2   . . 2 3
    """
    roles = job.roles
    if stage.role != "dense":
        return 1.0
    if job.plan.workers.mode == "async":
        return roles.readers_per_dense
    at_work = min(roles.num_dense, roles.num_readers + job.plan.staleness)
    return roles.num_readers / at_work


def predict_loads(job: Job, stages: Sequence[StagePrediction]) -> dict[str, float]:
    """Returns the least seconds of a step by the cores of each host."""
    found = {}
    roles = job.roles
    for host in job.cluster.hosts:
        costs = []
        for processes in roles.processes:
            if processes.host != host.name:
                continue
            for stage in stages:
                if processes.role == "server":
                    # Of each reader's step, each server of the machine has its share.
                    fewest = job.fewest.servers or processes
                    times = float(fewest.per_machine * roles.num_readers)
                    costs.append((stage.whole_cost, times, ("server",)))
                elif stage.role == processes.role:
                    times = processes.per_machine * (
                        roles.readers_per_dense if stage.role == "dense" else 1.0
                    )
                    costs.append((stage.whole_cost, times, ("worker",)))
        if costs:
            found[host.name] = cores_time(costs, host.cores)
    return found


def _network(job: Job) -> dict[str, float]:
    """Returns the least seconds of a step by the links between machines.

    Of all plans between two: what leaves the first machine of a host rises or falls with
    each number of machines, so that it is least at one of the corners. What leaves
    others, or several, does not, and bounds nothing then.
    """
    corners = list(job.roles.corners(job.fewest, job.most))
    of_first, times = len(corners) > 1, []
    for roles in corners:
        flows = tuple(_flows(job, roles))
        find = partial(network_times, flows, job.cluster, of_first=of_first)
        times.append(job.once(("network", of_first, flows), find))
    if not of_first:
        return times[0]
    names = [f"network of {host.name}" for host in job.cluster.hosts]
    return {name: min(each.get(name, 0.0) for each in times) for name in names}


def _flows(job: Job, roles: Roles) -> Iterator[Flow]:
    """Yields what goes over links between processes in one step of all readers.

    An all-reduce goes its own ways, and is in the dense stage alone.
    """
    reader, servers, dense = roles.reader, roles.servers, roles.dense
    num = job.roles.num_readers
    if servers is not None:
        keys = sum(job.pulled_rows(t) + job.rows(t) for t in job.tables("host")) * KEY_BYTES
        yield Flow(reader, servers, num * (keys + job.pushed_bytes))
        yield Flow(servers, reader, num * job.pulled_bytes)
    if reader.role == "sparse":
        yield Flow(reader, dense, num * job.sent_bytes)
        yield Flow(dense, reader, num * job.sent_bytes)


def stretched(
    job: Job,
    stages: Sequence[StagePrediction],
    loads: Mapping[str, float],
    bounds: Sequence[Part],
) -> tuple[tuple[StagePrediction, ...], tuple[Part, ...]]:
    """Returns stages as their clocks will show them, longer where cores are short, and the bounds.

    If that makes a step longer than any bound, it is the first of them: the stage, or the
    gate, beside all others.

    Args:
        job: Has the stages.
        stages: As busy as they cost.
        loads: As `predict_loads` returns them.
        bounds: Below which a step cannot be if each stage takes what it costs.
    """
    shared = _Shared(job, stages, max(loads.values(), default=0.0))
    seconds = shared_step_time(bounds[0].amount, lambda step: max(shared.at_least(step).values()))
    least = seconds / NOTED
    if least > bounds[0].amount:
        found = shared.at_least(seconds)
        slowest = max(found, key=found.__getitem__)
        bounds = (Part(f"{slowest}, cores shared", least), *bounds)
    busy = shared.busy(seconds)
    shown = (replace(s, busy=max(busy[s.name], s.busy)) for s in stages)
    return tuple(shown), tuple(bounds)


class _Shared:
    """The stages of a job as threads of its machines.

    Args:
        job: Has the stages.
        stages: As busy as they cost.
        load: Seconds of a step that the busiest machine's cores are.
    """

    def __init__(self, job: Job, stages: Sequence[StagePrediction], load: float) -> None:
        self._load = load
        self._job = job
        self._stages = stages
        self._cores = {host.name: host.cores for host in job.cluster.hosts}
        # Of each thread the stage that waits for it; none waits for what is done aside.
        self._of: list[str] = []
        self._threads: list[Thread] = []
        for stage in stages:
            for name, cost in ((stage.name, stage.cost), ("", stage.aside)):
                for thread in _threads(job, stage, cost):
                    self._of.append(name)
                    self._threads.append(thread)
        at_once = job.roles.num_readers * (1 + job.plan.staleness)
        self._beside_cycle = 1 - 1 / at_once

    def busy(self, step: float, *, of_cycle: float = 1.0) -> dict[str, float]:
        """Returns the seconds of each stage in a step."""
        found = {stage.name: stage.cost.total for stage in self._stages}
        longer = stretches(self._threads, step, self._cores, of_cycle=of_cycle)
        for name, thread, stretch in zip(self._of, self._threads, longer, strict=True):
            if name:
                found[name] += self._once(name, thread) * (stretch - 1)
        return found

    def _once(self, name: str, thread: Thread) -> float:
        """Returns the seconds of a thread in one batch."""
        is_dense = next(s for s in self._stages if s.name == name).role == "dense"
        return thread.seconds / (self._job.roles.readers_per_dense if is_dense else 1.0)

    def at_least(self, step: float) -> dict[str, float]:
        """Returns below what a step cannot be if it is this long: it falls as the step rises."""
        job, busy = self._job, self.busy(step)
        found = {stage.name: _turns(job, stage) * busy[stage.name] for stage in self._stages}
        if job.plan.workers.mode != "async":
            busy = self.busy(step, of_cycle=self._beside_cycle)
            cycle = _cycle(job, self._stages, busy)
            # The busier the cores, the more it is chance who is where when.
            chance = min(self._load / step, 1.0) ** 2
            found["gate"] = queued_step_time(cycle, job.plan.staleness, chance=chance)
        return found


def _threads(job: Job, stage: StagePrediction, cost: Breakdown) -> Iterator[Thread]:
    """Yields who computes a cost of a stage on the machines of its own host and the servers'."""
    roles = job.roles
    is_in_cycle = stage.name not in AHEAD
    own = roles.dense if stage.role == "dense" else roles.reader
    times = roles.readers_per_dense if stage.role == "dense" else 1.0
    if seconds := cost.on("worker"):
        yield Thread(own.host, seconds * times, own.per_machine, is_in_cycle)
    if roles.servers is not None and (seconds := cost.on("server")):
        count = roles.servers.per_machine * roles.num_readers
        yield Thread(roles.servers.host, seconds, count, is_in_cycle)
