"""What does the network bound? All that leaves some machines crosses their links."""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from hetero_pipe.cluster import Cluster
from hetero_pipe.plan import ProcessPlan

__all__ = ["Flow", "network_times", "uplink"]


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


def network_times(
    flows: Iterable[Flow], cluster: Cluster, *, of_first: bool = False
) -> dict[str, float]:
    """Returns the least seconds of a step by what may leave and enter some machines at once.

    Of each machine by itself, and of those that are behind one switch; links are busy both
    ways at once.

    Args:
        flows: Between processes.
        cluster: That has them.
        of_first: Of the first machine of each host alone: it has processes of all roles
            that are there, so what leaves it rises or falls with each of their numbers.
    """
    flows = list(flows)
    host_of = _differing(flows, cluster, of_first=of_first)
    ends = [
        (_machines(flow.source, cluster), _machines(flow.target, cluster), flow.num_bytes)
        for flow in flows
    ]
    found: dict[str, float] = defaultdict(float)
    for border in cluster.borders:
        is_alone = len(border.machines) == 1
        if (border.machines[0] not in host_of) if is_alone else of_first:
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


def _differing(flows: Iterable[Flow], cluster: Cluster, *, of_first: bool) -> dict[str, str]:
    """Returns one machine of each set of roles, and its host: those between are like it."""
    lasts: dict[str, set[int]] = defaultdict(lambda: {0})
    for flow in flows:
        for processes in (flow.source, flow.target):
            if not of_first:
                lasts[processes.host].add(processes.machines - 1)
            lasts[processes.host].add(0)
    return {cluster.host(host).names[i]: host for host, found in lasts.items() for i in found}


def _machines(processes: ProcessPlan, cluster: Cluster) -> frozenset[str]:
    return frozenset(cluster.host(processes.host).names[: processes.machines])


def uplink(cluster: Cluster, machine: str) -> float:
    """Returns the bytes/s that can leave a machine at once; infinite if there is no other."""
    alone = (border.bandwidth for border in cluster.borders if border.machines == (machine,))
    return next(alone, math.inf)
