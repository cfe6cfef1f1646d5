"""Plans, predictions and clusters of a few numbers: not a test itself."""

from hetero_pipe.cluster import Cluster, Device, Host, Link, Switch
from hetero_pipe.plan import (
    Breakdown,
    Part,
    Plan,
    Prediction,
    ProcessPlan,
    StagePlan,
    StagePrediction,
    WorkersPlan,
)

MANY = 1000
CAPACITIES = {"read": 4, "route": 2, "pull": 3, "dense": 1, "push": 16}


def cost(*parts):
    """`cost((seconds, resource), ...)`, or with a label behind."""
    return Breakdown(tuple(Part(*_labelled(i, *part)) for i, part in enumerate(parts) if part[0]))


def _labelled(i, seconds, resource, label=None):
    return label or f"part {i}", seconds, resource


def cluster(*, cores=MANY, machines=1, server_cores=MANY, servers=1, gbit=10):
    """Trainers and servers at one switch."""
    hosts = (
        Host("trainer", (Device("cpu", memory=2**34, cores=cores),), count=machines),
        Host("server", (Device("cpu", memory=2**34, cores=server_cores),), count=servers),
    )
    links = tuple(Link((end, "leaf"), "NIC", gbit * 1e9 / 8, 0.0) for end in ("trainer", "server"))
    return Cluster(hosts, links, (Switch("leaf"),))


def plan(mode="bounded", *, staleness=0, capacities=(), machines=1, per_machine=1, servers=0):
    held = CAPACITIES | dict(capacities)
    processes = [ProcessPlan("whole", "trainer", "cpu", machines, per_machine)]
    if servers:
        processes.insert(0, ProcessPlan("server", "server", "cpu", servers))
    return Plan(
        stages=tuple(StagePlan(name, "cpu", capacity) for name, capacity in held.items()),
        tables=(),
        staleness=staleness,
        workers=WorkersPlan(mode, machines * per_machine),
        batch_size=10,
        processes=tuple(processes),
    )


def dense_plan(mode="bounded", *, staleness=0, sparse=1, dense=1, capacity=3):
    """Sparse workers on `trainer`s, dense ones on the `server`s' host."""
    whole = plan(mode, staleness=staleness, capacities={"pull": capacity})
    return Plan(
        stages=whole.stages,
        tables=whole.tables,
        staleness=staleness,
        workers=WorkersPlan(mode, sparse, tuple(f"127.0.0.1:{i}" for i in range(1, dense + 1))),
        batch_size=10,
        processes=(
            ProcessPlan("sparse", "trainer", "cpu", 1, sparse),
            ProcessPlan("dense", "server", "cpu", 1, dense),
        ),
    )


def prediction(*, num_workers=1, role="whole", aside=(), **costs):
    """A cost of each stage, in order; a number is seconds on a core. Of some what is aside."""
    found, beside = [], dict(aside)
    for name, each in costs.items():
        parts = each if isinstance(each, Breakdown) else cost((each, "worker"))
        stage_role = role if role == "whole" or name != "dense" else "dense"
        others = beside.get(name, Breakdown())
        found.append(StagePrediction(name, stage_role, parts, parts.total, others))
    longest = max(stage.cost.total for stage in found)
    return Prediction(longest, 10.0 * num_workers, tuple(found), (), (Part("longest", longest),))
