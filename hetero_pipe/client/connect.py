"""Finding the servers: waiting for them and agreeing on the route."""

import logging
import math
import time
from collections.abc import Sequence
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


@dataclass(frozen=True)
class Connection:
    """One server as a client holds it; a store of this process hands out no ranges."""

    ref: ServerRef
    data: DataPlane
    control: ControlPlane
    ranges: RangePlane | None = None


def connect_embedded() -> tuple[Route, list[Connection]]:
    """Returns the route to a store of this process."""
    transport = EmbeddedTransport()
    ref = ServerRef(transport.stats().result().id, ADDRESS)
    return Route((ref,)), [Connection(ref, transport, transport)]


def connect_servers(
    servers: Sequence[str], *, connect_timeout: float, retry: Retry
) -> tuple[Route, list[Connection]]:
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
    try:
        found = search.run()
        refs = [ServerRef(stats.id, transport.address) for transport, stats in found]
        route = _agree_on_route(refs, [stats for _, stats in found])
    except BaseException:
        search.close()
        raise
    by_id: dict[str, GrpcTransport | RetryingTransport] = {}
    for position, (transport, stats) in enumerate(found):
        by_id[stats.id] = transport
        if stats.is_durable and retry.seconds:
            located = _Located(search.servers, position)
            link = Link(stats.id, transport, locate=located, retry=retry)
            by_id[stats.id] = RetryingTransport(link)
    held = [(ref, by_id[ref.id]) for ref in route.servers]
    return route, [Connection(ref, each, each, each) for ref, each in held]


@dataclass(frozen=True)
class _Located:
    """Tells where one server is by now."""

    servers: Servers
    position: int

    def __call__(self) -> str | None:
        """Returns its HOST:PORT, None if nobody says so."""
        if not self.servers.may_move:
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


def _agree_on_route(refs: Sequence[ServerRef], stats: Sequence[ServerStats]) -> Route:
    """Returns the route that the servers hold, or a new one."""
    try:
        # By id: workers that start at once agree, whatever they call the servers.
        route = Route(tuple(sorted(refs, key=lambda ref: ref.id)))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    held = _merged([s.route for s in stats if s.route is not None])
    if held is not None and {s.id for s in held.servers} == {s.id for s in route.servers}:
        by_id = {ref.id: ref for ref in refs}
        route = replace(held, servers=tuple(by_id[ref.id] for ref in held.servers))
    return route


def _merged(routes: Sequence[Route]) -> Route | None:
    """Returns what servers know together, without those of another job, who are refused later."""
    whole = routes[0] if routes else None
    for route in routes:
        if whole is not None and whole.is_of_job(route):
            whole = whole.merged(route)
    return None if whole is None else whole.without_idle()
