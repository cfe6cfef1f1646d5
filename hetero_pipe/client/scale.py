"""Scaling: buckets move between the servers of a job, one set after the other, while it trains.

docs/scaling.md is the protocol; this is who drives it. It keeps nothing: one that is
interrupted, at any point, is begun again and finds from the servers what is left to do.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
import numpy as np

from hetero_pipe.client.connect import find_servers
from hetero_pipe.client.patience import Patience, Retry
from hetero_pipe.client.status import translate_status
from hetero_pipe.client.transport import IncomingMove, ServerStats
from hetero_pipe.client.transport.grpc import BULK_SECONDS, CALL_SECONDS, GrpcTransport
from hetero_pipe.errors import ConfigError, HeteroPipeError, ServerUnavailable
from ps_server.route import Route, ServerRef, plan_moves
from ps_server.spec import TableSpec
from ps_server.wire import (
    bytes_from_array,
    ps_pb2,
    ps_pb2_grpc,
    route_from_message,
)

__all__ = ["BucketsMoved", "ScaleStep", "check_tables", "move_buckets", "wait_until_left"]

logger = logging.getLogger(__name__)

ROWS_A_MOVE = 50_000
"""Of a set of buckets, about: the target journals them at once, while pushes to it wait."""

MAX_BUCKETS = 256  # of a set: a snapshot's
MAX_CATCH_UPS = 20  # of a move, until few pushes are left
FEW = 1  # pushes
LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class ScaleStep:
    """A set of buckets has moved.

    Attributes:
        num_done: Buckets that have moved so far.
        num_left: Buckets that are still to move.
        source: HOST:PORT where they were.
        target: HOST:PORT where they are.
        hold_seconds: How long pushes to the source waited for it.
    """

    num_done: int
    num_left: int
    source: str
    target: str
    hold_seconds: float


@dataclass(frozen=True)
class BucketsMoved:
    """What scaling came to.

    Attributes:
        num_buckets: That moved.
        seconds: That it took.
        longest_hold: The longest that pushes to a server waited for a move, in seconds.
        num_failures: Times that a server was away, or a move began again.
        route: Who owns what now.
    """

    num_buckets: int
    seconds: float
    longest_hold: float
    num_failures: int
    route: Route


def move_buckets(
    servers: Sequence[str],
    num_owners: int,
    *,
    retry: Retry,
    connect_timeout: float = 40.0,
    on_step: Callable[[ScaleStep], None] = lambda step: None,
) -> BucketsMoved:
    """Moves buckets until the first servers own equal shares, and the others nothing.

    A server that dies meanwhile is waited for, and what was under way begins again.

    Args:
        servers: HOST:PORT of each, old and new; or `["@FILE"]`. All that own something
            must be among them.
        num_owners: How many of them, from the first, shall own something.
        retry: How long to wait for a server that is away, since the last move.
        connect_timeout: Seconds to find all servers.
        on_step: Called after each move.

    Raises:
        ConfigError: There are not so many servers, no table on any, or one that owns
            something is not among them.
        ServerError: A server refused, or is away for too long.
    """
    start, patience = time.perf_counter(), Patience(retry)
    num_done, longest_hold, num_failures = 0, 0.0, 0
    while True:
        try:
            with _Drive(servers, connect_timeout=connect_timeout) as drive:
                drive.finish_what_was_begun()
                for num_moved, num_left, ends, held in drive.moves(num_owners):
                    num_done += num_moved
                    longest_hold = max(longest_hold, held)
                    patience = Patience(retry)
                    on_step(ScaleStep(num_done, num_left, *ends, held))
                seconds = time.perf_counter() - start
                return BucketsMoved(num_done, seconds, longest_hold, num_failures, drive.route)
        except ConfigError:
            raise
        except HeteroPipeError as error:
            delay = patience.next_delay()
            if delay is None:
                raise
            num_failures += 1
            logger.warning("a move begins again: %s", error)
            time.sleep(delay)


def check_tables(servers: Sequence[str], *, connect_timeout: float = 40.0) -> None:
    """Refuses servers that nobody has made a table on.

    Raises:
        ConfigError: None has one, or they are of several jobs.
        ServerUnavailable: A server did not answer in time.
    """
    with _Drive(servers, connect_timeout=connect_timeout) as drive:
        drive.learn()


def wait_until_left(addresses: Sequence[str], *, seconds: float) -> bool:
    """Waits until no worker is a member of some servers; returns whether they have left in time."""
    deadline = time.monotonic() + seconds
    for address in addresses:
        transport = GrpcTransport(address)
        try:
            while transport.wait(max(0.0, deadline - time.monotonic())).num_members:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(LOOK_SECONDS)
        except ServerUnavailable:  # it has left itself
            continue
        finally:
            transport.close()
    return True


class _Server:
    """One server, as it is driven. Its calls raise `ServerError`."""

    def __init__(self, transport: GrpcTransport, stats: ServerStats) -> None:
        self.transport = transport
        self.stats = stats
        self.ref = ServerRef(stats.id, transport.address)
        self._moves = ps_pb2_grpc.MovesStub(transport.channel)

    def ask_stats(self) -> ServerStats:
        self.stats = self.transport.stats().result()
        return self.stats

    def call(self, method: str, request: Any) -> Any:  # messages are built without types
        """Makes a call of the Moves service."""
        is_bulk = method in ("Copy", "Stage")
        try:
            return getattr(self._moves, method)(
                request, timeout=BULK_SECONDS if is_bulk else CALL_SECONDS
            )
        except grpc.RpcError as error:
            raise translate_status(error, self.ref.address) from error


class _Drive:
    """One attempt at it, by connections of its own.

    Attributes:
        route: What servers know together.
    """

    route: Route

    def __init__(self, servers: Sequence[str], *, connect_timeout: float) -> None:
        found = find_servers(servers, connect_timeout=connect_timeout)
        self._servers = [_Server(transport, stats) for transport, stats in found]
        self._by_id = {server.ref.id: server for server in self._servers}

    def __enter__(self) -> "_Drive":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for server in self._servers:
            server.transport.close()

    def finish_what_was_begun(self) -> None:
        """Ends each move of another drive that was interrupted, one way or the other."""
        self.learn()
        for server in self._servers:
            for incoming in server.stats.incoming:
                self._finish(server, incoming)
        self.learn()

    def _finish(self, target: _Server, incoming: IncomingMove) -> None:
        owner = self._by_id[self.route.servers[self.route.owners[incoming.buckets[0]]].id]
        if owner is not target:  # if it is, it was given already, as the route says
            owner.call("Unhold", ps_pb2.UnholdRequest(move=incoming.move))
            self.learn()  # it may have been given until then
        where = incoming.buckets
        is_given = (
            len(incoming.versions) > 0
            and (self.route.versions[where] == incoming.versions).all()
            and (self.route.owners[where] == self._number_of(target)).all()
        )
        if is_given:
            target.transport.take(self.route).result()
        else:
            target.call("Discard", ps_pb2.DiscardRequest(move=incoming.move))

    def _number_of(self, server: _Server) -> int:
        ids = [ref.id for ref in self.route.servers]
        return ids.index(server.ref.id) if server.ref.id in ids else -1

    def learn(self) -> None:
        """Asks all servers what they know.

        Raises:
            ConfigError: None has a table, some are of different jobs, or one that owns
                something is not among them.
        """
        routes = [r for r in (each.ask_stats().route for each in self._servers) if r is not None]
        if not routes:
            raise ConfigError(
                "the servers of a job that trains have tables, got none on "
                f"{', '.join(each.ref.address for each in self._servers)}; wait until training "
                "has begun"
            )
        known = routes[0]
        try:
            for route in routes[1:]:
                known = known.merged(route)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        missing = [ref.address for ref in known.without_idle().servers if ref.id not in self._by_id]
        if missing:
            raise ConfigError(
                f"all servers that own something must be named, got none for {', '.join(missing)} "
                f"among {', '.join(each.ref.address for each in self._servers)}"
            )
        self.route = known

    def moves(self, num_owners: int) -> Iterator[tuple[int, int, tuple[str, str], float]]:
        """Makes the moves that are left, and yields of each: its buckets, those left, ends, hold.

        Raises:
            ConfigError: There are not so many servers.
        """
        if not 0 < num_owners <= len(self._servers):
            raise ConfigError(
                f"buckets go to 1 to {len(self._servers)} servers, got num_owners={num_owners}"
            )
        owners = self._servers[:num_owners]
        for server in owners:
            self.route = self.route.with_server(server.ref)
        plan = plan_moves(self.route, [server.ref.id for server in owners])
        ends: dict[tuple[str, str], list[int]] = {}
        for move in plan:
            ends.setdefault((move.source, move.target), []).append(move.bucket)
        num_left = len(plan)
        for (source_id, target_id), buckets in ends.items():
            source, target = self._by_id[source_id], self._by_id[target_id]
            self._make_tables(source, target)
            size = _size(source.stats)
            for at in range(0, len(buckets), size):
                part = buckets[at : at + size]
                held = self._move(source, target, part)
                num_left -= len(part)
                yield len(part), num_left, (source.ref.address, target.ref.address), held

    def _make_tables(self, source: _Server, target: _Server) -> None:
        for name, stats in source.stats.tables.items():
            spec: TableSpec = stats.spec
            if name not in target.stats.tables:
                logger.debug("table %s is new on server %s", name, target.ref.address)
            target.transport.create_table(spec, self.route).result()

    def _move(self, source: _Server, target: _Server, buckets: Sequence[int]) -> float:
        """Moves buckets, and returns how long they were held."""
        wanted = bytes_from_array(np.array(buckets, np.uint16))
        share = self.route.fingerprint_of(source.ref.id)
        pieces = source.call("Copy", ps_pb2.CopyRequest(route=share, buckets=wanted))
        try:
            move = next(pieces).move
            relay = _relayed(move, wanted, pieces)
            target.call("Stage", relay)
        except grpc.RpcError as error:
            raise translate_status(error, source.ref.address) from error
        finally:
            pieces.cancel()
        start = 0
        for _ in range(MAX_CATCH_UPS):
            tail = source.call("CatchUp", ps_pb2.CatchUpRequest(move=move, start=start))
            if tail.pushes:
                request = ps_pb2.StagePushesRequest(move=move, start=start, pushes=tail.pushes)
                target.call("StagePushes", request)
            start += len(tail.pushes)
            if len(tail.pushes) <= FEW:
                break
        began = time.perf_counter()
        tail = source.call("Hold", ps_pb2.HoldRequest(move=move, start=start))
        target.call(
            "Prepare",
            ps_pb2.PrepareRequest(start=start, pushes=tail.pushes, prepared=tail.prepared),
        )
        to = ps_pb2.ServerRef(id=target.ref.id, address=target.ref.address)
        given = source.call("Give", ps_pb2.GiveRequest(move=move, target=to))
        held = time.perf_counter() - began
        self.route = self.route.merged(route_from_message(given.route))
        target.transport.take(self.route).result()
        return held


def _relayed(move: int, buckets: bytes, pieces: Iterator[Any]) -> Iterator[Any]:
    """Yields the rows that a source copies as a target stages them."""
    yield ps_pb2.StageRequest(move=move, buckets=buckets)
    for piece in pieces:
        yield ps_pb2.StageRequest(table=piece.table, name=piece.name, data=piece.data)
    yield ps_pb2.StageRequest()


def _size(stats: ServerStats) -> int:
    """Returns how many buckets of a server move at a time."""
    assert stats.route is not None, "what moves is of tables"
    num_owned = len(stats.route.buckets_of(stats.id))
    num_rows = sum(table.num_rows for table in stats.tables.values())
    return max(1, min(MAX_BUCKETS, ROWS_A_MOVE * num_owned // max(num_rows, 1)))
