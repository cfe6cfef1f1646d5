"""Which server owns which bucket."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ps_server.spec import NUM_BUCKETS

__all__ = ["Route", "ServerRef"]


@dataclass(frozen=True)
class ServerRef:
    """One server of a route.

    Attributes:
        id: What the server calls itself, drawn at random when it starts: the
            same server under another name keeps its id.
        address: HOST:PORT, as the worker reaches it; for messages.
    """

    id: str
    address: str


@dataclass(frozen=True)
class Route:
    """The servers of a job in the order of their buckets.

    With n servers, bucket b belongs to server `b * n // 4096`. All workers and
    servers of a job hold the same route; its fingerprint goes with each pull
    and push, so that a row is never looked for where it does not live.

    Raises:
        ValueError: There is no server, one is listed twice, or there are more
            than buckets.
    """

    servers: tuple[ServerRef, ...]

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("a route needs at least one server, got none")
        if len(self.servers) > NUM_BUCKETS:
            raise ValueError(
                f"a route has at most {NUM_BUCKETS} servers, one bucket each, got "
                f"{len(self.servers)}"
            )
        first: dict[str, str] = {}
        for server in self.servers:
            if server.id in first:
                raise ValueError(
                    f"a route names each server once, got {first[server.id]} and {server.address}, "
                    "which are the same server"
                )
            first[server.id] = server.address

    @cached_property
    def fingerprint(self) -> int:
        """64 bits that tell this route from others."""
        text = "\n".join(server.id for server in self.servers)
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")

    @cached_property
    def owners(self) -> NDArray[np.uint16]:
        """Index of the server that owns each bucket, `[4096]`."""
        return (np.arange(NUM_BUCKETS) * len(self.servers) // NUM_BUCKETS).astype(np.uint16)

    def buckets_of(self, server_id: str) -> range:
        """Returns the buckets that a server owns.

        Raises:
            ValueError: The server is not in the route.
        """
        index = next((i for i, s in enumerate(self.servers) if s.id == server_id), None)
        if index is None:
            raise ValueError(f"server {server_id} is not in the route {self}")
        owned = np.flatnonzero(self.owners == index)
        return range(int(owned[0]), int(owned[-1]) + 1)

    def __str__(self) -> str:
        return ",".join(server.address for server in self.servers)
