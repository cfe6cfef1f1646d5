"""A batch's keys, each once, grouped by the server that owns them; their rows in one again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data import aligned_empty
from ps_server.keys import dedup
from ps_server.route import Route

__all__ = ["RoutedKeys", "assemble", "route_keys", "slices_of"]


@dataclass(frozen=True)
class RoutedKeys:
    """The distinct keys of a batch in the order of their servers.

    Attributes:
        keys: uint64 `[u]`, those of the first server first.
        inverse: int64 `[n]`: occurrence i is of key `keys[inverse[i]]`.
        bounds: int64 `[servers + 1]`: the keys of server s are
            `keys[bounds[s]:bounds[s + 1]]`.
    """

    keys: NDArray[np.uint64]
    inverse: NDArray[np.int64]
    bounds: NDArray[np.int64]

    def slice_of(self, server: int) -> slice:
        """Returns where the keys of a server lie."""
        return slice(int(self.bounds[server]), int(self.bounds[server + 1]))


def route_keys(keys: NDArray[np.uint64], route: Route) -> RoutedKeys:
    """Returns the distinct keys of `keys` `[n]`, grouped by server."""
    distinct = dedup(keys, route.owners, num_owners=len(route.servers))
    bounds = np.concatenate(([0], np.cumsum(distinct.counts)))
    return RoutedKeys(distinct.unique, distinct.inverse, bounds)


def slices_of(server: int, keys: Mapping[str, RoutedKeys]) -> dict[str, slice]:
    """Returns where the keys of a server lie, of each table that it has some of."""
    slices = {name: routed.slice_of(server) for name, routed in keys.items()}
    return {name: where for name, where in slices.items() if where.stop > where.start}


def assemble(
    pieces: Sequence[tuple[slice, NDArray[np.float32]]], *, num_rows: int, dim: int
) -> NDArray[np.float32]:
    """Returns the rows of all servers in one array that starts at a multiple of 64 bytes.

    Args:
        pieces: Where the rows of a server lie, and what they are.
        num_rows: Of all.
        dim: Weights of a row.
    """
    if len(pieces) == 1:
        rows = pieces[0][1]
        if rows.flags.writeable and rows.ctypes.data % 64 == 0:
            return rows
    whole = aligned_empty((num_rows, dim), np.float32)
    for where, rows in pieces:
        whole[where] = rows
    return whole
