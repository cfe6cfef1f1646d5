"""The three ways, and the best of each that a few choices allow."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache

import numpy as np

from hetero_pipe.cluster import Cluster
from hetero_pipe.cost import CostModel
from hetero_pipe.errors import PlanError
from hetero_pipe.plan import Plan, Prediction, ProcessPlan, StagePlan, TablePlan, WorkersPlan
from hetero_pipe.simulate import Conditions, simulate

STALENESS = 2
VARIATION = 0.1  # of stage times: without it, all workers send at the same moment, for ever
GPUS = 8  # of a `trainer`
MACHINES = {"server": 12, "trainer": 2}


class Way(Enum):
    """Which hosts of the cluster train."""

    CPU_ONLY = "CPU-only"
    GPU_ONLY = "GPU-only"
    HETEROGENEOUS = "heterogeneous"


WAYS = tuple(Way)


@dataclass(frozen=True)
class Found:
    """The best plan of a way; samples a second, predicted and simulated, 0 without one."""

    plan: Plan | None
    predicted: float = 0.0
    simulated: float = 0.0
    bottleneck: str = ""
    price: float | None = None


@dataclass(frozen=True)
class Point:
    """One model, batch and size of tables.

    Attributes:
        batch: Of a worker.
        width: Of each of the dense part's hidden layers.
        rows: Of each table.
        cores: Of a GPU host.
        found: By way.
    """

    batch: int
    width: int
    rows: float
    cores: int
    found: Mapping[Way, Found]

    def over(self, way: Way, *, is_simulated: bool = False) -> float | None:
        """Returns heterogeneous over another way; None where that one does not fit."""
        mine, other = self.found[Way.HETEROGENEOUS], self.found[way]
        if mine.plan is None or other.plan is None:
            return None
        if is_simulated:
            return mine.simulated / other.simulated
        return mine.predicted / other.predicted

    @property
    def winner(self) -> str:
        """Whose prediction is the most samples a second; of equal ones, that of fewer machines."""
        top = max(found.predicted for found in self.found.values())
        return next(way.value for way in WAYS if self.found[way].predicted >= 0.99 * top)

    @property
    def bound(self) -> str:
        """What bounds the heterogeneous way."""
        return self.found[Way.HETEROGENEOUS].bottleneck

    def to_dict(self) -> dict:
        """Returns it for JSON."""
        ways = {
            way.value: {
                "predicted": found.predicted,
                "simulated": found.simulated,
                "bottleneck": found.bottleneck,
                "price_per_hour": found.price,
                "fits": found.plan is not None,
                "is": described(found.plan),
            }
            for way, found in self.found.items()
        }
        return {
            "batch": self.batch,
            "width": self.width,
            "rows": self.rows,
            "cores": self.cores,
            "ways": ways,
            "over_cpu_only": self.over(Way.CPU_ONLY),
            "over_gpu_only": self.over(Way.GPU_ONLY),
            "fastest": self.winner,
        }


def described(plan: Plan | None) -> str:
    """Returns where tables and workers of a plan are."""
    if plan is None:
        return ""
    homes = sorted({table.home for table in plan.tables})
    processes = (f"{each.count} {each.role} on {each.host}" for each in plan.processes)
    return f"tables {', '.join(homes)}; {', '.join(processes)}"


def best(way: Way, model: CostModel, batch: int, *, num_steps: int) -> Found:
    """Returns the best plan of a way by its prediction, simulated.

    A planner may take its place: it would choose among the same plans and more.
    """
    found: Found = Found(None)
    for plan in plans(way, model, batch):
        try:
            predicted = model.predict(plan)
        except PlanError:  # too few cores or devices for it
            continue
        if predicted.fits and predicted.samples_per_second > found.predicted:
            found = Found(
                plan,
                predicted.samples_per_second,
                0.0,
                predicted.bottleneck,
                predicted.price_per_hour,
            )
    if found.plan is None:
        return found
    prediction = model.predict(found.plan)
    samples = simulated(used(model.cluster, found.plan), found.plan, prediction, num_steps)
    return Found(found.plan, found.predicted, samples, found.bottleneck, found.price)


def used(cluster: Cluster, plan: Plan) -> Cluster:
    """Returns the hosts that a plan uses, by themselves."""
    names = {each.host for each in plan.processes}
    gone = {host.name for host in cluster.hosts} - names
    return replace(
        cluster,
        hosts=tuple(host for host in cluster.hosts if host.name in names),
        links=tuple(link for link in cluster.links if not gone.intersection(link.ends)),
    )


@cache  # some points differ only in what a way does not use
def simulated(cluster: Cluster, plan: Plan, prediction: Prediction, num_steps: int) -> float:
    """Returns simulated samples a second, while the pipeline is full."""
    run = simulate(
        plan,
        cluster=cluster,
        num_steps=num_steps,
        prediction=prediction,
        conditions=Conditions(variation={stage.name: VARIATION for stage in prediction.stages}),
        rng=np.random.default_rng(0),
        is_recorded=False,
    )
    return prediction.samples / run.step_seconds


def plans(way: Way, model: CostModel, batch: int) -> Iterator[Plan]:
    """Yields what a way may be."""
    if way is Way.CPU_ONLY:
        for workers in (8, 16, 24, 32, 40):
            for servers in (1, 4, 8):
                processes = [
                    ProcessPlan("server", "server", "cpu", MACHINES["server"], servers),
                    ProcessPlan("whole", "server", "cpu", MACHINES["server"], workers),
                ]
                yield _plan(model, batch, processes)
        return
    gpus = ProcessPlan("whole", "trainer", "gpu", MACHINES["trainer"], GPUS)
    if way is Way.GPU_ONLY:
        yield _plan(model, batch, [gpus], home="device")
        yield _plan(model, batch, [gpus], home="sharded")
    host = "server" if way is Way.HETEROGENEOUS else "trainer"  # or tables in the GPU hosts' memory
    for servers in (1, 4, 8, 16, 32):
        at = ProcessPlan("server", host, "cpu", MACHINES[host], servers)
        yield _plan(model, batch, [at, gpus])
        if way is Way.HETEROGENEOUS:
            for sparse in (4, 8, 16):
                reads = ProcessPlan("sparse", host, "cpu", MACHINES[host], sparse)
                dense = ProcessPlan("dense", "trainer", "gpu", MACHINES["trainer"], GPUS)
                yield _plan(model, batch, [at, reads, dense])


def _plan(
    model: CostModel, batch: int, processes: Sequence[ProcessPlan], *, home: str = "host"
) -> Plan:
    counts = {each.role: each.count for each in processes}
    readers = counts.get("whole") or counts["sparse"]
    mode = "bounded" if home == "host" else "gpu_only"
    servers = tuple(f"server:{i}" for i in range(counts.get("server", 0)))
    capacities = {"read": 4, "route": 2, "pull": 1 + STALENESS, "dense": 1, "push": 16}
    device = next(each.device for each in processes if each.role in ("whole", "dense"))
    return Plan(
        stages=tuple(
            StagePlan(name, device if name == "dense" else "cpu", capacity)
            for name, capacity in capacities.items()
        ),
        tables=tuple(
            TablePlan(table.name, table.dim, tuple(table.slots), servers, home=home)
            for table in model.workload.graph.tables
        ),
        staleness=STALENESS,
        workers=WorkersPlan(
            mode, readers, tuple(f"dense:{i}" for i in range(counts.get("dense", 0)))
        ),
        batch_size=batch,
        processes=tuple(processes),
    )
