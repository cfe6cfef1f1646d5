"""Below what can a step not be? Each stage, the gate, the cores and the links bound it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hetero_pipe.cost.job import Job
from hetero_pipe.cost.step import cores_time, gate_time, step_bounds
from hetero_pipe.plan import Breakdown, Part, StagePrediction

__all__ = ["predict_bounds", "predict_loads", "stretched"]


def predict_bounds(
    job: Job, stages: Sequence[StagePrediction], loads: Mapping[str, float]
) -> tuple[Part, ...]:
    """Returns the least seconds of a step by what does not allow less, the largest first."""
    return step_bounds(dict(_bounds(job, stages, loads)))


def _bounds(
    job: Job, stages: Sequence[StagePrediction], loads: Mapping[str, float]
) -> Iterator[tuple[str, float]]:
    per_dense = job.roles.num_readers / job.roles.num_dense
    for stage in stages:
        yield stage.name, stage.cost.total * (per_dense if stage.role == "dense" else 1.0)
    if job.plan.workers.mode != "async":
        cycle = [stage.cost.total for stage in stages if stage.name not in ("read", "route")]
        yield "gate", gate_time(cycle, job.plan.staleness)
    yield from ((f"cores of {host}", load) for host, load in loads.items())
    yield from _links(job, stages)


def predict_loads(job: Job, stages: Sequence[StagePrediction]) -> dict[str, float]:
    """Returns the least time of a step by the cores of each host."""
    found = {}
    roles = job.roles
    per_dense = roles.num_readers / roles.num_dense
    for host in job.cluster.hosts:
        costs = []
        for processes in roles.processes:
            if processes.host != host.name:
                continue
            for stage in stages:
                if processes.role == "server":
                    times = roles.num_readers / processes.machines
                    # Each server of a machine has its share of the same step.
                    total = stage.cost.on("server") * processes.per_machine
                    costs.append((Breakdown.of("server", total, "server"), times, ("server",)))
                elif stage.role == processes.role:
                    times = processes.per_machine * (per_dense if stage.role == "dense" else 1.0)
                    costs.append((stage.cost, times, ("worker",)))
        if costs:
            found[host.name] = cores_time(costs, host.cores)
    return found


def _links(job: Job, stages: Sequence[StagePrediction]) -> Iterator[tuple[str, float]]:
    """Yields the least time of a step by the links that several processes share."""
    servers, reader = job.roles.servers, job.roles.reader
    # A link takes as much each way: rows come in while gradients go out.
    busy = max(
        sum(part.amount for part in stage.cost.parts if part.label == "network")
        for stage in stages
        if stage.role == reader.role
    )
    yield f"network of {reader.host}", busy * reader.per_machine
    if servers is not None and servers.host != reader.host:
        cluster = job.cluster
        path = cluster.path(
            cluster.host(servers.host).names[0], cluster.host(reader.host).names[-1]
        )
        size = job.rows_bytes * job.roles.num_readers
        yield f"network of {servers.host}", size / servers.machines / path.bandwidth


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
