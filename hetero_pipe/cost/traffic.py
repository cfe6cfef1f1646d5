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


def network_times(flows: Iterable[Flow], cluster: Cluster) -> dict[str, float]:
    """Returns the least seconds of a step by what may leave and enter some machines at once.

    Of each kind of machine by itself, and of those that are behind one switch, with the
    links of both ways busy at once.
    """
    flows = list(flows)
    found: dict[str, float] = defaultdict(float)
    for cut in cluster.cuts:
        inside = set(cut.machines)
        leaving = entering = 0.0
        for flow in flows:
            source, target = (
                _share(flow.source, inside, cluster),
                _share(flow.target, inside, cluster),
            )
            leaving += flow.num_bytes * source * (1 - target)
            entering += flow.num_bytes * (1 - source) * target
        if len(inside) == 1:
            name = f"network of {cluster.host(cut.machines[0]).name}"
        else:
            name = "network between switches"
        found[name] = max(found[name], max(leaving, entering) / cut.bandwidth)
    return dict(found)


def _share(processes: ProcessPlan, inside: set[str], cluster: Cluster) -> float:
    """Returns the share of some processes that are on some machines."""
    names = cluster.host(processes.host).names[: processes.machines]
    return len(inside.intersection(names)) / len(names)


def uplink(cluster: Cluster, machine: str) -> float:
    """Returns the bytes/s that can leave a machine at once; infinite if there is no other."""
    alone = (cut.bandwidth for cut in cluster.cuts if cut.machines == (machine,))
    return next(alone, math.inf)
