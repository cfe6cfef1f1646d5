"""A batch's keys, each once, grouped by the server that owns them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ps_server.keys import dedup
from ps_server.route import Route

__all__ = ["RoutedKeys", "route_keys"]


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
