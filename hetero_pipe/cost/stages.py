"""What each stage of a step costs, if nothing else runs."""

from collections.abc import Iterator

from hetero_pipe.cost.comm import all_reduce_time
from hetero_pipe.cost.compute import TABLE_OPS, op_cost, optimizer_cost
from hetero_pipe.cost.curve import Curve
from hetero_pipe.cost.exchange import copied, predict_aside, predict_pull, predict_push
from hetero_pipe.cost.job import Job
from hetero_pipe.cost.table import route_cost
from hetero_pipe.plan import Breakdown, Part, StagePrediction

__all__ = ["predict_stages"]


NOTHING = Breakdown()


def predict_stages(job: Job) -> Iterator[StagePrediction]:
    """Yields the stages of one worker of each role, in order, each as busy as it costs."""
    role = job.roles.reader.role

    def stage(
        name: str, cost: Breakdown, role: str = role, aside: Breakdown = NOTHING
    ) -> StagePrediction:
        cost, aside = (_beside_others(job, name, each) for each in (cost, aside))
        return StagePrediction(name, role, cost, cost.total, aside)

    yield stage("read", job.once("read", lambda: read_cost(job)))
    yield stage("route", job.once("route", lambda: _route(job)))
    yield stage("pull", predict_pull(job), aside=predict_aside(job, "pull"))
    if role == "sparse":
        send = send_cost(job)
        yield stage("send", send)
        yield stage("dense", dense_cost(job), "dense", aside=_dense_aside(job))
        yield stage("recv", send)
    else:
        yield stage("dense", dense_cost(job), aside=_dense_aside(job))
    yield stage("push", predict_push(job), aside=predict_aside(job, "push"))


def _beside_others(job: Job, stage: str, cost: Breakdown) -> Breakdown:
    """Returns the cost of a stage beside the others, if what that adds was measured.

    A loop of nothing else finds its rows and its code in caches, and its threads awake.
    """
    dense = job.roles.dense
    host = job.cluster.host(dense.host).name
    found = job.cluster.rates_of("beside", host=host, device=dense.device)
    factors = {rate.kind: rate.value.median for rate in found}

    def amount(part: Part) -> float:
        if part.resource == "server":
            kind = "server"
        elif part.resource == "worker":
            kind = {"call": "call", "message": "cut"}.get(part.label, stage)
        else:
            return part.amount
        return part.amount * factors.get(kind, 1.0)

    return cost.map(amount) if factors else cost


def read_cost(job: Job) -> Breakdown:
    """Returns the seconds in which a batch is cut from its columns."""
    return Breakdown.of("read", job.batch_bytes / 8 * job.constants.read_value, "worker")


def _route(job: Job) -> Breakdown:
    by_slots = {tuple(table.slots): table for table in job.graph.tables}
    keys = [float(table.all_keys.at(job.values)) for table in by_slots.values()]
    rates = job.cluster.rates_of("route", host=job.cluster.host(job.roles.reader.host).name)
    if not rates:
        return route_cost(sum(keys), constants=job.constants)
    seconds = Curve.of([((r.size or 1), (r.size or 1) * r.value.median) for r in rates])
    return Breakdown.of("route", sum(map(seconds.at, keys)), "worker")


def dense_cost(job: Job) -> Breakdown:
    """Returns the cost of forward, backward and optimizer of the dense part."""
    dense, workers = job.roles.dense, job.plan.workers
    place = ("computed", dense.role, dense.host, dense.device, job.homes)
    found = [job.once(place, lambda: _computed(job))]
    if job.most.num_dense > 1:
        key = ("all-reduce", workers.is_sync, workers.average_every)
        found.append(job.least_over_replicas(key, _reduce_cost))
    rates = job.dense_rates
    found.append(Breakdown.of("step", rates.step, "worker"))
    found.append(Breakdown.of("step", rates.step_wait, "wait"))
    # Whether they are finite is found out, and gradients of their size are made.
    resource = "worker" if rates.is_cpu else "device"
    found.append(Breakdown.of("rows", _row_bytes(job) * rates.row_byte, resource))
    return Breakdown.sum(found)


def _row_bytes(job: Job) -> float:
    """Returns the bytes of the gradients that a dense step gives."""
    return job.sent_floats if job.roles.reader.role == "sparse" else job.pushed_bytes


def _dense_aside(job: Job) -> Breakdown:
    """Returns what is done for the dense stage beside its time, or while it waits.

    It looks whether the device has ended. In a dense worker, messages are received, copied
    to the device and back, and sent.
    """
    rates = job.dense_rates
    on_device = dense_cost(job).on("device")
    found = [
        Breakdown.of("look", on_device * job.constants.look, "worker"),
        Breakdown.of("step", rates.step_aside, "worker"),
        Breakdown.of("rows", _row_bytes(job) * rates.row_aside, "worker"),
    ]
    if job.roles.reader.role == "sparse":
        found += [
            *_message(job),
            copied(job, "upload", job.sent_floats),
            copied(job, "download", job.sent_floats),
            *_message(job),
        ]
    return Breakdown.sum(found)


def _computed(job: Job) -> Breakdown:
    """Returns the cost of all ops of the dense part, and of the optimizer."""
    rates = job.dense_rates
    is_sparse = job.roles.reader.role == "sparse"
    stated = job.workload.device_seconds
    if stated is not None and not rates.is_cpu:
        return Breakdown.of("device", stated, "device")
    ops = [
        op
        for op in job.graph.ops
        if op.kind not in TABLE_OPS and not (is_sparse and op.kind == "pool")
    ]
    found = [op_cost(op, rates, job.values) for op in ops]
    found.append(
        optimizer_cost(
            (t for t in job.graph.parameters if t.needs_gradient),
            rates,
            state=job.workload.dense_state,
        )
    )
    return Breakdown.sum(found)


def _reduce_cost(job: Job) -> Breakdown:
    """Returns the seconds of a step in which replicas are brought together, or kept so."""
    if job.roles.num_dense == 1:
        return Breakdown()
    seconds = all_reduce_time(job.trained_bytes, job.replicas)
    every = 1 if job.plan.workers.is_sync else job.plan.workers.average_every
    return Breakdown.of("all-reduce", seconds / every, "network")


def send_cost(job: Job) -> Breakdown:
    """Returns the cost of what is pooled, to a dense worker, or of its gradients back."""
    roles, wire = job.roles, job.plan.workers.wire
    away = job.share_away(job.fewest.dense, job.most.dense)
    return job.once(("send", wire, roles.reader.host, roles.dense.host, away), lambda: _sent(job))


def _sent(job: Job) -> Breakdown:
    constants, cluster = job.constants, job.cluster
    pools = [op for op in job.graph.ops if op.kind == "pool"]
    reader, dense = cluster.host(job.roles.reader.host), cluster.host(job.roles.dense.host)
    rates = job.rates(reader.name, "cpu")
    pooled = Breakdown.sum(op_cost(op, rates, job.values) for op in pools)
    found = [
        pooled.times(0.5),  # forward here, backward there
        *_message(job),
        Breakdown.of("call", constants.call_cpu, "worker"),
    ]
    away = job.share_away(job.fewest.dense, job.most.dense)
    if away:  # in the mean of batches, which go to one dense worker after another
        far = dense.names[1] if reader.name == dense.name else dense.names[-1]
        seconds = job.ways(reader.names[0], far).time(job.sent_bytes)
        found.append(Breakdown.of("network", away * seconds, "network"))
    return Breakdown.sum(found)


def _message(job: Job) -> Iterator[Breakdown]:
    """Yields what cuts or their gradients take this end, to be sent or received."""
    reader = job.cluster.host(job.roles.reader.host)
    rates = job.cluster.rates_of("cut_byte", host=reader.name, dtype=job.plan.workers.wire)
    if rates:
        seconds = Curve.of([((r.size or 1), (r.size or 1) * r.value.median) for r in rates])
        yield Breakdown.of("message", seconds.at(job.sent_floats) / 2, "worker")
    else:
        size = job.sent_bytes
        yield Breakdown.of("message", size * job.constants.message_byte, "worker")
