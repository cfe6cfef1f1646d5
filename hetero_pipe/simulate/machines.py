"""Machines: where the processes of a plan are, and what those of one machine share."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from hetero_pipe.cluster import Cluster
from hetero_pipe.cost import Roles
from hetero_pipe.plan import Plan
from hetero_pipe.simulate.events import Door, Events
from hetero_pipe.simulate.resource import Shared

__all__ = ["Machine", "Machines", "Process"]


@dataclass(frozen=True, eq=False)
class Machine:
    """One machine, or the servers' machines that all do the same.

    Attributes:
        name: Of the machine.
        host: Of the cluster.
        cores: Which its processes share.
        sends: Its link to the others, outwards, in seconds of its whole bandwidth.
        receives: Its link to the others, inwards.
        stands_for: How many machines.
    """

    name: str
    host: str
    cores: Shared
    sends: Shared
    receives: Shared
    stands_for: int = 1


@dataclass(frozen=True, eq=False)
class Process:
    """A worker.

    Attributes:
        role: One of `ROLES`.
        rank: Among those of its role.
        machine: Where it is.
        door: Closed while it is down.
    """

    role: str
    rank: int
    machine: Machine
    door: Door


@dataclass(frozen=True, eq=False)
class Machines:
    """The machines and processes of a plan.

    A request goes to all servers, each of which does as much as the busiest. So all
    machines on which there is nothing but servers do the same at the same time: one
    of them stands for all, exactly. Those that have workers as well are each their own.

    Attributes:
        workers: In the order of their ranks, by role.
        servers: Machines with servers, and how many each has.
        door: Of the servers: closed while one of them is down.
        all: Every machine.
    """

    workers: dict[str, list[Process]]
    servers: list[tuple[Machine, int]]
    door: Door
    all: list[Machine]
    cluster: Cluster
    _bandwidths: dict[tuple[str, str], tuple[float, float, float]] = field(default_factory=dict)

    @staticmethod
    def of(events: Events, plan: Plan, cluster: Cluster) -> "Machines":
        """Returns those of a plan.

        Raises:
            ConfigError: The cluster has no such host.
            PlanError: The processes do not make up a job, or have no room there.
        """
        found: dict[str, Machine] = {}

        def machine(name: str, host: str, stands_for: int = 1) -> Machine:
            if name not in found:
                cores = Shared(events, f"cores of {name}", capacity=cluster.host(host).cores)
                sends = Shared(events, f"network from {name}")
                receives = Shared(events, f"network to {name}")
                found[name] = Machine(name, host, cores, sends, receives, stands_for)
            return found[name]

        processes = Roles.of(plan, cluster).processes
        workers: dict[str, list[Process]] = defaultdict(list)
        for each in processes:
            names = cluster.host(each.host).names[: each.machines]
            for name in names if each.role != "server" else ():
                for _ in range(each.per_machine):
                    rank = len(workers[each.role])
                    at = machine(name, each.host)
                    workers[each.role].append(Process(each.role, rank, at, Door(events)))
        shared = set(found)
        servers = []
        for each in processes:
            if each.role == "server":
                names = cluster.host(each.host).names[: each.machines]
                alone = [name for name in names if name not in shared]
                servers += [(machine(n, each.host), each.per_machine) for n in names if n in shared]
                if alone:
                    stands = machine(alone[0], each.host, len(alone))
                    servers.append((stands, each.per_machine))
        return Machines(dict(workers), servers, Door(events), list(found.values()), cluster)

    @property
    def readers(self) -> list[Process]:
        """Workers that read."""
        return self.workers.get("whole") or self.workers["sparse"]

    @property
    def num_servers(self) -> int:
        """Processes."""
        return sum(machine.stands_for * count for machine, count in self.servers)

    def bandwidths(self, source: str, target: str) -> tuple[float, float, float]:
        """Returns the bytes/s of the narrowest, first and last link from one machine to another."""
        key = source, target
        if key not in self._bandwidths:
            path = self.cluster.path(source, target)
            first, last = path.edges[0].bandwidth, path.edges[-1].bandwidth
            self._bandwidths[key] = path.bandwidth, first, last
        return self._bandwidths[key]

    def named(self, name: str) -> Iterator[Machine]:
        """Yields the machines of a host, or the one of a name.

        Raises:
            ConfigError: The cluster has none.
        """
        host = self.cluster.host(name)
        for machine in self.all:
            stands_for = machine.host == host.name and machine.stands_for > 1
            if name in (machine.host, machine.name) or stands_for:
                yield machine
