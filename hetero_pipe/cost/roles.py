"""Roles: which of a plan's processes do what, and on which machines."""

from dataclasses import dataclass

from hetero_pipe.cluster import Cluster
from hetero_pipe.errors import PlanError
from hetero_pipe.plan import Plan, ProcessPlan

__all__ = ["Roles"]


@dataclass(frozen=True)
class Roles:
    """The processes of a plan by what they do.

    Attributes:
        processes: All of them.
    """

    processes: tuple[ProcessPlan, ...]

    @staticmethod
    def of(plan: Plan, cluster: Cluster) -> "Roles":
        """Returns those of a plan; all are on the first host if it does not say where."""
        if plan.processes:
            return Roles(plan.processes)
        host, device = cluster.hosts[0].name, plan.stage("dense").device
        group, workers = device.partition(":")[0], plan.workers
        found = []
        if plan.servers:
            found.append(ProcessPlan("server", host, "cpu", 1, len(plan.servers)))
        if workers.dense:
            found.append(ProcessPlan("sparse", host, "cpu", 1, workers.num_readers))
            found.append(ProcessPlan("dense", host, group, 1, len(workers.dense)))
        else:
            found.append(ProcessPlan("whole", host, group, 1, workers.num_readers))
        return Roles(tuple(found))

    def _of(self, *roles: str) -> ProcessPlan | None:
        return next((each for each in self.processes if each.role in roles), None)

    def _count(self, *roles: str) -> int:
        return sum(each.count for each in self.processes if each.role in roles)

    @property
    def reader(self) -> ProcessPlan:
        """Those that read: whole or sparse workers.

        Raises:
            PlanError: There are none.
        """
        found = self._of("whole", "sparse")
        if found is None:
            raise PlanError(f"a plan has workers that read, got {self.processes}")
        return found

    @property
    def dense(self) -> ProcessPlan:
        """Those that have the dense part: dense or whole workers."""
        return self._of("dense") or self.reader

    @property
    def servers(self) -> ProcessPlan | None:
        """None if the tables are in the workers' processes."""
        return self._of("server")

    @property
    def num_readers(self) -> int:
        """Whole or sparse workers."""
        return self._count("whole", "sparse")

    @property
    def num_dense(self) -> int:
        """Replicas of the dense part."""
        return self._count(self.dense.role)

    @property
    def num_servers(self) -> int:
        """Of all machines; 0 if the tables are in the workers' processes."""
        return self._count("server")
