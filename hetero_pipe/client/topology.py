"""Topology: the servers of a job and who owns what, as one client knows it by now."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hetero_pipe.client.connect import Connection
from hetero_pipe.errors import HeteroPipeError, RouteMismatch
from ps_server.route import Route, ServerRef

__all__ = ["Place", "Topology"]

logger = logging.getLogger(__name__)

# How often buckets may have moved again while servers are asked.
MAX_ROUNDS = 20
PROBE_SECONDS = 1.0  # how long a server may take to say what it knows of another


@dataclass(frozen=True, eq=False)
class Place:
    """What is known at one moment.

    Attributes:
        route: Who owns which bucket.
        connections: To its servers, in its order. Those to come are appended, so that
            a server's number stays.
    """

    route: Route
    connections: tuple[Connection, ...]

    @cached_property
    def active(self) -> Mapping[int, Connection]:
        """The servers that own something, by number."""
        owners = set(self.route.owners.tolist())
        return {n: each for n, each in enumerate(self.connections) if n in owners}

    def share(self, server: int) -> int:
        """Returns the fingerprint of what a server owns."""
        return self.route.fingerprints[server]


class Topology:
    """Learns from servers' refusals where buckets have moved. May be used from any thread.

    Args:
        route: Of the job.
        connections: To its servers, in its order; owned from now on.
        connect: Makes a connection to a server that a route names.
        enter: Called with what will be known and a connection to a server that has come to
            own something, before anything else is asked of it.
        leave: Likewise, to one that owns nothing any more; it must not raise.
    """

    def __init__(
        self,
        route: Route,
        connections: Sequence[Connection],
        *,
        connect: Callable[[ServerRef], Connection],
        enter: Callable[[Place, Connection], None],
        leave: Callable[[Place, int], None],
    ) -> None:
        self._connect = connect
        self._enter = enter
        self._leave = leave
        self._lock = threading.Lock()  # guards that one learns at a time, and the rest
        self._known = {connection.ref.id: connection for connection in connections}
        self._now = Place(route, tuple(connections))
        for connection in connections:
            self._watch(connection)

    @property
    def now(self) -> Place:
        """What is known now."""
        return self._now

    def settle(self, refused: Mapping[int, RouteMismatch]) -> None:
        """Learns why servers have refused, so that they need not do so again.

        A server that was given buckets and does not know it yet is told, by the route of
        who gave them.

        Args:
            refused: The refusal of each server, by its number.

        Raises:
            RouteMismatch: That of a server whose route is of another job, or that owns
                other buckets than any route says.
            ServerError: A server failed or did not answer.
        """
        with self._lock:
            if not refused:
                return
            for _ in range(MAX_ROUNDS):
                if self._learn(refused):
                    return
            raise next(iter(refused.values()))

    def close(self) -> None:
        """Gives up all connections."""
        for connection in self._known.values():
            connection.data.close()

    def _watch(self, connection: Connection) -> None:
        if connection.link is not None:
            connection.link.has_left = lambda: self._has_left(connection.ref.id)

    def _has_left(self, server_id: str) -> bool:
        """Asks the other servers whether one that is away owns nothing any more."""
        place = self._now
        route = place.route
        for connection in place.active.values():
            if connection.ref.id == server_id or connection.link is None:
                continue
            try:
                told = connection.link.transport.stats(seconds=PROBE_SECONDS).result().route
            except HeteroPipeError:  # it may be away, too
                continue
            if told is not None and route.is_of_job(told):
                route = route.merged(told)
        return not len(route.buckets_of(server_id))

    def _learn(self, refused: Mapping[int, RouteMismatch]) -> bool:
        """Asks servers once; returns whether what they said hangs together, and is known now."""
        before, refusal = self._now, next(iter(refused.values()))
        place = self._told(refused, refusal)
        new = [number for number in place.active if number not in before.active]
        for number in [n for n in place.active if n in refused or n in new]:
            control = place.connections[number].control
            if control.stats().result().share == place.share(number):
                continue
            place = self._merged(place, control.take(place.route).result(), refusal)
            if control.stats().result().share != place.share(number):
                if place.route == before.route:  # nothing was learned of anybody
                    raise refusal
                return False
        try:
            for number in new:
                self._enter(place, place.connections[number])
        except RouteMismatch as error:  # buckets have moved again meanwhile
            logger.debug("%s", error)
            return False
        self._now = place
        if place.route != before.route:
            logger.info("buckets have moved: %s", _shares(place))
        for number in before.active:
            if number not in place.active:
                self._leave(place, number)
        return True

    def _told(self, refused: Mapping[int, RouteMismatch], refusal: RouteMismatch) -> Place:
        """Returns what is known with what those who refused know; of others, if that is nothing."""
        before = place = self._now
        for number in refused:
            try:
                told = before.connections[number].control.stats().result().route
            except RouteMismatch:  # it has left: others know where its buckets are
                continue
            place = self._merged(place, told, refusal)
        for number, connection in before.active.items():
            if number not in refused and place.route == before.route:
                place = self._merged(place, connection.control.stats().result().route, refusal)
        return place

    def _merged(self, place: Place, told: Route | None, refusal: RouteMismatch) -> Place:
        """Returns what is known with a route that was told, connected to its servers.

        Raises:
            RouteMismatch: It is of another job.
        """
        if told is None:
            return place
        try:
            route = place.route.merged(told)
        except ValueError:
            raise refusal from None
        for ref in route.servers[len(place.connections) :]:
            if ref.id not in self._known:
                self._known[ref.id] = self._connect(ref)
                self._watch(self._known[ref.id])
        return Place(route, tuple(self._known[ref.id] for ref in route.servers))


def _shares(place: Place) -> str:
    return ", ".join(
        f"{connection.ref.address} {int((place.route.owners == number).sum())}"
        for number, connection in place.active.items()
    )
