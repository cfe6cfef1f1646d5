"""Below what can a step not be? Each stage, the gate, the cores and the links bound it."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hetero_pipe.cost.job import Job
from hetero_pipe.cost.memory import KEY_BYTES
from hetero_pipe.cost.sharing import Sharing, shared_step_time
from hetero_pipe.cost.step import cores_time, gate_time, queued_step_time, step_bounds
from hetero_pipe.cost.traffic import Flow, first_machine_times, network_times
from hetero_pipe.plan import Breakdown, Part, StagePrediction

__all__ = ["predict_bounds", "predict_loads", "stretched"]

AHEAD = ("read", "route")
"""Stages that a batch goes through before a pull waits at the gate."""

SOME = 4
"""Staleness below this is tried, if a plan allows more."""

INTERPRETED = ("call", "step", "launch", "look")
"""Parts on a worker's core of which its process does one at a time."""

SERVER = "interpreter of a server"

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
    yield from _interpreters(job, stages).items()
    yield from _network(job).items()


def _interpreters(job: Job, stages: Sequence[StagePrediction]) -> dict[str, float]:
    """Returns the seconds of a step in which one process of each role holds its interpreter."""
    found: dict[str, float] = defaultdict(float)
    for stage in stages:
        for process, seconds in _locked(job, stage, stage.whole_cost).items():
            times = job.roles.readers_per_dense if stage.role == "dense" else 1.0
            found[process] += seconds * (job.roles.num_readers if process == SERVER else times)
    return dict(found)


def _locked(job: Job, stage: StagePrediction, cost: Breakdown) -> dict[str, float]:
    """Returns by process the seconds of a cost in which threads of it exclude one another.

    Native tables and kernels do not hold the interpreter; what makes, sends and reads a
    request does, and what launches a step and looks whether it has ended.
    """
    found: dict[str, float] = defaultdict(float)
    for part in cost.parts:
        if part.resource == "worker" and part.label in INTERPRETED:
            found[f"interpreter of a {stage.role} worker"] += part.amount
        elif part.resource == "server" and part.label == "call" and job.roles.servers is not None:
            found[SERVER] += part.amount
    return dict(found)


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
        *(stage.moves.total for stage in cycle),
    ]


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
    flows = tuple(_flows(job))
    numbers = {
        few.role: (few.machines, many.machines)
        for few, many in zip(job.fewest.processes, job.most.processes, strict=True)
    }
    if any(few < many for few, many in numbers.values()):
        return first_machine_times(flows, job.cluster, numbers)
    return job.once(("network", flows), partial(network_times, flows, job.cluster))


def _flows(job: Job) -> Iterator[Flow]:
    """Yields what goes over links between processes in one step of all readers.

    An all-reduce goes its own ways, and is in the dense stage alone.
    """
    roles = job.roles
    reader, servers, dense, num = roles.reader, roles.servers, roles.dense, roles.num_readers
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
    bounds: tuple[Part, ...],
) -> tuple[tuple[StagePrediction, ...], tuple[Part, ...]]:
    """Returns stages as their clocks will show them, longer where cores are short, and the bounds.

    If that makes a step longer than any bound, it is the first of them: the stage, or the
    gate, beside all others.

    Of all plans between two it is so, too: by samples, what all others hold of cores is
    no less in any of them, nor is what a stage costs. A shorter step than the one that is
    found here would be too short for its own stages.

    Args:
        job: Has the stages.
        stages: As busy as they cost.
        loads: Least time of a step by the cores of each host.
        bounds: Below which a step cannot be if each stage takes what it costs.
    """
    cores = {host.name: host.cores for host in job.cluster.hosts}
    held = {host: load * cores[host] for host, load in loads.items()}
    held |= _interpreters(job, stages)
    own = {stage.name: _own_load(job, stage) for stage in stages}
    sharings = {stage.name: _sharing(job, stage) for stage in stages}
    cycle = [stage.name for stage in stages if stage.name not in AHEAD]

    def others(name: str, *, share: float = 0.0) -> Mapping[str, float]:
        """Returns what is held but by a stage, and by a share of all that are in its cycle."""

        def left(what: str, load: float) -> float:
            ours = sum(own[each].get(what, 0.0) for each in cycle if each != name)
            return max(load - own[name].get(what, 0.0) - share * ours, 0.0)

        return {what: left(what, load) for what, load in held.items()}

    beside = {name: others(name) for name in own}
    # A batch does not wait for itself, but for those that are under way with it. That more may
    # be so makes nothing slower: at worst, they wait at the gate as with less.
    allowed = {min(k, job.plan.staleness) for k in (*range(SOME), job.plan.staleness)}
    beside_cycle = {
        k: {name: others(name, share=1 / (1 + k)) for name in cycle} for k in sorted(allowed)
    }
    busiest = max(loads.values(), default=0.0)

    def busy(name: str, step: float, times: float = 1.0) -> float:
        return times * sharings[name].seconds(step, beside[name], cores)

    def gate(step: float) -> float:
        # The busier the cores, the more it is chance who is where when.
        chance = min(busiest / step, 1.0) ** 2
        found = []
        for k, others_of in beside_cycle.items():
            times = {name: sharings[name].seconds(step, others_of[name], cores) for name in cycle}
            found.append(queued_step_time(_cycle(job, stages, times), k, chance=chance))
        return min(found)

    at_least: dict[str, Callable[[float], float]] = {
        stage.name: partial(busy, stage.name, times=_turns(job, stage)) for stage in stages
    }
    if job.plan.workers.mode != "async":
        at_least["gate"] = gate
    seconds = shared_step_time(bounds[0].amount, list(at_least.values()))
    shared = seconds / NOTED
    if shared > bounds[0].amount:
        slowest = max(at_least, key=lambda name: at_least[name](seconds))
        bounds = (Part(f"{slowest}, cores shared", shared), *bounds)
    if job.fewest is not job.most:
        return tuple(stages), bounds  # of several plans no clock is shown
    shown = (replace(s, busy=max(busy(s.name, seconds), s.busy)) for s in stages)
    return tuple(shown), tuple(bounds)


def _sharing(job: Job, stage: StagePrediction) -> Sharing:
    """Returns what a stage holds of the cores of its own host and of the servers'."""
    cores = _cores(job, stage, of_worker=1.0, of_server=1.0)
    return Sharing(stage.cost.total - sum(cores.values()), cores, _locked(job, stage, stage.cost))


def _own_load(job: Job, stage: StagePrediction) -> dict[str, float]:
    """Returns what of the load on cores and interpreters is of a stage of one process.

    Of all plans between two it is the most, as a share of the samples: of the one that has
    the fewest processes of its role on a machine, and of the one that has the fewest readers.
    """
    few, many = job.fewest, job.most
    if stage.role == "dense":
        alone = job.roles.readers_per_dense * many.dense.per_machine / few.dense.per_machine
    else:
        alone = many.reader.per_machine / few.reader.per_machine
    of_server = many.num_readers / few.num_readers
    found = _cores(job, stage, of_worker=alone, of_server=of_server)
    turns = job.roles.readers_per_dense if stage.role == "dense" else 1.0
    for process, seconds in _locked(job, stage, stage.cost).items():
        found[process] = seconds * (of_server if process == SERVER else turns)
    return found


def _cores(
    job: Job, stage: StagePrediction, *, of_worker: float, of_server: float
) -> dict[str, float]:
    """Returns the seconds of a stage on cores by host, so many times those of each side."""
    cores: dict[str, float] = defaultdict(float)
    roles = job.roles
    own = roles.dense if stage.role == "dense" else roles.reader
    cores[own.host] += of_worker * stage.cost.on("worker")
    if roles.servers is not None:
        cores[roles.servers.host] += of_server * stage.cost.on("server")
    return dict(cores)
