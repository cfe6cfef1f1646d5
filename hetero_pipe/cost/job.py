"""Job: one plan, being predicted, and all that its costs depend on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from hetero_pipe.cluster import Cluster
from hetero_pipe.cost.comm import Members
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.memory import FLOAT, batch_bytes
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

    @cached_property
    def replicas(self) -> Members:
        """The replicas of the dense part, as they talk to each other."""
        return Members.of(self.cluster, self.roles.dense, constants=self.constants)

    @property
    def trained_bytes(self) -> float:
        """Of the gradients of the dense part."""
        return sum(float(t.bytes.at({})) for t in self.graph.parameters if t.needs_gradient)

    @property
    def sent_bytes(self) -> float:
        """Of what a sparse worker sends a dense one: pooled rows, dense columns, labels."""
        width = 1.0 if self.plan.workers.wire == "float32" else 0.5
        cut = {name for op in self.graph.ops if op.kind == "pool" for name in op.outputs}
        pooled = sum(float(self.graph.tensor(name).bytes.at(self.values)) for name in cut)
        return pooled * width + self.batch * 4 * (self.workload.num_dense + 1)

    def rows(self, table: Table) -> float:
        """Returns the distinct rows of a batch."""
        return float(table.rows.at(self.values))

    def rows_of_all(self, table: Table) -> float:
        """Returns the distinct rows of the batches of all replicas of the dense part."""
        return self.workload.distinct_rows(table.name, self.batch * self.roles.num_dense)

    def pulled_rows(self, table: Table) -> float:
        """Returns those of them that no cache on the device has."""
        cached = {planned.name: planned.cached_rows for planned in self.plan.tables}
        return self.rows(table) * (1 - self.workload.hit_share(table.name, cached[table.name]))

    @property
    def pulled_bytes(self) -> float:
        """Of the rows that hosts send of a batch, without their keys."""
        return sum(self.pulled_rows(table) * FLOAT * table.dim for table in self.tables("host"))

    @property
    def pushed_bytes(self) -> float:
        """Of the gradients that hosts are sent of a batch, without their keys."""
        return sum(self.rows(table) * FLOAT * table.dim for table in self.tables("host"))

    def tables(self, *homes: str) -> Iterator[Table]:
        """Yields the tables that live at one of these."""
        home_of = {table.name: table.home for table in self.plan.tables}
        return (table for table in self.graph.tables if home_of[table.name] in homes)
