"""Strategy: all that is chosen of a plan but how many, and all the strategies that there are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hetero_pipe.cluster import Cluster, Host
from hetero_pipe.graph import Graph
from hetero_pipe.plan import STAGES, Plan, ProcessPlan, StagePlan, TablePlan, WorkersPlan
from hetero_pipe.planner.space import Space

__all__ = ["Strategy", "Where", "strategies"]

TABLE_OPS = frozenset({"pull", "pool", "push"})
SOME_SERVER, SOME_WORKER = "server:7000", "worker:7100"


@dataclass(frozen=True)
class Where:
    """Processes of a role on machines of a host, before it is known how many.

    Attributes:
        role: One of `hetero_pipe.plan.ROLES`.
        host: Of the cluster.
        device: `cpu`, or a group of devices.
    """

    role: str
    host: str
    device: str


@dataclass(frozen=True)
class Strategy:
    """A plan but for how many processes there are and how stale a pull may be.

    Attributes:
        where: Each role once; the workers that read come first.
        mode: One of `hetero_pipe.plan.MODES`.
        batch_size: Samples of a worker's step.
        wire: Between sparse and dense workers.
        homes: By table, in the order of the graph. A table that is not there is
            undecided; it then costs nothing, so that what is predicted is a bound.
        cached_rows: Of each table of servers.
    """

    where: tuple[Where, ...]
    mode: str
    batch_size: int
    wire: str = "float32"
    homes: tuple[tuple[str, str], ...] = ()
    cached_rows: int = 0

    @property
    def kind(self) -> str:
        """In which way it differs from others in principle, for people."""
        roles = {each.role: each for each in self.where}
        if "dense" in roles:
            workers = f"sparse workers on cpu, dense ones on {roles['dense'].device}"
        else:
            workers = f"whole workers on {roles['whole'].device}"
        if not self.homes:
            return f"{workers}, each table where it is best"
        names = {
            "host": "on servers" if self.has_servers else "in the worker",
            "device": "on each device",
            "sharded": "shared out over devices",
        }
        homes = dict.fromkeys(home for _, home in self.homes)
        cached = ", hot rows cached" if self.cached_rows else ""
        return f"{workers}, tables {' and '.join(names[home] for home in homes)}{cached}"

    @property
    def has_servers(self) -> bool:
        """Whether there are servers."""
        return any(each.role == "server" for each in self.where)

    def plan(self, graph: Graph, counts: Mapping[str, tuple[int, int]], *, staleness: int) -> Plan:
        """Returns the plan with so many machines, and processes on each, by role.

        Servers and dense workers have a stand-in for their addresses, which nobody
        needs for a prediction; `hetero_pipe.planner.addressed` puts in what they are.
        """
        roles = {each.role: each for each in self.where}
        processes = tuple(
            ProcessPlan(each.role, each.host, each.device, *counts[each.role])
            for each in self.where
        )
        readers = next(each for each in processes if each.role in ("whole", "sparse"))
        dense = (SOME_WORKER,) if "dense" in roles else ()
        servers = (SOME_SERVER,) if self.has_servers else ()
        return Plan(
            stages=_stages(graph, (roles.get("dense") or roles["whole"]).device, staleness),
            tables=tuple(
                TablePlan(
                    name,
                    graph.table(name).dim,
                    tuple(graph.table(name).slots),
                    servers if home == "host" else (),
                    home=home,
                    cached_rows=self.cached_rows if home == "host" else 0,
                )
                for name, home in self.homes
            ),
            staleness=staleness,
            workers=WorkersPlan(self.mode, readers.count, dense, self.wire),
            batch_size=self.batch_size,
            processes=processes,
        )


def _stages(graph: Graph, device: str, staleness: int) -> tuple[StagePlan, ...]:
    # The capacities are those of the plan that a Trainer takes by itself.
    capacities = {"read": 4, "route": 2, "pull": 1 + staleness, "dense": 1, "push": 16}
    sparse, dense = _layers(graph)
    layers = {"pull": sparse, "dense": dense}
    of_dense = device if device == "cpu" else f"{device}:0"
    return tuple(
        StagePlan(
            name, of_dense if name == "dense" else "cpu", capacities[name], layers.get(name, ())
        )
        for name in STAGES
    )


def _layers(graph: Graph) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the layers that are tables alone, and all others."""
    sparse = tuple(name for name, kinds in graph.kinds.items() if kinds <= TABLE_OPS)
    return sparse, tuple(name for name in graph.kinds if name not in sparse)


def strategies(space: Space, cluster: Cluster, graph: Graph) -> Iterator[Strategy]:
    """Yields all strategies of a space on a cluster, each once, homes decided or not.

    Where each table may have a home of its own, all are left undecided.

    Raises:
        ConfigError: The cluster has no host that must have a role.
    """
    asked = {cluster.host(name).name for name in space.hosts}
    for strategy in _all_strategies(space, cluster, graph):
        if asked <= {each.host for each in strategy.where}:
            yield strategy


def _all_strategies(space: Space, cluster: Cluster, graph: Graph) -> Iterator[Strategy]:
    for mode, batch in product(space.modes, space.batch_sizes):
        if mode in ("cpu_only", "gpu_only"):
            yield from _own_tables(space, cluster, graph, mode, batch)
            continue
        for where, home in _placements(space, cluster, graph, mode):
            is_split = any(each.role == "dense" for each in where)
            found = Strategy(where, mode, batch, homes=_all(graph, home) if home else ())
            for wire in space.wires if is_split else ("float32",):
                yield replace(found, wire=wire)
            if not is_split and found.has_servers:
                for rows in space.cached_rows:
                    if rows and where[0].device != "cpu":
                        yield replace(found, cached_rows=rows)


def _placements(
    space: Space, cluster: Cluster, graph: Graph, mode: str
) -> Iterator[tuple[tuple[Where, ...], str]]:
    """Yields who is where, and the home of all tables: empty if each may have its own."""
    servers = [Where("server", host.name, "cpu") for host in cluster.hosts]
    if "whole" in space.splits:
        for host, device in _devices(cluster):
            whole = Where("whole", host.name, device)
            yield (whole,), "host"  # one worker, with its tables in its process
            # Equal copies, and rows of one another, are of workers that step together.
            is_mixed = set(space.homes) - {"host"} and device != "cpu" and mode == "sync"
            for server in servers:
                yield (whole, server), "" if is_mixed else "host"
    if "split" in space.splits and graph.tables:
        for reader, server in product(cluster.hosts, servers):
            for host, device in _devices(cluster):
                sparse = Where("sparse", reader.name, "cpu")
                yield (sparse, Where("dense", host.name, device), server), "host"


def _own_tables(
    space: Space, cluster: Cluster, graph: Graph, mode: str, batch: int
) -> Iterator[Strategy]:
    if "whole" not in space.splits:
        return
    for host, device in _devices(cluster):
        if (device == "cpu") == (mode == "cpu_only"):
            where = (Where("whole", host.name, device),)
            yield Strategy(where, mode, batch, homes=_all(graph, "device"))
            if "sharded" in space.homes:
                yield Strategy(where, mode, batch, homes=_all(graph, "sharded"))


def _all(graph: Graph, home: str) -> tuple[tuple[str, str], ...]:
    return tuple((table.name, home) for table in graph.tables)


def _devices(cluster: Cluster) -> Sequence[tuple[Host, str]]:
    return [(host, device.name) for host in cluster.hosts for device in host.devices]
