"""A batch's keys, each once, grouped by the server that owns them; their rows in one again."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data import aligned_empty
from ps_server.keys import bucket_of, dedup
from ps_server.route import Route

__all__ = ["Positions", "RoutedKeys", "assemble", "positions_of", "route_keys"]

Positions = slice | NDArray[np.intp]
"""Where some keys of a batch lie in it."""


@dataclass(frozen=True)
class RoutedKeys:
    """The distinct keys of a batch in the order of their servers.

    Attributes:
        keys: uint64 `[u]`, those of the first server first.
        inverse: int64 `[n]`: occurrence i is of key `keys[inverse[i]]`.
        bounds: int64 `[servers + 1]`: the keys of server s are
            `keys[bounds[s]:bounds[s + 1]]`.
        route: By which; None is one of a single server.
    """

    keys: NDArray[np.uint64]
    inverse: NDArray[np.int64]
    bounds: NDArray[np.int64]
    route: Route | None = None

    def slice_of(self, server: int) -> slice:
        """Returns where the keys of a server lie."""
        return slice(int(self.bounds[server]), int(self.bounds[server + 1]))


def route_keys(keys: NDArray[np.uint64], route: Route) -> RoutedKeys:
    """Returns the distinct keys of `keys` `[n]`, grouped by server."""
    distinct = dedup(keys, route.owners, num_owners=len(route.servers))
    bounds = np.concatenate(([0], np.cumsum(distinct.counts)))
    return RoutedKeys(distinct.unique, distinct.inverse, bounds, route)


def positions_of(
    routed: RoutedKeys, route: Route, wanted: NDArray[np.bool_] | None = None
) -> Sequence[Positions]:
    """Returns where the keys of each server lie, also of another route than they are in order of.

    Args:
        routed: The keys.
        route: Which servers own them by now.
        wanted: Buckets whose keys are asked for, `[4096]`; None is all.
    """
    numbers = range(len(route.servers))
    if wanted is None and (routed.route is None or routed.route is route):
        return [routed.slice_of(number) for number in numbers]
    buckets = bucket_of(routed.keys)
    owners = route.owners[buckets]
    is_wanted = np.ones(len(buckets), bool) if wanted is None else wanted[buckets]
    return [np.flatnonzero(is_wanted & (owners == number)) for number in numbers]


def assemble(
    pieces: Sequence[tuple[Positions, NDArray[np.float32]]], *, num_rows: int, dim: int
) -> NDArray[np.float32]:
    """Returns the rows of all servers in one array that starts at a multiple of 64 bytes.

    Args:
        pieces: Where the rows of a server lie, and what they are.
        num_rows: Of all.
        dim: Weights of a row.
    """
    if len(pieces) == 1 and isinstance(pieces[0][0], slice):
        rows = pieces[0][1]
        if rows.flags.writeable and rows.ctypes.data % 64 == 0:
            return rows
    whole = aligned_empty((num_rows, dim), np.float32)
    for where, rows in pieces:
        whole[where] = rows
    return whole
