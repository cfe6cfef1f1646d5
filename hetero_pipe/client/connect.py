"""Finding the servers: waiting for them and agreeing on the route."""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hetero_pipe.client.embedded import ADDRESS, EmbeddedTransport
from hetero_pipe.client.link import Link
from hetero_pipe.client.patience import Retry
from hetero_pipe.client.retry import RetryingTransport
from hetero_pipe.client.servers import Servers, servers_of
from hetero_pipe.client.transport import ControlPlane, DataPlane, RangePlane, ServerStats
from hetero_pipe.client.transport.grpc import GrpcTransport
from hetero_pipe.errors import ConfigError, ServerUnavailable
from hetero_pipe.units import format_seconds
from ps_server.route import Route, ServerRef

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # how long a server is waited for until its file is read again
FILE_SECONDS = 0.1  # between two looks for a file that is not there
PROBE_SECONDS = 1.0  # how long a server may take to say who it is


@dataclass(frozen=True)
class Connection:
    """One server as a client holds it; a store of this process hands out no ranges."""

    ref: ServerRef
    data: DataPlane
    control: ControlPlane
    ranges: RangePlane | None = None  # of a server
    link: Link | None = None  # of one that may be away


@dataclass(frozen=True)
class Connected:
    """The servers of a job, as they were found.

    Attributes:
        route: Who owns what.
        connections: To its servers, in its order.
        connect: Makes a connection to another, which a route names; raises
            ServerUnavailable if it is not found in time.
    """

    route: Route
    connections: Sequence[Connection]
    connect: Callable[[ServerRef], Connection]


def connect_embedded() -> Connected:
    """Returns the route to a store of this process."""
    transport = EmbeddedTransport()
    ref = ServerRef(transport.stats().result().id, ADDRESS)
    return Connected(Route((ref,)), [Connection(ref, transport, transport)], _connect_to_none)


def _connect_to_none(ref: ServerRef) -> Connection:
    raise AssertionError(f"tables of this process stay here, got a route to {ref}")


def find_servers(
    servers: Sequence[str], *, connect_timeout: float
) -> list[tuple[GrpcTransport, ServerStats]]:
    """Waits for the servers and returns a connection to each, and what it said.

    Raises:
        ConfigError, ServerUnavailable: As `connect_servers`.
    """
    search = _Search(servers_of(servers), seconds=connect_timeout)
    try:
        return search.run()
    except BaseException:
        search.close()
        raise


def connect_servers(servers: Sequence[str], *, connect_timeout: float, retry: Retry) -> Connected:
    """Waits for the servers and returns the route and a connection to each, in its order.

    Calls to a server that is durable ride through its absence from then on.

    Args:
        servers: HOST:PORT of each server; or one alone, @FILE, that names them.
        connect_timeout: Seconds to wait for all of them.
        retry: How calls are repeated.

    Raises:
        ConfigError: An address is malformed, two name the same server, or there is
            no file.
        ServerUnavailable: A server did not answer in time.
        RouteMismatch: The servers disagree on the route.
    """
    for name, seconds in (("connect_timeout", connect_timeout), ("retry_seconds", retry.seconds)):
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ConfigError(f"{name} is seconds, at least 0, got {name}={seconds}")
    search = _Search(servers_of(servers), seconds=connect_timeout)
    may_grow = search.servers.may_move  # a supervisor's file names those that will own something
    try:
        found = search.run()
        refs = [ServerRef(stats.id, transport.address) for transport, stats in found]
        route = _agree_on_route(refs, [stats for _, stats in found], may_grow=may_grow)
    except BaseException:
        search.close()
        raise
    by_id = {
        stats.id: _connection(transport, stats, _Located(search.servers, position), retry)
        for position, (transport, stats) in enumerate(found)
    }
    connections = [replace(by_id[ref.id], ref=ref) for ref in route.servers]

    def connect(ref: ServerRef) -> Connection:
        return _connect_to(ref, search.servers, connect_timeout=connect_timeout, retry=retry)

    return Connected(route, connections, connect)


def _connection(
    transport: GrpcTransport, stats: ServerStats, located: "_Located", retry: Retry
) -> Connection:
    ref = ServerRef(stats.id, transport.address)
    if not (stats.is_durable and retry.seconds):
        return Connection(ref, transport, transport, transport)
    link = Link(stats.id, transport, locate=located, retry=retry)
    patient = RetryingTransport(link)
    return Connection(ref, patient, patient, patient, link)


def _connect_to(
    ref: ServerRef, servers: Servers, *, connect_timeout: float, retry: Retry
) -> Connection:
    """Connects to a server that a route names, where a servers file says or the route does.

    Raises:
        ServerUnavailable: It is at none of these in time.
    """
    deadline = time.monotonic() + connect_timeout
    while True:
        listed = _listed(servers)
        for address in dict.fromkeys((*reversed(listed), ref.address)):  # new ones come last
            transport = GrpcTransport(address)
            try:
                stats = transport.wait(PROBE_SECONDS)
                if stats.id == ref.id:
                    position = listed.index(address) if address in listed else None
                    return _connection(transport, stats, _Located(servers, position), retry)
            except ServerUnavailable as error:
                logger.debug("%s", error)
            transport.close()
        if time.monotonic() >= deadline:
            raise ServerUnavailable(
                f"server {ref.address}, which has come to own rows of this job, must be reachable, "
                f"got no answer by its id {ref.id} within {format_seconds(connect_timeout)}, there "
                f"or at {', '.join(listed)}; see whether it runs, and where"
            )
        time.sleep(FILE_SECONDS)


def _listed(servers: Servers) -> tuple[str, ...]:
    try:
        return servers.addresses()
    except ConfigError as error:  # its file is being written, or its disk is away
        logger.debug("%s", error)
        return ()


@dataclass(frozen=True)
class _Located:
    """Tells where one server is by now. Nobody says so where it has no position."""

    servers: Servers
    position: int | None

    def __call__(self) -> str | None:
        """Returns its HOST:PORT, None if nobody says so."""
        if not self.servers.may_move or self.position is None:
            return None
        try:
            return self.servers.addresses()[self.position]
        except (ConfigError, IndexError) as error:  # it is being written, or its disk is away
            logger.debug("%s", error)
            return None


class _Search:
    """Finds all servers, wherever they are said to be by the time that they are found.

    Args:
        servers: Says where.
        seconds: That it may take.
    """

    def __init__(self, servers: Servers, *, seconds: float) -> None:
        self.servers = servers
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._transports: dict[int, GrpcTransport] = {}
        self._found: dict[int, tuple[GrpcTransport, ServerStats]] = {}

    def run(self) -> list[tuple[GrpcTransport, ServerStats]]:
        """Returns a connection to each, and what it said.

        Raises:
            ConfigError: Nobody says in time where they are.
            ServerUnavailable: A server did not answer in time.
        """
        addresses = self._addresses()
        for position, address in enumerate(addresses):  # name all that are missing, then wait
            try:
                self._ask(position, address, 0)
            except ServerUnavailable as error:
                logger.warning(
                    "server %s is not reachable, waiting up to %s for it; start it with: "
                    "ps-server --listen %s",
                    address,
                    format_seconds(self._seconds),
                    address,
                )
                logger.debug("%s", error)
        while (missing := self._first_missing(addresses)) is not None:
            self._wait_for(missing, addresses[missing])
            addresses = self._addresses()
        return [self._found[position] for position in range(len(addresses))]

    def _first_missing(self, addresses: Sequence[str]) -> int | None:
        for position, address in enumerate(addresses):
            found = self._found.get(position)
            if found is None or found[0].address != address:
                return position
        return None

    def _ask(self, position: int, address: str, seconds: float) -> None:
        transport = self._transports.get(position)
        if transport is None or transport.address != address:
            if transport is not None:
                transport.close()
            transport = self._transports[position] = GrpcTransport(address)
        self._found[position] = transport, transport.wait(seconds)

    def _wait_for(self, position: int, address: str) -> None:
        """Waits for a server, but no longer than until it may be somewhere else."""
        left = max(0.0, self._deadline - time.monotonic())
        may_move = self.servers.may_move
        try:
            self._ask(position, address, min(left, LOOK_SECONDS) if may_move else left)
        except ServerUnavailable as error:
            if may_move and time.monotonic() < self._deadline:
                return
            raise ServerUnavailable(
                f"server {address} must be reachable, got no answer within "
                f"{format_seconds(self._seconds)}; start it with: ps-server --listen {address}"
            ) from error
        logger.info("server %s is there", address)

    def _addresses(self) -> tuple[str, ...]:
        """Returns where the servers are; waits until somebody says it.

        Raises:
            ConfigError: Nobody does in time.
        """
        is_told = False
        while True:
            try:
                return self.servers.addresses()
            except ConfigError as error:
                if not self.servers.may_move or time.monotonic() >= self._deadline:
                    raise
                if not is_told:
                    seconds = format_seconds(self._seconds)
                    logger.warning("waiting up to %s to be told of servers: %s", seconds, error)
                is_told = True
            time.sleep(FILE_SECONDS)

    def close(self) -> None:
        """Gives up all connections."""
        for transport in self._transports.values():
            transport.close()


def _agree_on_route(
    refs: Sequence[ServerRef], stats: Sequence[ServerStats], *, may_grow: bool
) -> Route:
    """Returns the route that the servers hold, or a new one.

    Those that know it may own nothing, and new ones if `may_grow`.
    """
    try:
        # By id: workers that start at once agree, whatever they call the servers.
        route = Route(tuple(sorted(refs, key=lambda ref: ref.id)))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    held = _merged([s.route for s in stats if s.route is not None])
    by_id = {ref.id: ref for ref in refs}
    if held is None or any(server.id not in by_id for server in held.servers):
        return route
    owning = {server.id for server in held.servers}
    idle = [s for s in stats if s.id not in owning]
    if any(not may_grow if s.route is None else not held.is_of_job(s.route) for s in idle):
        return route
    grown = replace(held, servers=tuple(by_id[ref.id] for ref in held.servers))
    for ref in refs:
        grown = grown.with_server(ref)
    return grown


def _merged(routes: Sequence[Route]) -> Route | None:
    """Returns what servers know together, without those of another job, who are refused later."""
    whole = routes[0] if routes else None
    for route in routes:
        if whole is not None and whole.is_of_job(route):
            whole = whole.merged(route)
    return None if whole is None else whole.without_idle()
