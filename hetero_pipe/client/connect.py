"""Finding the servers: waiting for them and agreeing on the route."""

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hetero_pipe.client.embedded import ADDRESS, EmbeddedTransport
from hetero_pipe.client.transport import ControlPlane, DataPlane, ServerStats
from hetero_pipe.client.transport.grpc import GrpcTransport
from hetero_pipe.errors import ConfigError, ServerUnavailable
from hetero_pipe.units import format_seconds
from ps_server.route import Route, ServerRef

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Connection:
    """One server as a client holds it."""

    ref: ServerRef
    data: DataPlane
    control: ControlPlane


def connect_embedded() -> tuple[Route, list[Connection]]:
    """Returns the route to a store of this process."""
    transport = EmbeddedTransport()
    ref = ServerRef(transport.stats().result().id, ADDRESS)
    return Route((ref,)), [Connection(ref, transport, transport)]


def connect_servers(
    addresses: Sequence[str], *, connect_timeout: float
) -> tuple[Route, list[Connection]]:
    """Waits for the servers and returns the route and a connection to each, in its order.

    Args:
        addresses: HOST:PORT of each server.
        connect_timeout: Seconds to wait for all of them.

    Raises:
        ConfigError: An address is malformed, or two name the same server.
        ServerUnavailable: A server did not answer in time.
        RouteMismatch: The servers disagree on the route.
    """
    _check_addresses(addresses)
    if not (math.isfinite(connect_timeout) and connect_timeout >= 0):
        raise ConfigError(
            f"connect_timeout is seconds, at least 0, got connect_timeout={connect_timeout}"
        )
    transports = [GrpcTransport(address) for address in addresses]
    try:
        stats = _wait_for_all(transports, connect_timeout)
        route = _agree_on_route(addresses, stats)
    except BaseException:
        for transport in transports:
            transport.close()
        raise
    by_id = {s.id: t for s, t in zip(stats, transports, strict=True)}
    return route, [Connection(ref, by_id[ref.id], by_id[ref.id]) for ref in route.servers]


def _check_addresses(addresses: Sequence[str]) -> None:
    if not addresses:
        raise ConfigError("servers must name at least one HOST:PORT, got none; None is embedded")
    for address in addresses:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(
                f"a server is HOST:PORT with a port from 1 to 65535, got {address!r}; "
                "for example servers=['127.0.0.1:7000']"
            )


def _wait_for_all(transports: Sequence[GrpcTransport], seconds: float) -> list[ServerStats]:
    deadline = time.monotonic() + seconds
    found: dict[str, ServerStats] = {}
    for transport in transports:  # name all that are missing before waiting for the first
        try:
            found[transport.address] = transport.wait(0)
        except ServerUnavailable as error:
            logger.warning(
                "server %s is not reachable, waiting up to %s for it; start it with: "
                "ps-server --listen %s",
                transport.address,
                format_seconds(seconds),
                transport.address,
            )
            logger.debug("%s", error)
    for transport in transports:
        if transport.address in found:
            continue
        try:
            found[transport.address] = transport.wait(max(0.0, deadline - time.monotonic()))
        except ServerUnavailable as error:
            raise ServerUnavailable(
                f"server {transport.address} must be reachable, got no answer within "
                f"{format_seconds(seconds)}; start it with: "
                f"ps-server --listen {transport.address}"
            ) from error
        logger.info("server %s is there", transport.address)
    return [found[transport.address] for transport in transports]


def _agree_on_route(addresses: Sequence[str], stats: Sequence[ServerStats]) -> Route:
    """Returns the route that the servers hold, or a new one."""
    refs = [ServerRef(s.id, address) for address, s in zip(addresses, stats, strict=True)]
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
