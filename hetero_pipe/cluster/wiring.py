"""Wiring: links between named groups become edges between their members."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_pipe.cluster.link import Link
from hetero_pipe.errors import ConfigError
from hetero_pipe.section import nearest

__all__ = ["Edge", "Edges", "Groups", "reach", "wire"]

Groups = Mapping[str, Sequence[str]]
"""The members of each group by its name."""


@dataclass(frozen=True)
class Edge:
    """A link in one direction, between two members.

    Attributes:
        source: Where it starts.
        target: Where it ends.
        kind: Of the link.
        bandwidth: Bytes/s.
        latency: Seconds.
    """

    source: str
    target: str
    kind: str
    bandwidth: float
    latency: float


Edges = Mapping[str, Sequence[Edge]]
"""Those that start at a member, by its name."""


def wire(owner: str, links: Sequence[Link], groups: Groups) -> Edges:
    """Returns the edges of all links, both ways.

    A link of a group with itself goes through a member of no group, its fabric.

    Raises:
        ConfigError: A link leads nowhere, or two groups cannot be paired.
    """
    edges: dict[str, list[Edge]] = defaultdict(list)
    for link in links:
        for end in link.ends:
            if end not in groups:
                raise ConfigError(
                    f"a link of {owner} leads from one of {', '.join(groups)} to another, got one "
                    f"between {link.ends[0]!r} and {link.ends[1]!r}; there is no {end!r}"
                    f"{nearest(end, groups)}"
                )
        for source, target, latency in _pairs(owner, link, groups):
            for a, b in ((source, target), (target, source)):
                edges[a].append(Edge(a, b, link.kind, link.bandwidth, latency))
    return edges


def _pairs(owner: str, link: Link, groups: Groups) -> list[tuple[str, str, float]]:
    few, many = sorted((groups[end] for end in link.ends), key=len)
    if link.ends[0] == link.ends[1]:
        if len(many) == 1:  # a loopback: no way leads over it but from its end to itself
            return [(many[0], many[0], link.latency)]
        fabric = f"{link.ends[0]} {link.kind}"
        return [(member, fabric, link.latency / 2) for member in many]
    if len(many) % len(few):
        raise ConfigError(
            f"a link of {owner} joins as many of one end to each of the other, got {len(many)} to "
            f"{len(few)} between {link.ends[0]!r} and {link.ends[1]!r}; split the group"
        )
    share = len(many) // len(few)
    return [(member, few[i // share], link.latency) for i, member in enumerate(many)]


def reach(edges: Edges, start: str, *, blind: set[str]) -> set[str]:
    """Returns what can be reached from a member, over others that pass on.

    Args:
        edges: Of all links.
        start: A member.
        blind: Members that pass nothing on.
    """
    found, waiting = {start}, [start]
    while waiting:
        for edge in edges.get(waiting.pop(), ()):
            if edge.target not in found:
                found.add(edge.target)
                if edge.target not in blind:
                    waiting.append(edge.target)
    return found
