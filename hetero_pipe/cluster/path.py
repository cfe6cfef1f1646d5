"""Path: the way from one place to another, and how the best one is found."""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hetero_pipe.cluster.wiring import Edge

__all__ = ["Path", "Ways", "fastest_path", "ways"]


@dataclass(frozen=True)
class Path:
    """The links that bytes take from one place to another, in order.

    Attributes:
        edges: None of them from a place to itself.
    """

    edges: tuple[Edge, ...] = ()

    @property
    def bandwidth(self) -> float:
        """Bytes/s of the slowest link; infinite where there is nothing between."""
        return min((edge.bandwidth for edge in self.edges), default=math.inf)

    @property
    def latency(self) -> float:
        """Seconds that the first byte takes: the sum of all links'."""
        return math.fsum(edge.latency for edge in self.edges)

    def time(self, num_bytes: float) -> float:
        """Returns the seconds until the last of so many bytes is there, when nobody else sends."""
        return self.latency + num_bytes / self.bandwidth

    def shared(self, other: "Path") -> tuple[Edge, ...]:
        """Returns the links that another path takes the same way: both share their bandwidth."""
        return tuple(edge for edge in self.edges if edge in other.edges)


@dataclass(frozen=True)
class Ways:
    """The paths from one place to another of which each is the fastest for messages of some size.

    Attributes:
        paths: From the one of least latency to the widest; at least one.
    """

    paths: tuple[Path, ...] = (Path(),)

    def time(self, num_bytes: float) -> float:
        """Returns the seconds until the last of so many bytes is there, on the best path.

        More bandwidth or less latency of any link never makes it longer.
        """
        return min(path.time(num_bytes) for path in self.paths)


def fastest_path(
    edges_of: Callable[[str], Iterable[Edge]],
    source: str,
    target: str,
    *,
    num_bytes: float,
) -> Path | None:
    """Returns the path on which a message arrives first; None if there is no path.

    The time of a path is its latency plus `num_bytes` by its slowest link. So for
    every bandwidth that some link has, the path of least latency over links of
    at least that bandwidth is a candidate, and the best of them is the best of all.

    Args:
        edges_of: What leads on from a member, empty where nothing does.
        source: Where it starts.
        target: Where it ends, another member.
        num_bytes: Of the message; infinite asks for the widest path, and of
            several the one of least latency.
    """
    best: Path | None = None
    for found in ways(edges_of, source, target):
        wins = best is None or math.isinf(num_bytes) or found.time(num_bytes) < best.time(num_bytes)
        best = found if wins else best
    return best


def ways(edges_of: Callable[[str], Iterable[Edge]], source: str, target: str) -> Iterator[Path]:
    """Yields the candidates of `fastest_path`, each wider and of more latency than the last."""
    floor = 0.0  # each round asks for more bandwidth than the path before had
    while (found := _quickest(edges_of, source, target, above=floor)) is not None:
        yield found
        floor = found.bandwidth


def _quickest(
    edges_of: Callable[[str], Iterable[Edge]], source: str, target: str, *, above: float
) -> Path | None:
    """Returns the path of least latency, then of fewest links, over links of more bandwidth."""
    ticket = itertools.count()  # the first come of equal ones; edges have no order
    heap: list[tuple[float, int, int, str, tuple[Edge, ...]]] = [(0.0, 0, 0, source, ())]
    done: set[str] = set()
    while heap:
        latency, num_edges, _, member, taken = heapq.heappop(heap)
        if member == target:
            return Path(taken)
        if member in done:
            continue
        done.add(member)
        for edge in edges_of(member):
            if edge.bandwidth > above and edge.target not in done:
                way = (*taken, edge)
                reached = (latency + edge.latency, num_edges + 1, next(ticket), edge.target, way)
                heapq.heappush(heap, reached)
    return None
