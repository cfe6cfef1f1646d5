"""Which server owns which bucket, and how that changes. docs/scaling.md is the protocol."""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ps_server.spec import NUM_BUCKETS

__all__ = ["Move", "Route", "ServerRef", "even_owners", "plan_moves", "share_fingerprint"]


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


def share_fingerprint(server_id: str, buckets: NDArray[np.intp]) -> int:
    """Returns 64 bits that tell what a server owns: they go with each request to it."""
    is_owned = np.zeros(NUM_BUCKETS, bool)
    is_owned[buckets] = True
    content = server_id.encode() + b"\n" + np.packbits(is_owned).tobytes()
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def _no_numbers() -> Any:  # of any dtype
    return np.empty(0, np.uint16)


@dataclass(frozen=True, eq=False)
class Route:
    """The servers of a job, and which of them owns each bucket.

    What one client or server knows: buckets may have moved since. Of two that
    differ in a bucket the one of the higher version is right, since only its owner
    gives a bucket away. A route never changes; what is learned makes another one.

    Attributes:
        servers: In an order that says nothing but which number each one has. Not
            all need to own buckets.
        owners: Number of the server that owns each bucket, uint16 `[4096]`,
            read-only; empty is `even_owners`.
        versions: How often each bucket has been given away, uint32 `[4096]`,
            read-only; empty is never.

    Raises:
        ValueError: There is no server, one is listed twice, or there are more
            than buckets; an array is of another shape or type, or names no server.
    """

    servers: tuple[ServerRef, ...]
    owners: NDArray[np.uint16] = field(default_factory=_no_numbers)
    versions: NDArray[np.uint32] = field(default_factory=_no_numbers)

    def __post_init__(self) -> None:
        _check_servers(self.servers)
        num_servers = len(self.servers)
        owners = self.owners if self.owners.size else even_owners(num_servers)
        versions = self.versions if self.versions.size else np.zeros(NUM_BUCKETS, np.uint32)
        object.__setattr__(self, "owners", _of_buckets(owners, np.uint16, "owner"))
        object.__setattr__(self, "versions", _of_buckets(versions, np.uint32, "version"))
        if self.owners.max() >= num_servers:
            raise ValueError(
                f"the owner of a bucket must be one of {num_servers} servers, got server "
                f"{self.owners.max()} for bucket {self.owners.argmax()}"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Route) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> tuple[object, ...]:
        return self.servers, self.owners.tobytes(), self.versions.tobytes()

    @cached_property
    def fingerprints(self) -> tuple[int, ...]:
        """Of the share of each server, in their order."""
        return tuple(
            share_fingerprint(server.id, np.flatnonzero(self.owners == number))
            for number, server in enumerate(self.servers)
        )

    def fingerprint_of(self, server_id: str) -> int:
        """Returns the fingerprint of a server's share.

        Raises:
            ValueError: The server is not in the route.
        """
        return self.fingerprints[self._number_of(server_id)]

    @property
    def is_even(self) -> bool:
        """Whether every bucket is where `even_owners` has it."""
        return np.array_equal(self.owners, even_owners(len(self.servers)))

    def buckets_of(self, server_id: str) -> NDArray[np.intp]:
        """Returns the buckets that a server owns, ascending.

        Raises:
            ValueError: The server is not in the route.
        """
        return np.flatnonzero(self.owners == self._number_of(server_id))

    def moved(self, buckets: Collection[int], *, to: ServerRef) -> "Route":
        """Returns the route after these buckets were given to a server, which may be new."""
        route = self.with_server(to)
        owners, versions = route.owners.copy(), route.versions.copy()
        owners[list(buckets)] = route._number_of(to.id)
        versions[list(buckets)] += 1
        return Route(route.servers, owners, versions)

    def with_server(self, server: ServerRef) -> "Route":
        """Returns the route with one server more, which owns nothing; itself if it is there."""
        if any(server.id == known.id for known in self.servers):
            return self
        return Route((*self.servers, server), self.owners, self.versions)

    def without_idle(self) -> "Route":
        """Returns the route without the servers that own nothing."""
        is_busy = np.isin(np.arange(len(self.servers)), self.owners)
        servers = tuple(s for s, busy in zip(self.servers, is_busy, strict=True) if busy)
        numbers = np.cumsum(is_busy) - 1  # of each server that stays
        return Route(servers, numbers[self.owners].astype(np.uint16), self.versions)

    def merged(self, other: "Route") -> "Route":
        """Returns what both know together: of each bucket, what its higher version says.

        Servers are those of this route, then what only the other has.

        Raises:
            ValueError: They are not of one job: a bucket has two owners in one version.
        """
        whole, theirs = self._beside(other)
        differs = (theirs != whole.owners) & (other.versions == whole.versions)
        if differs.any():
            bucket = int(differs.argmax())
            raise ValueError(
                "routes of one job must agree on the owner of a bucket in a version, got bucket "
                f"{bucket} in version {whole.versions[bucket]} on "
                f"{whole.servers[whole.owners[bucket]].address} and on "
                f"{whole.servers[theirs[bucket]].address}"
            )
        owners = np.where(other.versions > whole.versions, theirs, whole.owners)
        return Route(whole.servers, owners, np.maximum(other.versions, whole.versions))

    def is_of_job(self, other: "Route") -> bool:
        """Whether both may be of one job, which agree on each bucket in each version."""
        whole, theirs = self._beside(other)
        return bool(((theirs == whole.owners) | (other.versions != whole.versions)).all())

    def _beside(self, other: "Route") -> tuple["Route", NDArray[np.uint16]]:
        """Returns this route with the servers of both, and by their numbers the other's owners."""
        whole = self
        for server in other.servers:
            whole = whole.with_server(server)
        numbers = np.array([whole._number_of(s.id) for s in other.servers], np.uint16)
        return whole, numbers[other.owners]

    def _number_of(self, server_id: str) -> int:
        for number, server in enumerate(self.servers):
            if server.id == server_id:
                return number
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


def _of_buckets(numbers: NDArray[Any], dtype: type[np.generic], what: str) -> NDArray[Any]:
    if numbers.shape != (NUM_BUCKETS,) or numbers.dtype != dtype:
        raise ValueError(
            f"a route needs one {dtype.__name__} {what} for each of {NUM_BUCKETS} buckets, got "
            f"{numbers.dtype} {list(numbers.shape)}"
        )
    kept = numbers.copy()
    kept.setflags(write=False)
    return kept


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
