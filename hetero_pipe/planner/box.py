"""Box: all plans of a strategy whose numbers lie within ranges, halved until one is left."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hetero_pipe.cluster import Cluster
from hetero_pipe.graph import Graph
from hetero_pipe.plan import Plan
from hetero_pipe.planner.space import Space
from hetero_pipe.planner.strategy import Strategy, Where

__all__ = ["Box", "box_of", "doublings"]


@dataclass(frozen=True)
class Box:
    """Plans that differ in how many processes they have, in staleness, and in undecided homes.

    Attributes:
        strategy: Of all of them.
        machines: By role, in the strategy's order, numbers to choose from; they rise.
        per_machine: Likewise.
        staleness: Likewise.
        undecided: Names of tables that have no home yet, the largest first.
        homes: Where these may live.
    """

    strategy: Strategy
    machines: tuple[Sequence[int], ...]
    per_machine: tuple[Sequence[int], ...]
    staleness: Sequence[int]
    undecided: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()

    @property
    def is_single(self) -> bool:
        """Whether there is but one plan."""
        return not self.undecided and all(len(each) == 1 for each in self.ranges)

    @property
    def num_plans(self) -> int:
        """In it."""
        return math.prod(
            (*(len(self.homes) for _ in self.undecided), *(len(each) for each in self.ranges))
        )

    @property
    def ranges(self) -> tuple[Sequence[int], ...]:
        """Of machines and of processes on each, by role, then of staleness."""
        return (*self.machines, *self.per_machine, self.staleness)

    def low(self, graph: Graph) -> Plan:
        """Returns the plan with the fewest of everything; undecided tables are left out."""
        return self._plan(graph, 0)

    def high(self, graph: Graph) -> Plan:
        """Returns the plan with the most of everything; undecided tables are left out."""
        return self._plan(graph, -1)

    def busiest(self, graph: Graph) -> Plan:
        """Returns the plan with the most of everything, but the fewest servers on each machine.

        Each of them costs every worker a call, and one may use all cores.
        """
        per_machine = tuple(
            numbers[:1] if where.role == "server" else numbers
            for where, numbers in zip(self.strategy.where, self.per_machine, strict=True)
        )
        return replace(self, per_machine=per_machine).high(graph)

    def _plan(self, graph: Graph, end: int) -> Plan:
        counts = {
            where.role: (machines[end], per[end])
            for where, machines, per in zip(
                self.strategy.where, self.machines, self.per_machine, strict=True
            )
        }
        return self.strategy.plan(graph, counts, staleness=self.staleness[end])

    def with_machines(self, index: int, machines: Sequence[int]) -> "Box":
        """Returns the box with other numbers of machines of one role."""
        return self.with_range(index, machines)

    def with_range(self, index: int, numbers: Sequence[int]) -> "Box":
        """Returns the box with other numbers in one of its ranges."""
        ranges = list(self.ranges)
        ranges[index] = numbers
        n = len(self.machines)
        return replace(
            self,
            machines=tuple(ranges[:n]),
            per_machine=tuple(ranges[n : 2 * n]),
            staleness=ranges[-1],
        )

    def parts(self, order: Sequence[str]) -> "Iterator[Box]":
        """Yields boxes that have each of its plans once: by a table's home, or two halves.

        Args:
            order: Names of all tables, as the graph has them.
        """
        if self.undecided:
            table, *left = self.undecided
            for home in self.homes:
                decided = dict(self.strategy.homes) | {table: home}
                homes = tuple((name, decided[name]) for name in order if name in decided)
                strategy = replace(self.strategy, homes=homes)
                yield replace(self, strategy=strategy, undecided=tuple(left))
            return
        ranges = list(self.ranges)
        # The widest in proportion is what makes the bound of the box loosest.
        widest = max(range(len(ranges)), key=lambda i: (ranges[i][-1] + 1) / (ranges[i][0] + 1))
        whole = ranges[widest]
        for half in (whole[len(whole) // 2 :], whole[: len(whole) // 2]):
            ranges[widest] = half
            n = len(self.machines)
            yield replace(
                self,
                machines=tuple(ranges[:n]),
                per_machine=tuple(ranges[n : 2 * n]),
                staleness=ranges[-1],
            )


def box_of(strategy: Strategy, space: Space, cluster: Cluster, graph: Graph) -> Box:
    """Returns the box of all plans of a strategy in a space."""
    is_alone = (
        strategy.mode not in ("cpu_only", "gpu_only")
        and not strategy.has_servers
        and bool(graph.tables)
    )
    machines: list[Sequence[int]] = []
    per_machine: list[Sequence[int]] = []
    for where in strategy.where:
        if is_alone:  # workers that share tables need servers
            machines.append(range(1, 2))
            per_machine.append(range(1, 2))
            continue
        count = cluster.host(where.host).count
        machines.append(range(1, min(count, space.max_machines or count) + 1))
        per_machine.append(doublings(_most(where, cluster), space.max_per_machine))
    is_stale = strategy.mode == "bounded"
    undecided: tuple[str, ...] = ()
    if not strategy.homes:
        by_size = sorted(graph.tables, key=lambda t: -t.bytes_per_row)
        undecided = tuple(table.name for table in by_size)
    return Box(
        strategy,
        tuple(machines),
        tuple(per_machine),
        range(space.min_staleness, space.max_staleness + 1) if is_stale else range(1),
        undecided,
        tuple(dict.fromkeys(("host", *space.homes))) if undecided else (),
    )


def _most(where: Where, cluster: Cluster) -> int:
    """Returns the processes of a role that a machine has room for: one a core, or a device."""
    host = cluster.host(where.host)
    if where.device == "cpu":
        return host.cores
    return next(device.count for device in host.devices if device.name == where.device)


def doublings(most: int, limit: int | None = None) -> tuple[int, ...]:
    """Returns 1, 2, 4, ... and the most."""
    most = min(most, limit or most)
    return (*(2**i for i in range(most.bit_length()) if 2**i < most), most)
