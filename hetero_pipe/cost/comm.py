"""What collectives cost: messages that follow each other on the links of a cluster.

A link takes `alpha` seconds for the first byte and `bytes / bandwidth` for the
rest. A collective of `m` machines with `p` members each has ways of two kinds:
within a machine (`intra`), and between two (`inter`), and what leaves a machine
is shared by its members (`uplinks`).

Reference:
    Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
    Operations in MPICH", IJHPCA 2005.
"""

import math
from dataclasses import dataclass, field

from hetero_pipe.cluster import Cluster, Edge, Path, Ways
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.traffic import uplink
from hetero_pipe.plan import ProcessPlan

__all__ = ["Members", "all_gather_time", "all_reduce_time", "all_to_all_time", "broadcast_time"]


@dataclass(frozen=True)
class Members:
    """Who takes part in a collective, and what joins them.

    Attributes:
        machines: At least 1.
        per_machine: Members on each, at least 1.
        intra: From one member to another of its machine.
        inter: From a member to one of another machine, the farthest, if nobody else sends.
        uplinks: (so many of the machines, bytes/s that all of them together can send to the
            others), for those on one side of a NIC or of a switch.
    """

    machines: int = 1
    per_machine: int = 1
    intra: Ways = field(default_factory=Ways)
    inter: Ways = field(default_factory=Ways)
    uplinks: tuple[tuple[int, float], ...] = ()

    @staticmethod
    def of(cluster: Cluster, processes: ProcessPlan, *, constants: Constants) -> "Members":
        """Returns the processes of one role.

        Those on one CPU pass messages over its loopback or, if the cluster does not say
        how fast that is, as is assumed.

        Raises:
            ConfigError: The cluster has no such places.
        """
        names = cluster.host(processes.host).names[: processes.machines]

        def place(machine: int, index: int) -> str:
            device = processes.device
            return f"{names[machine]}/{device if device == 'cpu' else f'{device}:{index}'}"

        intra = inter = Ways()
        if processes.per_machine > 1 and processes.device == "cpu":
            found = cluster.loopback(processes.host)
            intra = Ways((found or _assumed_loopback(constants),))
        elif processes.per_machine > 1:
            intra = cluster.ways(place(0, 0), place(0, 1))
        uplinks: dict[tuple[int, float], None] = {}  # equal ones once, in order
        if len(names) > 1:
            inter = cluster.ways(place(0, 0), place(len(names) - 1, 0))
            uplinks = dict.fromkeys((1, uplink(cluster, name)) for name in names)
            for border in cluster.borders:
                if len(border.machines) == 1:
                    continue
                inside = len(set(names).intersection(border.machines))
                if 0 < inside < len(names):
                    uplinks[inside, border.bandwidth] = None
        return Members(len(names), processes.per_machine, intra, inter, tuple(uplinks))

    @property
    def count(self) -> int:
        """Of all machines."""
        return self.machines * self.per_machine

    def between_time(self, num_bytes: float) -> float:
        """Returns the seconds of a message of each member at once to its peer on the next machine.

        They share what leaves their machine; one message leaves the machines that are behind
        one switch.
        """
        nic = min((width for inside, width in self.uplinks if inside == 1), default=math.inf)
        shared = self.per_machine * num_bytes / nic
        return max(self.inter.time(num_bytes), self.inter.time(0) + shared)


def _assumed_loopback(constants: Constants) -> Path:
    return Path((Edge("cpu", "cpu", "loopback", 1 / constants.message_byte, constants.call / 2),))


def all_reduce_time(num_bytes: float, members: Members) -> float:
    """Returns the seconds until all members have the sum, by the best of the ways.

    With `t(x)` the seconds of a message of x bytes:

    - ring: `2 (n - 1) t(V / n)`, of the slowest link.
    - tree, reduced and broadcast: `2 log2(n) t(V)`.
    - hierarchical: reduce-scatter in each machine, a ring of each member with its
      peers, all-gather in each machine.
    """
    if members.count == 1:
        return 0.0
    p, m = members.per_machine, members.machines
    within = 2 * (p - 1) * members.intra.time(num_bytes / p)
    between = 2 * (m - 1) * members.between_time(num_bytes / (p * m))
    return min(_ring(2, num_bytes, members), _tree(2, num_bytes, members), within + between)


def all_gather_time(num_bytes: float, members: Members) -> float:
    """Returns the seconds until all members have all parts; `num_bytes` is of all parts.

    A reduce-scatter takes as long.
    """
    if members.count == 1:
        return 0.0
    p, m = members.per_machine, members.machines
    between = (m - 1) * members.between_time(num_bytes / (p * m))
    within = (p - 1) * members.intra.time(num_bytes / p)
    return min(_ring(1, num_bytes, members), between + within)


def all_to_all_time(num_bytes: float, members: Members) -> float:
    """Returns the seconds until each member has what all others have for it.

    In rounds: each member with each other one of its machine; then all members of a
    machine with all of the one that is r machines on, for each r.

    Args:
        num_bytes: Of one member, for all others and itself.
        members: Who takes part.
    """
    n, p, m = members.count, members.per_machine, members.machines
    part = num_bytes / n
    within = (p - 1) * members.intra.time(part)
    if m == 1:
        return within
    alone = members.inter.time(0)
    rounds = (m - 1) * members.inter.time(p * part)
    # k machines have something for each of the m - k others.
    crossing = [p * p * part * k * (m - k) / width for k, width in members.uplinks]
    return within + max(rounds, (m - 1) * alone + max(crossing, default=0.0))


def broadcast_time(num_bytes: float, members: Members) -> float:
    """Returns the seconds until all members have what one has, by a tree."""
    return _tree(1, num_bytes, members)


def _ring(rounds: int, num_bytes: float, members: Members) -> float:
    """Returns the seconds of rounds over all members, machine after machine.

    One message at a time leaves a machine.
    """
    part = num_bytes / members.count
    steps = [members.intra] * (members.per_machine > 1) + [members.inter] * (members.machines > 1)
    slowest = max((ways.time(part) for ways in steps), default=0.0)
    return rounds * (members.count - 1) * slowest


def _tree(rounds: int, num_bytes: float, members: Members) -> float:
    between = math.ceil(math.log2(members.machines))
    within = math.ceil(math.log2(members.per_machine))
    return rounds * (
        between * members.inter.time(num_bytes) + within * members.intra.time(num_bytes)
    )
