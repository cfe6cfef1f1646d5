"""The three ways, the best plan of each, and the one that a planner takes of all."""

import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache

import numpy as np

from hetero_pipe.cluster import Cluster
from hetero_pipe.cost import CostModel
from hetero_pipe.errors import PlanError
from hetero_pipe.plan import Plan
from hetero_pipe.planner import Space, propose
from hetero_pipe.simulate import Conditions, simulate

STALENESS = 2
VARIATION = 0.1  # of stage times: without it, all workers send at the same moment, for ever
SECONDS = 3.0  # of a core, for a plan: what is left of its gap then is in the JSON
NUM_STEPS, FEW_STEPS, MANY = 40, 12, 100  # few of more than so many workers: it takes seconds
EQUAL = 0.01  # relative: the planner stops at its bound, and rates are no better known


class Way(Enum):
    """Which hosts of the cluster train."""

    CPU_ONLY = "CPU-only"
    GPU_ONLY = "GPU-only"
    HETEROGENEOUS = "heterogeneous"


WAYS = tuple(Way)
HOSTS = {
    Way.CPU_ONLY: frozenset({"server"}),
    Way.GPU_ONLY: frozenset({"trainer"}),
    Way.HETEROGENEOUS: frozenset({"server", "trainer"}),
}


@dataclass(frozen=True)
class Found:
    """The planner's choice; samples a second, predicted and simulated, 0 without one.

    Attributes:
        plan: None if nothing fits.
        predicted: Samples a second.
        simulated: Likewise.
        gap: How far the best plan is from it at the most, as `Proposal.gap`.
    """

    plan: Plan | None
    predicted: float = 0.0
    simulated: float = 0.0
    gap: float = 0.0

    @property
    def way(self) -> Way | None:
        """By the hosts that are used."""
        if self.plan is None:
            return None
        used = {each.host for each in self.plan.processes}
        return next(way for way in WAYS if HOSTS[way] == used)

    @property
    def has_gpus(self) -> bool:
        """Whether any GPU computes."""
        return self.plan is not None and any(p.device == "gpu" for p in self.plan.processes)

    def to_dict(self) -> dict:
        """Returns it for JSON."""
        prediction = self.plan.predicted if self.plan is not None else None
        return {
            "fits": self.plan is not None,
            "predicted": self.predicted,
            "simulated": self.simulated,
            "gap": self.gap,
            "bottleneck": prediction.bottleneck if prediction else "",
            "price_per_hour": prediction.price_per_hour if prediction else None,
            "is": described(self.plan),
        }


@dataclass(frozen=True)
class Point:
    """One model, batch and size of tables.

    Attributes:
        batch: Of a worker.
        width: Of each of the dense part's hidden layers.
        rows: Of each table.
        cores: Of a GPU host.
        found: By way.
        chosen: Of all plans of all ways.
    """

    batch: int
    width: int
    rows: float
    cores: int
    found: Mapping[Way, Found]
    chosen: Found

    def over(self, way: Way, *, is_simulated: bool = False) -> float | None:
        """Returns heterogeneous over another way; None where either does not fit."""
        mine, other = self.found[Way.HETEROGENEOUS], self.found[way]
        if mine.plan is None or other.plan is None:
            return None
        if is_simulated:
            return mine.simulated / other.simulated
        return mine.predicted / other.predicted

    @property
    def winners(self) -> tuple[Way, ...]:
        """Whose prediction is the most samples a second, or within 1% of it."""
        top = max(found.predicted for found in self.found.values())
        return tuple(w for w in WAYS if self.found[w].predicted >= (1 - EQUAL) * top > 0)

    @property
    def is_won(self) -> bool:
        """Whether the planner chose a winning way, and a plan as good as that way's own."""
        top = max(found.predicted for found in self.found.values())
        ways = self.winners or (None,)
        return self.chosen.way in ways and self.chosen.predicted >= (1 - EQUAL) * top

    @property
    def simulated_share(self) -> float:
        """The choice over the best of the three, both simulated; 1 if nothing fits."""
        top = max(found.simulated for found in self.found.values())
        return self.chosen.simulated / top if top else 1.0

    def to_dict(self) -> dict:
        """Returns it for JSON."""
        return {
            "batch": self.batch,
            "width": self.width,
            "rows": self.rows,
            "cores": self.cores,
            "ways": {way.value: found.to_dict() for way, found in self.found.items()},
            "over_cpu_only": self.over(Way.CPU_ONLY),
            "over_gpu_only": self.over(Way.GPU_ONLY),
            "fastest": [way.value for way in self.winners],
            "chosen": self.chosen.to_dict(),
            "is_won": self.is_won,
        }


def described(plan: Plan | None) -> str:
    """Returns where tables and workers of a plan are."""
    if plan is None:
        return ""
    homes = sorted({table.home for table in plan.tables})
    processes = (f"{each.count} {each.role} on {each.host}" for each in plan.processes)
    return f"tables {', '.join(homes)}; {', '.join(processes)}"


def best(way: Way | None, model: CostModel, batch: int) -> Found:
    """Returns the plan that the planner takes of a way, simulated; of all ways if None."""
    names = frozenset(host.name for host in model.cluster.hosts) if way is None else HOSTS[way]
    space = Space(
        (batch,),
        min_staleness=STALENESS,
        max_staleness=STALENESS,
        modes=("bounded", "gpu_only"),
        homes=("host", "device", "sharded"),
        hosts=() if way is None else tuple(sorted(names)),
    )
    alone = replace(model, cluster=only(model.cluster, names))
    try:
        found = propose(alone, space, seconds=SECONDS, clock=time.process_time)
    except PlanError:  # nothing fits
        return Found(None)
    prediction = found.plan.predicted
    assert prediction is not None, "a proposal is predicted"
    used = frozenset(each.host for each in found.plan.processes)
    return Found(
        found.plan,
        prediction.samples_per_second,
        simulated(only(model.cluster, used), found.plan),
        found.gap,
    )


def only(cluster: Cluster, names: Set[str]) -> Cluster:
    """Returns some hosts by themselves."""
    gone = {host.name for host in cluster.hosts} - names
    return replace(
        cluster,
        hosts=tuple(host for host in cluster.hosts if host.name in names),
        links=tuple(link for link in cluster.links if not gone.intersection(link.ends)),
    )


@cache  # some points differ only in what a way does not use
def simulated(cluster: Cluster, plan: Plan) -> float:
    """Returns simulated samples a second, while the pipeline is full."""
    prediction = plan.predicted
    assert prediction is not None, "a proposal is predicted"
    is_large = plan.workers.num_readers > MANY
    run = simulate(
        plan,
        cluster=cluster,
        num_steps=FEW_STEPS if is_large else NUM_STEPS,
        prediction=prediction,
        conditions=Conditions(variation={stage.name: VARIATION for stage in prediction.stages}),
        rng=np.random.default_rng(0),
        is_recorded=False,
    )
    return prediction.samples / run.step_seconds
