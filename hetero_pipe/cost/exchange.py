"""What pull and push cost: rows of hosts, of each device, and shared out over devices."""

from collections.abc import Hashable, Iterator, Sequence

from hetero_pipe.cluster import Rate
from hetero_pipe.cost.comm import all_gather_time, all_to_all_time
from hetero_pipe.cost.compute import op_cost
from hetero_pipe.cost.curve import Curve
from hetero_pipe.cost.job import Job
from hetero_pipe.cost.memory import FLOAT, KEY_BYTES
from hetero_pipe.cost.table import (
    CallRates,
    Link,
    TableRates,
    aside_call_cost,
    call_cost,
    measured_call_cost,
    pull_cost,
    push_cost,
    route_cost,
    table_rates,
)
from hetero_pipe.cost.traffic import uplink
from hetero_pipe.graph import Table, rows_symbol
from hetero_pipe.plan import Breakdown

__all__ = [
    "copied",
    "copy_cost",
    "exchange_assumed",
    "predict_aside",
    "predict_pull",
    "predict_push",
    "server_link",
]


def predict_pull(job: Job) -> Breakdown:
    """Returns the cost until a batch's rows are where the dense part is.

    Rows of hosts come over their link, those of a cache or a device from its memory,
    and those that are shared out from the devices that have them: keys there, rows back.
    """
    found = [job.once(("pull", *_key(job)), lambda: _pulled_from_hosts(job))]
    if any(job.tables("device", "sharded")):
        found.append(job.least_over_replicas("pull", _pulled_from_devices))
    return Breakdown.sum(found)


def predict_push(job: Job) -> Breakdown:
    """Returns the cost until a batch's gradients are applied.

    Where each device has all rows, each applies what all have found: keys and gradients
    are gathered over the host, which adds up those of one row. Where rows are shared
    out, gradients go to the device that has the row.
    """
    found = [job.once(("push", *_key(job)), lambda: _pushed_to_hosts(job))]
    if any(job.tables("device", "sharded")):
        found.append(job.least_over_replicas("push", _pushed_to_devices))
    return Breakdown.sum(found)


def predict_aside(job: Job, stage: str) -> Breakdown:
    """Returns what is done for a pull or a push beside its own time.

    Cores do a part of its calls in other threads. Rows are copied to a device while the
    next ones are pulled.

    Args:
        job: Has the stage.
        stage: `pull` or `push`.
    """
    return job.once((stage, "aside", *_key(job)), lambda: _aside(job, stage))


def _aside(job: Job, stage: str) -> Breakdown:
    is_copied = stage == "pull" and job.roles.reader.role == "whole"
    copies = copy_cost(job, "upload").only("network") if is_copied else Breakdown()
    return _calls_aside(job, stage) + copies


def _calls_aside(job: Job, stage: str) -> Breakdown:
    link = server_link(job)
    rates, rows_bytes = {
        "pull": (link.pull, job.pulled_bytes),
        "push": (link.push, job.pushed_bytes),
    }[stage]
    if rates is None or not rows_bytes:
        return Breakdown()
    rows = job.pulled_rows if stage == "pull" else job.rows
    keys = KEY_BYTES * sum(rows(table) for table in job.tables("host"))
    return aside_call_cost(rates, keys + rows_bytes, link)


def _key(job: Job) -> tuple[Hashable, ...]:
    """Returns all that the way to rows of hosts depends on."""
    roles = job.roles
    # Sparse workers pull whatever the dense ones are.
    workers = [roles.reader] if roles.reader.role == "sparse" else [roles.reader, roles.dense]
    asked = [*workers, *([roles.servers] if roles.servers else [])]
    places = tuple((each.role, each.host, each.device) for each in asked)
    away = job.share_away(job.fewest.servers, job.most.servers)
    return (places, job.fewest.num_servers, job.most.num_servers, away, job.homes)


def _pulled_from_hosts(job: Job) -> Breakdown:
    link = server_link(job)
    found = [
        pull_cost(table, job.pulled_rows(table), _rates(job, table), link)
        for table in job.tables("host")
    ]
    keys = KEY_BYTES * sum(job.pulled_rows(table) for table in job.tables("host"))
    found += _calls(job, link, link.pull, keys + job.pulled_bytes)
    for table in job.tables("host"):
        hits = job.rows(table) - job.pulled_rows(table)
        found.append(_on_device(job, table, "pull", hits) if hits else Breakdown())
    if job.roles.reader.role == "whole":
        found.append(copy_cost(job, "upload").only("worker"))
    return Breakdown.sum(found)


def _pulled_from_devices(job: Job) -> Breakdown:
    found = []
    for table in job.tables("device", "sharded"):
        found.append(route_cost(job.rows(table), constants=job.constants))  # where each row is
        found.append(_on_device(job, table, "pull", job.rows(table)))
    for table in job.tables("sharded"):
        for size in (KEY_BYTES, FLOAT * table.dim):
            seconds = all_to_all_time(job.rows(table) * size, job.replicas)
            found.append(Breakdown.of("all-to-all", seconds, "network"))
    return Breakdown.sum(found)


def _pushed_to_hosts(job: Job) -> Breakdown:
    link = server_link(job)
    found = [
        push_cost(table, job.rows(table), _rates(job, table), link) for table in job.tables("host")
    ]
    keys = KEY_BYTES * sum(job.rows(table) for table in job.tables("host"))
    found += _calls(job, link, link.push, keys + job.pushed_bytes)
    if job.roles.reader.role == "whole":
        found.append(copy_cost(job, "download"))
    return Breakdown.sum(found)


def _pushed_to_devices(job: Job) -> Breakdown:
    found = []
    for table in job.tables("device"):
        found.append(_gather_cost(job, table))
        found.append(_on_device(job, table, "push", job.rows_of_all(table)))
    for table in job.tables("sharded"):
        size = job.rows(table) * (KEY_BYTES + FLOAT * table.dim)
        seconds = all_to_all_time(size, job.replicas)
        found.append(Breakdown.of("all-to-all", seconds, "network"))
        share = job.rows_of_all(table) / job.roles.num_dense
        found.append(_on_device(job, table, "push", share))
    return Breakdown.sum(found)


def server_link(job: Job) -> Link:
    """Returns the way between a worker that reads and the servers."""
    servers, cluster, constants = job.roles.servers, job.cluster, job.constants
    if servers is None:
        return Link()
    reader, host = cluster.host(job.roles.reader.host), cluster.host(servers.host)
    away = job.share_away(job.fewest.servers, job.most.servers)
    # Of hosts that are one, the first two machines; of others, the ends of both.
    far = host.names[1] if reader.name == host.name and away else host.names[-1]
    calls = cluster.rates_of("grpc_call", host=reader.name)
    message_bytes = cluster.rates_of("grpc_byte", host=reader.name)
    return Link(
        num_servers=job.fewest.num_servers,
        ways=job.ways(reader.names[0], far) if away else None,
        away=away,
        uplink=uplink(cluster, reader.names[0]),
        call=calls[0].value.median if calls else constants.call,
        message_byte=message_bytes[-1].value.median if message_bytes else constants.message_byte,
        # The least share of the keys is that of the most servers.
        skew=min(job.workload.skew, job.fewest.num_servers)
        * (job.fewest.num_servers / job.most.num_servers),
        pull=CallRates.of(cluster, reader.name, "grpc_pull"),
        push=CallRates.of(cluster, reader.name, "grpc_push"),
        most_servers=job.most.num_servers,
    )


def exchange_assumed(job: Job) -> Iterator[str]:
    """Yields what of pull and push was not measured, for people."""
    host = (job.roles.servers or job.roles.reader).host
    if not all(_rates(job, table).is_measured for table in job.tables("host")):
        yield f"the rates of pull and push on {host}"
    if job.roles.servers and not job.cluster.rates_of("grpc_call", host=job.roles.reader.host):
        yield f"the cost of a call from {job.roles.reader.host}"


def _rates(job: Job, table: Table) -> TableRates:
    host = (job.roles.servers or job.roles.reader).host
    return job.once(
        ("table rates", host, table.name),
        lambda: table_rates(job.cluster, host, table, constants=job.constants),
    )


def _calls(
    job: Job, link: Link, measured: CallRates | None, num_bytes: float
) -> Iterator[Breakdown]:
    """Yields the cost of the requests of a stage: one to each server, for all tables."""
    if measured is not None and num_bytes:
        yield measured_call_cost(measured, num_bytes, link)
    elif any(job.tables("host")):
        yield call_cost(link.num_servers, call=link.call, call_cpu=job.constants.call_cpu)


def _on_device(job: Job, table: Table, kind: str, rows: float) -> Breakdown:
    """Returns the cost of pulling or pushing so many rows in the memory of a device."""
    values = {**job.values, rows_symbol(table.name): rows}
    return Breakdown.sum(
        op_cost(op, job.dense_rates, values)
        for op in job.graph.ops
        if op.kind == kind and op.table == table.name
    )


def _gather_cost(job: Job, table: Table) -> Breakdown:
    """Returns the cost until the host of each replica has the sum of what all have found."""
    num, width = job.roles.num_dense, FLOAT * table.dim
    if num == 1:
        return Breakdown()
    of_one, of_all = job.rows(table), num * job.rows(table)
    core = job.rates(job.roles.dense.host, "cpu")
    gathered = all_gather_time(of_all * (KEY_BYTES + width), job.replicas)
    return Breakdown.sum(
        (
            copied(job, "download", of_one * width),
            Breakdown.of("all-gather", gathered, "network"),
            route_cost(of_all, constants=job.constants),
            # Of each gradient: read, and added to what is there of its row.
            Breakdown.of("merge", core.elementwise.at(3 * of_all * width), "worker"),
            copied(job, "upload", job.rows_of_all(table) * width),
        )
    )


def copy_cost(job: Job, label: str) -> Breakdown:
    """Returns the cost of a batch and its pulled rows to the device, or of gradients back."""
    size = job.pulled_bytes + job.batch_bytes if label == "upload" else job.pushed_bytes
    return copied(job, label, size)


def _seconds_of(rates: Sequence[Rate]) -> Curve:
    return Curve.of(
        [(float(rate.size or 1), (rate.size or 1) / rate.value.median) for rate in rates]
    )


def copied(job: Job, label: str, num_bytes: float) -> Breakdown:
    """Returns the cost of an `upload` or a `download` of so many bytes; none on a CPU."""
    cluster, dense = job.cluster, job.roles.dense
    if job.dense_rates.is_cpu or not num_bytes:
        return Breakdown()
    host = cluster.host(dense.host)
    rates = cluster.rates_of(label, host=host.name, device=dense.device)
    if rates:
        seconds = _seconds_of(rates).at(num_bytes)
        cores = cluster.rates_of(f"{label}_core", host=host.name, device=dense.device)
        on_core = min(_seconds_of(cores).at(num_bytes), seconds) if cores else 0.0
        return Breakdown.of(label, on_core, "worker") + Breakdown.of(
            label, seconds - on_core, "network"
        )
    ways = job.ways(host.names[0], f"{host.names[0]}/{dense.device}:0")
    return Breakdown.of(label, ways.time(num_bytes), "network")
