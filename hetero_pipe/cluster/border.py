"""Border: some machines of a cluster, and how much can leave them at once."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hetero_pipe.cluster.wiring import Edges

__all__ = ["Border", "borders_of"]


@dataclass(frozen=True)
class Border:
    """Some machines, and the links between them and all others.

    Whatever way messages take, what these machines send to others crosses these
    links. So no routing is faster, and more bandwidth never makes it slower.

    Attributes:
        machines: Not all of them.
        bandwidth: Bytes/s of all these links together, each way.
    """

    machines: tuple[str, ...]
    bandwidth: float


def borders_of(edges: Edges, machines: Iterable[str]) -> tuple[Border, ...]:
    """Returns each machine alone, and all that are behind each switch, tier by tier.

    Blocks grow from single members: one all of whose links lead to one other block
    joins it. In a tree of switches no other border bounds more; where a block has two
    neighbours, growing ends.

    Args:
        edges: Of the links between machines and switches.
        machines: Their names.
    """
    machines = tuple(machines)
    block_of = {member: member for member in (*machines, *edges)}
    leaving = _leaving(edges, block_of)
    found = [_border([name], leaving[name]) for name in machines]
    while True:
        only = {block: next(iter(to)) for block, to in leaving.items() if len(to) == 1}
        # Of two blocks that have but each other, one stays.
        joined = {b: to for b, to in only.items() if only.get(to) != b or b < to}
        if not joined:
            return tuple(border for border in found if 0 < len(border.machines) < len(machines))
        block_of = {member: joined.get(block, block) for member, block in block_of.items()}
        inside = defaultdict(list)
        for name in machines:
            inside[block_of[name]].append(name)
        leaving = _leaving(edges, block_of)
        found += [
            _border(inside[block], leaving[block]) for block in dict.fromkeys(joined.values())
        ]


def _leaving(edges: Edges, block_of: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Returns the bandwidth from each block to each other one that it has links to."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for member, leaving in edges.items():
        for edge in leaving:
            if block_of[member] != block_of[edge.target]:
                found[block_of[member]][block_of[edge.target]] += edge.bandwidth
    return found


def _border(machines: Sequence[str], to: Mapping[str, float]) -> Border:
    return Border(tuple(machines), sum(to.values()))
