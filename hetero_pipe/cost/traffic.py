"""What does the network bound? All that leaves some machines crosses their links."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from hetero_pipe.cluster import Cluster
from hetero_pipe.plan import ProcessPlan

__all__ = ["Flow", "first_machine_times", "network_times", "uplink"]


@dataclass(frozen=True)
class Flow:
    """What some processes send to others in a step, each as much to each.

    Attributes:
        source: Who sends.
        target: Who receives.
        num_bytes: Of all of them together.
    """

    source: ProcessPlan
    target: ProcessPlan
    num_bytes: float


def network_times(flows: Iterable[Flow], cluster: Cluster) -> dict[str, float]:
    """Returns the least seconds of a step by what may leave and enter some machines at once.

    Of each machine by itself, and of those that are behind one switch; links are busy both
    ways at once.

    Args:
        flows: Between processes.
        cluster: That has them.
    """
    flows = list(flows)
    host_of = _differing(flows, cluster)
    ends = [
        (_machines(flow.source, cluster), _machines(flow.target, cluster), flow.num_bytes)
        for flow in flows
    ]
    found: dict[str, float] = defaultdict(float)
    for border in cluster.borders:
        is_alone = len(border.machines) == 1
        if is_alone and border.machines[0] not in host_of:
            continue
        inside = frozenset(border.machines)
        leaving = entering = 0.0
        for sources, targets, num_bytes in ends:
            source = len(inside & sources) / len(sources)
            target = len(inside & targets) / len(targets)
            leaving += num_bytes * source * (1 - target)
            entering += num_bytes * (1 - source) * target
        name = (
            f"network of {host_of[border.machines[0]]}" if is_alone else "network between switches"
        )
        found[name] = max(found[name], max(leaving, entering) / border.bandwidth)
    return dict(found)


def first_machine_times(
    flows: Sequence[Flow], cluster: Cluster, numbers: Mapping[str, tuple[int, int]]
) -> dict[str, float]:
    """Returns the least seconds of a step by what leaves the first machine of each host, or enters.

    It has processes of all roles that are there, so what leaves it rises or falls with the
    machines of each: of all numbers between two, it is least at one of the ends. So is what
    enters it, if at another one.

    Args:
        flows: Between processes, whose own numbers do not count.
        cluster: That has them.
        numbers: By role, of machines: the fewest and the most.
    """
    found = {}
    for host in dict.fromkeys(each.host for flow in flows for each in (flow.source, flow.target)):
        here = {
            each.role: numbers[each.role]
            for flow in flows
            for each in (flow.source, flow.target)
            if each.host == host
        }
        corners = [
            _through(flows, dict(zip(here, corner, strict=True)))
            for corner in product(*here.values())
        ]
        least = max(min(leaving for leaving, _ in corners), min(enters for _, enters in corners))
        found[f"network of {host}"] = least / uplink(cluster, cluster.host(host).names[0])
    return found


def _through(flows: Iterable[Flow], machines: Mapping[str, int]) -> tuple[float, float]:
    """Returns the bytes that leave the first machine of a host, and those that enter it.

    Args:
        flows: Between processes.
        machines: By role, how many of the host have it; of others none has.
    """
    leaving = entering = 0.0
    for flow in flows:
        source, target = (
            1 / machines[role] if role in machines else 0.0
            for role in (flow.source.role, flow.target.role)
        )
        leaving += flow.num_bytes * source * (1 - target)
        entering += flow.num_bytes * (1 - source) * target
    return leaving, entering


def _differing(flows: Iterable[Flow], cluster: Cluster) -> dict[str, str]:
    """Returns one machine of each set of roles, and its host: those between are like it."""
    lasts: dict[str, set[int]] = defaultdict(lambda: {0})
    for flow in flows:
        for processes in (flow.source, flow.target):
            lasts[processes.host] |= {0, processes.machines - 1}
    return {cluster.host(host).names[i]: host for host, found in lasts.items() for i in found}


def _machines(processes: ProcessPlan, cluster: Cluster) -> frozenset[str]:
    return frozenset(cluster.host(processes.host).names[: processes.machines])


def uplink(cluster: Cluster, machine: str) -> float:
    """Returns the bytes/s that can leave a machine at once; infinite if there is no other."""
    return cluster.uplinks.get(machine, math.inf)
