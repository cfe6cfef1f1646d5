"""Which server owns which bucket, and how that changes: one bucket at a time."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from ps_server.spec import NUM_BUCKETS

__all__ = ["Move", "Route", "ServerRef", "even_owners", "plan_moves"]


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


def even_owners(num_servers: int) -> NDArray[np.uint16]:
    """Returns the owner of each bucket, `[4096]`, if nothing has moved: of b, `b * n // 4096`."""
    return (np.arange(NUM_BUCKETS) * num_servers // NUM_BUCKETS).astype(np.uint16)


@dataclass(frozen=True, eq=False)
class Route:
    """The servers of a job, and which of them owns each bucket.

    All workers and servers of a job hold the same route; its fingerprint goes
    with each pull and push, so that a row is never looked for where it does not
    live. A route never changes: a change makes the next one, of the next version.

    Attributes:
        servers: One that owns no bucket is about to be given some, or to leave.
        owners: Index of the server that owns each bucket, `[4096]`, read-only;
            empty is `even_owners`.
        version: How many changes have led here.

    Raises:
        ValueError: There is no server, one is listed twice, or there are more
            than buckets; owners are of another shape, or name no server.
    """

    servers: tuple[ServerRef, ...]
    owners: NDArray[np.uint16] = field(default_factory=lambda: np.empty(0, np.uint16))
    version: int = 0

    def __post_init__(self) -> None:
        _check_servers(self.servers)
        if self.version < 0:
            raise ValueError(f"a route's version is at least 0, got version={self.version}")
        owners = self.owners.copy() if self.owners.size else even_owners(len(self.servers))
        if owners.shape != (NUM_BUCKETS,) or owners.dtype != np.uint16:
            raise ValueError(
                f"a route needs one uint16 owner for each of {NUM_BUCKETS} buckets, got "
                f"{owners.dtype} {list(owners.shape)}"
            )
        if owners.max() >= len(self.servers):
            raise ValueError(
                f"the owner of a bucket must be one of {len(self.servers)} servers, got server "
                f"{owners.max()} for bucket {owners.argmax()}"
            )
        owners.setflags(write=False)
        object.__setattr__(self, "owners", owners)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Route) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @property
    def _content(self) -> tuple[object, ...]:
        return self.servers, self.owners.tobytes(), self.version

    @cached_property
    def fingerprint(self) -> int:
        """64 bits that tell this route from others, whatever its servers are called."""
        ids = "\n".join(server.id for server in self.servers)
        text = f"{self.version}\n{ids}\n\n".encode() + self.owners.astype("<u2").tobytes()
        return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")

    @property
    def is_even(self) -> bool:
        """Whether every bucket is where `even_owners` has it."""
        return np.array_equal(self.owners, even_owners(len(self.servers)))

    def buckets_of(self, server_id: str) -> NDArray[np.intp]:
        """Returns the buckets that a server owns, ascending.

        Raises:
            ValueError: The server is not in the route.
        """
        return np.flatnonzero(self.owners == self._index_of(server_id))

    def moved(self, buckets: Collection[int], *, to: str) -> "Route":
        """Returns the next route, in which these buckets belong to the server of id `to`.

        Raises:
            ValueError: The server is not in the route.
        """
        owners = self.owners.copy()
        owners[list(buckets)] = self._index_of(to)
        return Route(self.servers, owners, self.version + 1)

    def with_servers(self, servers: Iterable[ServerRef]) -> "Route":
        """Returns the next route, with more servers behind those here. They own nothing yet.

        Raises:
            ValueError: One is in the route.
        """
        return Route((*self.servers, *servers), self.owners, self.version + 1)

    def without_servers(self, ids: Collection[str]) -> "Route":
        """Returns the next route, without servers that own nothing any more.

        Raises:
            ValueError: One is not in the route, or owns a bucket.
        """
        for server_id in ids:
            if held := len(self.buckets_of(server_id)):
                raise ValueError(
                    f"a server must own nothing before it leaves, got {server_id} with {held} "
                    "buckets; move them first"
                )
        stays = np.array([server.id not in ids for server in self.servers])
        servers = tuple(s for s, kept in zip(self.servers, stays, strict=True) if kept)
        places = np.cumsum(stays) - 1  # of each server that stays, its new index
        return Route(servers, places[self.owners].astype(np.uint16), self.version + 1)

    def _index_of(self, server_id: str) -> int:
        for index, server in enumerate(self.servers):
            if server.id == server_id:
                return index
        raise ValueError(f"server {server_id} is not in the route {self}")

    def __str__(self) -> str:
        return ",".join(server.address for server in self.servers)


@dataclass(frozen=True)
class Move:
    """A bucket that is to change its owner.

    Attributes:
        bucket: Which.
        source: Id of the server that owns it.
        target: Id of the one that will.
    """

    bucket: int
    source: str
    target: str


def plan_moves(route: Route, targets: Collection[str]) -> list[Move]:
    """Returns the fewest moves after which the targets own equal shares and all others nothing.

    Shares differ by one bucket at most; the larger ones go to who has most
    already, since each bucket that stays is one move less. A server gives its
    last buckets, so that what it keeps are the ranges that it has.

    Args:
        route: Who owns what now.
        targets: Ids of the servers that are to share the buckets, all in the route.

    Raises:
        ValueError: There is no target, more than buckets, or one is not in the route.
    """
    ids = sorted(set(targets))
    if not 0 < len(ids) <= NUM_BUCKETS:
        raise ValueError(f"buckets go to 1 to {NUM_BUCKETS} servers, got {len(ids)}")
    held = {server_id: route.buckets_of(server_id) for server_id in ids}
    smaller, num_larger = divmod(NUM_BUCKETS, len(held))
    most_first = sorted(held, key=lambda server_id: -len(held[server_id]))
    shares = {server_id: smaller + (i < num_larger) for i, server_id in enumerate(most_first)}
    surplus: list[tuple[int, str]] = []
    for server in route.servers:
        owned = route.buckets_of(server.id)
        surplus += [(int(b), server.id) for b in owned[shares.get(server.id, 0) :]]
    takers = (
        server_id for server_id in held for _ in range(shares[server_id] - len(held[server_id]))
    )
    return [
        Move(b, source, target) for (b, source), target in zip(sorted(surplus), takers, strict=True)
    ]


def _check_servers(servers: tuple[ServerRef, ...]) -> None:
    if not servers:
        raise ValueError("a route needs at least one server, got none")
    if len(servers) > NUM_BUCKETS:
        raise ValueError(
            f"a route has at most {NUM_BUCKETS} servers, one bucket each, got {len(servers)}"
        )
    first: dict[str, str] = {}
    for server in servers:
        if server.id in first:
            raise ValueError(
                f"a route names each server once, got {first[server.id]} and {server.address}, "
                "which are the same server"
            )
        first[server.id] = server.address
