"""What each stage of a step costs, if nothing else runs."""

from collections.abc import Iterator

from hetero_pipe.cost.comm import Members, all_reduce_time
from hetero_pipe.cost.compute import TABLE_OPS, op_cost, optimizer_cost
from hetero_pipe.cost.job import Job
from hetero_pipe.cost.rates import compute_rates
from hetero_pipe.cost.table import (
    Link,
    call_cost,
    pull_cost,
    push_cost,
    route_cost,
    table_rates,
)
from hetero_pipe.plan import Breakdown, StagePrediction

__all__ = ["predict_stages"]


def predict_stages(job: Job) -> Iterator[StagePrediction]:
    """Yields the stages of one worker of each role, in order, each as busy as it costs."""
    role = job.roles.reader.role

    def stage(name: str, cost: Breakdown, role: str = role) -> StagePrediction:
        return StagePrediction(name, role, cost, cost.total)

    yield stage("read", read_cost(job))
    yield stage("route", _route(job))
    yield stage("pull", exchange_cost(job, "pull"))
    if role == "sparse":
        send = send_cost(job)
        yield stage("send", send)
        yield stage("dense", dense_cost(job), "dense")
        yield stage("recv", send)
    else:
        yield stage("dense", dense_cost(job))
    yield stage("push", exchange_cost(job, "push"))


def read_cost(job: Job) -> Breakdown:
    """Returns the seconds in which a batch is cut from its columns."""
    return Breakdown.of("read", job.batch_bytes / 8 * job.constants.read_value, "worker")


def _route(job: Job) -> Breakdown:
    by_slots = {tuple(table.slots): table for table in job.graph.tables}
    keys = sum(float(table.all_keys.at(job.values)) for table in by_slots.values())
    return route_cost(keys, constants=job.constants)


# ---------------------------------------------------------------- pull and push


def link_of(job: Job) -> Link:
    """Returns the way between a worker that reads and the servers."""
    servers, cluster, constants = job.roles.servers, job.cluster, job.constants
    if servers is None:
        return Link()
    reader, host = cluster.host(job.roles.reader.host), cluster.host(servers.host)
    path = None if reader.name == host.name else cluster.path(reader.names[0], host.names[-1])
    calls = cluster.rates_of("grpc_call", host=reader.name)
    message_bytes = cluster.rates_of("grpc_byte", host=reader.name)
    return Link(
        num_servers=job.roles.num_servers,
        path=path,
        call=calls[0].value.median if calls else constants.call,
        message_byte=message_bytes[-1].value.median if message_bytes else constants.message_byte,
        skew=job.workload.skew,
    )


def exchange_cost(job: Job, what: str) -> Breakdown:
    """Returns the cost of pulling or pushing all tables of a batch."""
    link, constants = link_of(job), job.constants
    host = (job.roles.servers or job.roles.reader).host
    cost_of = pull_cost if what == "pull" else push_cost
    found = []
    for table in job.tables("host"):
        rates = table_rates(job.cluster, host, table, constants=constants)
        found.append(cost_of(table, float(table.rows.at(job.values)), rates, link))
    if found:
        found.append(call_cost(link.num_servers, call=link.call, call_cpu=constants.call_cpu))
    if what == "pull" and not job.dense_rates.is_cpu and job.roles.reader.role == "whole":
        found.append(copy_cost(job, "upload"))
    return Breakdown.sum(found)


def copy_cost(job: Job, label: str) -> Breakdown:
    """Returns the cost of the batch's rows to the device, or of their gradients back."""
    cluster, dense = job.cluster, job.roles.dense
    host = cluster.host(dense.host)
    size = job.rows_bytes + (job.batch_bytes if label == "upload" else 0.0)
    rates = cluster.rates_of(label, host=host.name, device=dense.device)
    if rates:
        return Breakdown.of(label, size / rates[-1].value.median, "network")
    path = cluster.path(host.names[0], f"{host.names[0]}/{dense.device}:0")
    return Breakdown.of(label, path.time(size), "network")


# ---------------------------------------------------------------- dense


def dense_cost(job: Job) -> Breakdown:
    """Returns the cost of forward, backward and optimizer of the dense part."""
    rates = job.dense_rates
    is_sparse = job.roles.reader.role == "sparse"
    on_device = {table.name for table in job.plan.tables if table.home != "host"}
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
    for op in job.graph.ops:  # a table on the device is an op there
        if op.kind in TABLE_OPS and op.table in on_device:
            found.append(op_cost(op, rates, job.values))
    if not rates.is_cpu and not is_sparse:
        found.append(copy_cost(job, "download"))
    if job.plan.workers.is_sync and job.roles.num_dense > 1:
        found.append(Breakdown.of("all-reduce", _all_reduce(job), "network"))
    found.append(Breakdown.of("step", rates.step, "worker"))
    return Breakdown.sum(found)


def _all_reduce(job: Job) -> float:
    members = Members.of(job.cluster, job.roles.dense)
    trained = sum(float(t.bytes.at({})) for t in job.graph.parameters if t.needs_gradient)
    return all_reduce_time(trained, members)


def send_cost(job: Job) -> Breakdown:
    """Returns the cost of what is pooled, to a dense worker, or of its gradients back."""
    constants, cluster = job.constants, job.cluster
    width = 1.0 if job.plan.workers.wire == "float32" else 0.5
    pools = [op for op in job.graph.ops if op.kind == "pool"]
    cut = {name for op in pools for name in op.outputs}
    size = sum(float(job.graph.tensor(name).bytes.at(job.values)) for name in cut) * width
    size += job.batch * 4 * (job.workload.num_dense + 1)
    reader, dense = cluster.host(job.roles.reader.host), cluster.host(job.roles.dense.host)
    rates = compute_rates(cluster, reader.name, "cpu", constants=constants)
    pooled = Breakdown.sum(op_cost(op, rates, job.values) for op in pools)
    found = [
        pooled.times(0.5),  # forward here, backward there
        Breakdown.of("message", size * constants.message_byte, "worker"),
        Breakdown.of("call", constants.call_cpu, "worker"),
    ]
    if reader.name != dense.name:
        path = cluster.path(reader.names[0], dense.names[-1])
        found.append(Breakdown.of("network", path.time(size), "network"))
    return Breakdown.sum(found)
