"""Job: one plan, being predicted, and all that its costs depend on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from hetero_pipe.cluster import Cluster
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.memory import batch_bytes, rows_of_batch_bytes
from hetero_pipe.cost.rates import ComputeRates, compute_rates
from hetero_pipe.cost.roles import Roles
from hetero_pipe.cost.workload import Workload
from hetero_pipe.graph import Graph, Table
from hetero_pipe.plan import Plan

__all__ = ["Job"]


@dataclass(frozen=True)
class Job:
    """A plan of one workload on one cluster.

    Attributes:
        cluster: With what was measured of it.
        workload: What is trained.
        constants: Stand in for what was not measured.
        plan: What is predicted.
        batch: Samples of a worker's step.
        graph: The workload's, with the distinct rows of such a batch.
        roles: Who is where.
    """

    cluster: Cluster
    workload: Workload
    constants: Constants
    plan: Plan
    batch: int
    graph: Graph
    roles: Roles

    @cached_property
    def values(self) -> Mapping[str, float]:
        """What the symbols of the graph's sizes are."""
        return self.graph.values(self.batch)

    @cached_property
    def dense_rates(self) -> ComputeRates:
        """Of the device of one replica of the dense part."""
        dense = self.roles.dense
        return compute_rates(self.cluster, dense.host, dense.device, constants=self.constants)

    @property
    def batch_bytes(self) -> float:
        """Of a batch as it is read."""
        return batch_bytes(self.graph, self.batch, num_dense=self.workload.num_dense)

    @property
    def rows_bytes(self) -> float:
        """Of the distinct rows of a batch."""
        return rows_of_batch_bytes(self.graph, self.batch)

    def tables(self, *homes: str) -> Iterator[Table]:
        """Yields the tables that live at one of these."""
        home_of = {table.name: table.home for table in self.plan.tables}
        return (table for table in self.graph.tables if home_of[table.name] in homes)
