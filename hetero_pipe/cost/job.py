"""Job: one plan, being predicted, and all that its costs depend on."""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TypeVar, cast

from hetero_pipe.cluster import Cluster, Ways
from hetero_pipe.cost.comm import Members
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.memory import FLOAT, batch_bytes
from hetero_pipe.cost.rates import ComputeRates, compute_rates
from hetero_pipe.cost.roles import Roles
from hetero_pipe.cost.workload import Workload
from hetero_pipe.graph import Graph, Table
from hetero_pipe.plan import Breakdown, Plan, ProcessPlan

__all__ = ["Job"]

T = TypeVar("T")

MANY = 8
"""Machines over which a cost is not tried with each number of them, but said to be at least 0."""


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
        fewest: Who is where at the least, if all plans up to `most` are bounded; else
            `roles`.
        most: Likewise, at the most.
        memo: What other plans of the same workload and cluster have shown.
    """

    cluster: Cluster
    workload: Workload
    constants: Constants
    plan: Plan
    batch: int
    graph: Graph
    roles: Roles
    fewest: Roles
    most: Roles
    memo: dict[Hashable, object] = field(repr=False)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Returns what a function makes of this batch size and a key, made but once."""
        whole = (self.batch, key)
        if whole not in self.memo:
            self.memo[whole] = make()
        return cast(T, self.memo[whole])  # of one key, it is what one function makes

    @cached_property
    def homes(self) -> tuple[tuple[str, str, int], ...]:
        """Where each table lives, and how many of its rows are cached: what costs depend on."""
        return tuple((table.name, table.home, table.cached_rows) for table in self.plan.tables)

    def least_over_replicas(self, key: Hashable, cost: Callable[["Job"], Breakdown]) -> Breakdown:
        """Returns the cost with as many replicas of the dense part as there are.

        Where all plans between two are bounded, that is the least of each part over the
        numbers between, as some parts fall with a number and some rise.
        """
        few, many = self.fewest.dense, self.most.dense
        if many.machines - few.machines > MANY:
            return Breakdown()  # no less than nothing; to try each would take too long
        return self.once(
            (key, few, many, self.homes),
            lambda: Breakdown.least(
                self.once((key, roles.dense, self.homes), partial(cost, self._with(roles)))
                for roles in self.roles.between(self.fewest, self.most)
            ),
        )

    def _with(self, roles: Roles) -> "Job":
        return replace(self, roles=roles, fewest=roles, most=roles)

    @cached_property
    def values(self) -> Mapping[str, float]:
        """What the symbols of the graph's sizes are."""
        return self.once("values", lambda: self.graph.values(self.batch))

    @cached_property
    def dense_rates(self) -> ComputeRates:
        """Of the device of one replica of the dense part."""
        return self.rates(self.roles.dense.host, self.roles.dense.device)

    def rates(self, host: str, device: str) -> ComputeRates:
        """Returns those of a device of a host."""
        return self.once(
            ("rates", host, device),
            lambda: compute_rates(self.cluster, host, device, constants=self.constants),
        )

    def share_away(self, fewest: ProcessPlan | None, most: ProcessPlan | None) -> float:
        """Returns the share of others' processes that are on no machine of the reader's.

        They are spread evenly over the first machines of their host. A reader's machine has
        its part of them, unless there are readers on more machines than they have.

        Args:
            fewest: Of those that are asked, in the plan of the fewest.
            most: In that of the most. Of plans between two, it is the least share.
        """
        if fewest is None or most is None:
            return 0.0
        readers = self.fewest.reader
        if fewest.host != readers.host or readers.machines > most.machines:
            return 1.0
        return 1.0 - 1.0 / fewest.machines

    def ways(self, source: str, target: str) -> Ways:
        """Returns those of the cluster between two places."""
        return self.once(("ways", source, target), lambda: self.cluster.ways(source, target))

    @property
    def batch_bytes(self) -> float:
        """Of a batch as it is read."""
        num_dense = self.workload.num_dense
        return self.once("batch", lambda: batch_bytes(self.graph, self.batch, num_dense=num_dense))

    @cached_property
    def replicas(self) -> Members:
        """The replicas of the dense part, as they talk to each other."""
        dense, constants = self.roles.dense, self.constants
        return self.once(
            ("members", dense), lambda: Members.of(self.cluster, dense, constants=constants)
        )

    @property
    def trained_bytes(self) -> float:
        """Of the gradients of the dense part."""
        trained = (t for t in self.graph.parameters if t.needs_gradient)
        return self.once("trained", lambda: sum(float(t.bytes.at({})) for t in trained))

    @property
    def sent_bytes(self) -> float:
        """Of what a sparse worker sends a dense one: pooled rows, dense columns, labels."""
        width = 1.0 if self.plan.workers.wire == "float32" else 0.5
        return self.sent_floats * width + self.batch * 4 * (self.workload.num_dense + 1)

    @property
    def sent_floats(self) -> float:
        """Bytes of what is pooled, as float32."""
        cut = {name for op in self.graph.ops if op.kind == "pool" for name in op.outputs}
        return self.once(
            "pooled",
            lambda: sum(float(self.graph.tensor(name).bytes.at(self.values)) for name in cut),
        )

    def rows(self, table: Table) -> float:
        """Returns the distinct rows of a batch."""
        return self.once(("rows", table.name), lambda: float(table.rows.at(self.values)))

    def rows_of_all(self, table: Table) -> float:
        """Returns the distinct rows of the batches of all replicas of the dense part."""
        batch = self.batch * self.roles.num_dense
        return self.once(
            ("rows of all", table.name, batch),
            lambda: self.workload.distinct_rows(table.name, batch),
        )

    def pulled_rows(self, table: Table) -> float:
        """Returns those of them that no cache on the device has."""
        cached = {planned.name: planned.cached_rows for planned in self.plan.tables}
        return self.rows(table) * (1 - self.workload.hit_share(table.name, cached[table.name]))

    @property
    def pulled_bytes(self) -> float:
        """Of the rows that hosts send of a batch, without their keys."""
        return self.once(
            ("pulled", self.homes),
            lambda: sum(self.pulled_rows(t) * FLOAT * t.dim for t in self.tables("host")),
        )

    @property
    def pushed_bytes(self) -> float:
        """Of the gradients that hosts are sent of a batch, without their keys."""
        return self.once(
            ("pushed", self.homes),
            lambda: sum(self.rows(t) * FLOAT * t.dim for t in self.tables("host")),
        )

    def tables(self, *homes: str) -> Iterator[Table]:
        """Yields the tables that live at one of these; one without a home costs nothing."""
        home_of = {table.name: table.home for table in self.plan.tables}
        return (table for table in self.graph.tables if home_of.get(table.name) in homes)
