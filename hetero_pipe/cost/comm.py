"""What messages and collectives cost: latency and bytes on the links of a cluster.

A link takes `alpha` seconds for the first byte and `bytes / bandwidth` for the
rest. A collective of `m` machines with `p` members each has links of two kinds:
within a machine (`intra`), and between machines (`inter`), which the members of
a machine share.

Reference:
    Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
    Operations in MPICH", IJHPCA 2005.
"""

import math
from dataclasses import dataclass, field

from hetero_pipe.cluster import Cluster, Path
from hetero_pipe.errors import ConfigError
from hetero_pipe.plan import ProcessPlan

__all__ = ["Members", "all_gather_time", "all_reduce_time", "all_to_all_time", "broadcast_time"]


@dataclass(frozen=True)
class Members:
    """Who takes part in a collective.

    Attributes:
        machines: At least 1.
        per_machine: Members on each, at least 1.
        intra: From one member to another of its machine.
        inter: From a member to one of another machine.
    """

    machines: int = 1
    per_machine: int = 1
    intra: Path = field(default_factory=Path)
    inter: Path = field(default_factory=Path)

    @staticmethod
    def of(cluster: Cluster, processes: ProcessPlan) -> "Members":
        """Returns the processes of one role; those without a link of their own have loopback.

        Raises:
            ConfigError: The cluster has no such places.
        """
        host = cluster.host(processes.host)
        on_cpu = processes.device == "cpu"

        def place(machine: int, index: int) -> str:
            device = "cpu" if on_cpu else f"{processes.device}:{index}"
            return f"{host.names[machine]}/{device}"

        if processes.machines > host.count:
            raise ConfigError(
                f"host {host.name!r} has {host.count} machines, got a plan for {processes.machines}"
            )
        intra = inter = Path()
        if processes.per_machine > 1:
            found = cluster.loopback(host.name) if on_cpu else None
            intra = found or cluster.path(place(0, 0), place(0, 0 if on_cpu else 1))
        if processes.machines > 1:
            inter = cluster.path(place(0, 0), place(processes.machines - 1, 0))
        return Members(processes.machines, processes.per_machine, intra, inter)

    @property
    def count(self) -> int:
        """Of all machines."""
        return self.machines * self.per_machine

    @property
    def _widest_step(self) -> Path:
        """What the slowest message of a ring takes."""
        return self.inter if self.machines > 1 else self.intra


def all_reduce_time(num_bytes: float, members: Members) -> float:
    """Returns the seconds until all members have the sum, by the best of the ways.

    - ring: `2 (n - 1) alpha + 2 (n - 1) / n V / B`, over the slowest link.
    - tree, reduced and broadcast: `2 log2(n) (alpha + V / B)`.
    - hierarchical: reduce-scatter in each machine, a ring of each member with its
      peers, all-gather in each machine.
    """
    n = members.count
    if n == 1:
        return 0.0
    ways = [_ring(2, num_bytes, n, members._widest_step), _tree(2, num_bytes, members)]
    if members.machines > 1 and members.per_machine > 1:
        p, m = members.per_machine, members.machines
        within = _ring(2, num_bytes, p, members.intra)
        # All members of a machine send their share at once: together it is V over its link.
        between = 2 * (m - 1) * (members.inter.latency + num_bytes / m / members.inter.bandwidth)
        ways.append(within + between)
    return min(ways)


def all_gather_time(num_bytes: float, members: Members) -> float:
    """Returns the seconds until all members have all parts; `num_bytes` is of all parts.

    A reduce-scatter takes as long.
    """
    n = members.count
    if n == 1:
        return 0.0
    ways = [_ring(1, num_bytes, n, members._widest_step)]
    if members.machines > 1 and members.per_machine > 1:
        p, m = members.per_machine, members.machines
        between = (m - 1) * (members.inter.latency + num_bytes / m / members.inter.bandwidth)
        ways.append(between + _ring(1, num_bytes, p, members.intra))
    return min(ways)


def all_to_all_time(num_bytes: float, members: Members) -> float:
    """Returns the seconds until each member has what all others have for it.

    Args:
        num_bytes: Of one member, for all others and itself.
        members: Who takes part.
    """
    n, p, m = members.count, members.per_machine, members.machines
    within = num_bytes * (p - 1) / n
    # What a machine sends goes over one link.
    between = p * num_bytes * (n - p) / n
    times = []
    if p > 1:
        times.append((p - 1) * members.intra.latency + within / members.intra.bandwidth)
    if m > 1:
        times.append((m - 1) * members.inter.latency + between / members.inter.bandwidth)
    return max(times, default=0.0)


def broadcast_time(num_bytes: float, members: Members) -> float:
    """Returns the seconds until all members have what one has, by a tree."""
    return _tree(1, num_bytes, members)


def _ring(rounds: int, num_bytes: float, n: int, path: Path) -> float:
    if n == 1:
        return 0.0
    return rounds * (n - 1) * (path.latency + num_bytes / n / path.bandwidth)


def _tree(rounds: int, num_bytes: float, members: Members) -> float:
    between = math.ceil(math.log2(members.machines))
    within = math.ceil(math.log2(members.per_machine))
    return rounds * (
        between * members.inter.time(num_bytes) + within * members.intra.time(num_bytes)
    )
