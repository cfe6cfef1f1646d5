"""Below what can a step not be? Each stage, the gate, the cores and the links bound it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hetero_pipe.cost.job import Job
from hetero_pipe.cost.memory import KEY_BYTES
from hetero_pipe.cost.roles import Roles
from hetero_pipe.cost.step import cores_time, gate_time, step_bounds
from hetero_pipe.cost.traffic import Flow, network_times
from hetero_pipe.plan import Part, StagePrediction

__all__ = ["predict_bounds", "predict_loads", "stretched"]


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
        yield (
            stage.name,
            stage.cost.total * (roles.readers_per_dense if stage.role == "dense" else 1.0),
        )
    if job.plan.workers.mode != "async":
        cycle = [stage.cost.total for stage in stages if stage.name not in ("read", "route")]
        yield "gate", gate_time(cycle, job.plan.staleness)
    # What several stages ask of one device, one after another.
    on_device = sum(stage.cost.on("device") for stage in stages)
    yield f"{roles.dense.device} of {roles.dense.host}", on_device * roles.readers_per_dense
    yield from ((f"cores of {host}", load) for host, load in loads.items())
    yield from _network(job).items()


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
                    costs.append((stage.cost, times, ("server",)))
                elif stage.role == processes.role:
                    times = processes.per_machine * (
                        roles.readers_per_dense if stage.role == "dense" else 1.0
                    )
                    costs.append((stage.cost, times, ("worker",)))
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
    stage: StagePrediction, job: Job, *, loads: Mapping[str, float], seconds: float
) -> StagePrediction:
    """Returns a stage as its clock will show it: longer where cores are short.

    Args:
        stage: As busy as it costs.
        job: Has it.
        loads: Least time of a step by the cores of each host.
        seconds: Of a step.
    """
    hosts = [each.host for each in job.roles.processes if each.role == stage.role]
    load = max((loads[host] for host in hosts), default=0.0) / seconds
    # At a full load each stage waits for a core as long as it is on one, in the mean of the
    # others' shares; none waits on an idle machine.
    others = max(load - stage.cpu / seconds, 0.0) if seconds else 0.0
    return replace(stage, busy=stage.cost.total + stage.cpu * others * load)
