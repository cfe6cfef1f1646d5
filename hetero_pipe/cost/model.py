"""CostModel: what a plan costs on a cluster: time, memory and money."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from hetero_pipe.cluster import Cluster
from hetero_pipe.cost.bounds import predict_bounds, predict_loads, stretched
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.correction import Corrections, basis_of
from hetero_pipe.cost.exchange import exchange_assumed
from hetero_pipe.cost.job import Job
from hetero_pipe.cost.peaks import predict_memory
from hetero_pipe.cost.roles import Roles
from hetero_pipe.cost.stages import predict_stages
from hetero_pipe.cost.workload import Workload
from hetero_pipe.errors import PlanError
from hetero_pipe.graph import Graph
from hetero_pipe.plan import MemoryPrediction, Plan, Prediction

__all__ = ["CostModel"]


@dataclass(frozen=True)
class CostModel:
    """Predicts plans for one workload on one cluster. Pure: a plan in, a prediction out.

    Attributes:
        cluster: With what was measured of it.
        workload: What is trained.
        constants: Stand in for what was not measured.
        corrections: What training has shown of stages; of another basis, as after a
            new profile, they are left aside.
        memo: Costs that plans have in common, once they are found.
    """

    cluster: Cluster
    workload: Workload
    constants: Constants = field(default_factory=Constants)
    corrections: Corrections = field(default_factory=Corrections)
    memo: dict[Hashable, object] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @cached_property
    def applied(self) -> Corrections:
        """Those of the corrections that are of this model's basis; to which runs may add."""
        basis = basis_of(self.cluster, self.constants)
        return self.corrections if self.corrections.basis == basis else Corrections(basis)

    def corrected(self, corrections: Corrections) -> "CostModel":
        """Returns this model with other corrections. What it has found so far is not lost."""
        found = replace(self, corrections=corrections)
        found.memo.update(self.memo)  # of costs that nothing has corrected yet
        return found

    def predict(self, plan: Plan) -> Prediction:
        """Returns what a plan is expected to do.

        Raises:
            ConfigError: The cluster has no such host or device.
            PlanError: The plan has no batch size, or is of another workload; a host has
                too few machines or devices for it; or its processes do not make up a job.
        """
        planned = {table.name for table in plan.tables}
        traced = {table.name for table in self.workload.graph.tables}
        if planned != traced:
            raise PlanError(
                f"a plan has the tables of the workload's graph, {', '.join(sorted(traced))}, got "
                f"{', '.join(sorted(planned)) or 'none'}"
            )
        return self.floor(plan, plan)

    def floor(self, low: Plan, high: Plan, *, is_speed_only: bool = False) -> Prediction:
        """Returns a prediction that no plan between two is better than.

        No such plan has less memory, a lower price, or fewer seconds by samples. What
        rises with a number of processes is that of the fewest, what falls with it that
        of the most. Samples, and the loads that they are for, are of the most readers,
        so that seconds by samples of a server are the same whatever their number.

        Args:
            low: Has the fewest processes of each role on the fewest machines, and the
                least staleness. A table that is not in it costs nothing.
            high: Has the most of all, and is the same plan otherwise. On a machine,
                plans between have as many processes of the dense part as `low`, twice
                that, and so on, or as many as this.
            is_speed_only: Leaves out memory, and what was assumed and corrected.

        Raises:
            As `predict`.
        """
        job = self._job(high, low, high)
        plain = tuple(predict_stages(job))
        stages = self.applied.applied(plain, job.roles)
        loads = predict_loads(job, stages)
        bounds = predict_bounds(job, stages, loads)
        shown, bounds = stretched(job, stages, loads, bounds)
        found = Prediction(
            step_seconds=bounds[0].amount,
            samples=float(job.batch * job.roles.num_readers),
            stages=shown,
            memory=(),
            bounds=bounds,
            price_per_hour=_price(self.cluster, job.fewest),
        )
        if is_speed_only:
            return found
        return replace(
            found,
            memory=self.memory_floor(low, high),
            assumed=(*job.dense_rates.assumed, *exchange_assumed(job)),
            corrected=tuple(self.applied.told(plain, job.roles)),
        )

    def memory_floor(self, low: Plan, high: Plan) -> tuple[MemoryPrediction, ...]:
        """Returns memory of which no plan between two needs less, as `floor` has it."""
        return tuple(predict_memory(self._job(low, low, high)))

    def _job(self, plan: Plan, low: Plan, high: Plan) -> Job:
        if plan.batch_size is None:
            raise PlanError("a prediction is of a batch size, got batch_size=None")
        graph = (plan.batch_size, "graph")
        if graph not in self.memo:
            self.memo[graph] = self.workload.at(plan.batch_size)
        fewest = Roles.of(low, self.cluster)
        most = fewest if low is high else Roles.of(high, self.cluster)
        return Job(
            self.cluster,
            self.workload,
            self.constants,
            plan=plan,
            batch=plan.batch_size,
            graph=cast(Graph, self.memo[graph]),  # put there above
            roles=fewest if plan is low else most,
            fewest=fewest,
            most=most,
            memo=self.memo,
        )


def _price(cluster: Cluster, roles: Roles) -> float | None:
    """Returns what the machines cost that are used, an hour; None if one has no price."""
    used: dict[str, int] = {}
    for processes in roles.processes:
        used[processes.host] = max(used.get(processes.host, 0), processes.machines)
    total = 0.0
    for name, machines in used.items():
        price = cluster.host(name).price_per_hour
        if price is None:
            return None
        total += price * machines
    return total
