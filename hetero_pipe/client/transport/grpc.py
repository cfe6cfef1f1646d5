"""gRPC: the portable way to a server, for both planes."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
from numpy.typing import NDArray

from hetero_pipe.client.status import translate_status
from hetero_pipe.client.transport.protocol import (
    Gradients,
    IncomingMove,
    Keys,
    Reply,
    ServerStats,
    ServerTrace,
    TraceAction,
)
from hetero_pipe.errors import ServerUnavailable
from ps_server.route import Route
from ps_server.spec import TableSpec
from ps_server.store import WAIT_SECONDS, Ask, Lease, LeaseKind, TableStats
from ps_server.wire import (
    MAX_MESSAGE_BYTES,
    array_from_bytes,
    bytes_from_array,
    ps_pb2,
    ps_pb2_grpc,
    route_from_message,
    route_to_message,
    spans_from_message,
    spec_from_message,
    spec_to_message,
)

Value = TypeVar("Value")

CHUNK_BYTES = 1 << 20

# A pull or push takes milliseconds; a server that needs longer is stuck or gone.
CALL_SECONDS = 60.0
# Where a call is repeated, it may be so sooner: it is safe, and a server that was stopped for a
# while (SIGSTOP, a host that swaps) answers the next attempt.
ATTEMPT_SECONDS = 20.0
# One that waits for another worker takes as long as that one's step. The server sees by its stream
# whether that one lives, and ends the wait if not; that the server lives is seen by keep-alive.
LONG_CALL_SECONDS = WAIT_SECONDS + CALL_SECONDS
# A save or load moves a whole table; it fails by the connection, hardly ever by this.
BULK_SECONDS = 3600.0
RETRY_SECONDS = 0.2
PROBE_SECONDS = 1.0

OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Trainers may start before servers: knock often, so that training starts when they do.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 500),
    # A connection that is made anew shares nothing with the one that it takes the place of.
    ("grpc.use_local_subchannel_pool", 1),
    # Servers are named by address; a proxy of the environment has no part in it.
    ("grpc.enable_http_proxy", 0),
    # A call is repeated by `client.retry` alone, which knows where that is safe. grpc does so by
    # itself for calls that it takes for unprocessed, and where a service config says so.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    # A host that vanished without closing its connection is noticed.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # or its 60 s count
    ("grpc.http2.max_pings_without_data", 0),  # no limit: a call that waits for a worker is silent
]


class _Call(Reply[Value]):
    """A call under way, and how its answer is read."""

    # grpc has no stubs
    def __init__(self, future: Any, address: str, decode: Callable[[Any], Value]) -> None:
        self._future = future
        self._address = address
        self._decode = decode

    def result(self) -> Value:
        try:
            reply = self._future.result()
        except grpc.FutureCancelledError as error:
            raise ServerUnavailable(
                f"a call must end before its connection is closed, the one to server "
                f"{self._address} was given up"
            ) from error
        except grpc.RpcError as error:
            raise translate_status(error, self._address) from error
        return self._decode(reply)


class _Joining(Reply[bool]):
    """A stream that stays open: the first answer says that its worker is a member.

    Nobody reads on: it ends when the server or the channel does, or the process.
    """

    def __init__(self, stream: Any, address: str, seconds: float) -> None:  # grpc has no stubs
        self._stream = stream
        self._address = address
        self._seconds = seconds

    def result(self) -> bool:
        # The stream has no deadline, its first answer has one.
        give_up = threading.Timer(self._seconds, self._stream.cancel)
        give_up.daemon = True
        give_up.start()
        try:
            return bool(next(self._stream).is_back)
        except grpc.RpcError as error:
            raise translate_status(error, self._address) from error
        finally:
            give_up.cancel()


class GrpcTransport:
    """Both planes to the server at `address`. Connects at the first call.

    It knows the tables that it created or attached to by their ids, so that one
    that another trainer dropped and created anew is not taken for them.

    Attributes:
        address: HOST:PORT.
        call_seconds: How long a call may take that waits for no other worker.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.call_seconds = CALL_SECONDS
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._stub = ps_pb2_grpc.ParameterServerStub(self._channel)
        self._ids: dict[str, int] = {}
        self._membership: Any = None  # the stream of `join`; grpc cancels one that nobody holds

    @property
    def channel(self) -> Any:  # grpc has no stubs
        """For services that no client asks."""
        return self._channel

    def renewed(self, address: str) -> "GrpcTransport":
        """Returns one with a connection of its own to the same server, wherever that is now.

        It knows the tables that this one knows, and has not joined.
        """
        transport = GrpcTransport(address)
        transport.call_seconds = self.call_seconds
        transport._ids = self._ids
        return transport

    def pull(
        self,
        route: int,
        keys: Keys,
        *,
        insert: bool,
        rank: int | None = None,
        after_step: int | None = None,
        step: int = 0,
    ) -> Reply[list[NDArray[np.float32]]]:
        request = ps_pb2.PullRequest(
            route=route, insert=insert, rank=rank, after_step=after_step, step=step
        )
        for name, wanted in keys.items():
            request.tables.add(table=name, keys=bytes_from_array(wanted), id=self._ids.get(name, 0))
        sizes = [len(wanted) for wanted in keys.values()]
        return self._start(
            self._stub.Pull,
            request,
            lambda reply: _rows(reply, sizes),
            seconds=self.call_seconds if after_step is None else LONG_CALL_SECONDS,
        )

    def push(
        self,
        route: int,
        gradients: Gradients,
        *,
        step: int,
        rank: int | None = None,
        weight: float | None = None,
        worker: int = 0,
        sequence: int = 0,
    ) -> Reply[None]:
        # Parts are made in the request: one that is made before it is copied into it.
        request = ps_pb2.PushRequest(
            route=route, step=step, rank=rank, weight=weight, worker=worker, sequence=sequence
        )
        for name, (keys, gradient) in gradients.items():
            request.tables.add(
                table=name,
                keys=bytes_from_array(keys),
                gradients=bytes_from_array(gradient),
                id=self._ids.get(name, 0),
            )
        return self._start(
            self._stub.Push,
            request,
            _nothing,
            seconds=self.call_seconds if weight is None else LONG_CALL_SECONDS,
        )

    def stats(self, *, seconds: float | None = None) -> Reply[ServerStats]:
        """Asks what the server is and holds; waits so long for it, `call_seconds` if None."""
        return self._start(self._stub.Stats, ps_pb2.StatsRequest(), _server_stats, seconds=seconds)

    def create_table(self, spec: TableSpec, route: Route) -> Reply[TableStats]:
        request = ps_pb2.CreateTableRequest(
            spec=spec_to_message(spec), route=route_to_message(route)
        )
        return self._start(self._stub.CreateTable, request, self._attached)

    def _attached(self, message: ps_pb2.TableStats) -> TableStats:
        stats = _table_stats(message)
        self._ids[stats.spec.name] = stats.id
        return stats

    def drop_table(self, name: str) -> Reply[None]:
        self._ids.pop(name, None)
        return self._start(self._stub.DropTable, ps_pb2.DropTableRequest(table=name), _nothing)

    def freeze(self, route: int) -> Reply[int]:
        request = ps_pb2.FreezeRequest(route=route)
        return self._start(self._stub.Freeze, request, lambda reply: int(reply.freeze))

    def release(self, freeze: int) -> Reply[None]:
        return self._start(self._stub.Release, ps_pb2.ReleaseRequest(freeze=freeze), _nothing)

    def save(
        self, route: int, table: str, *, freeze: int | None = None
    ) -> Iterator[tuple[str, Iterable[bytes]]]:
        request = ps_pb2.SaveRequest(
            route=route, table=table, id=self._ids.get(table, 0), freeze=freeze or 0
        )
        try:
            stream = _uninterrupted(lambda: self._stub.Save(request, timeout=BULK_SECONDS))
        except ValueError as error:  # the channel is closed
            raise closed(self.address) from error
        pieces = _Pieces(stream, self.address)
        while (name := pieces.next_name()) is not None:
            yield name, pieces.of(name)
            for _ in pieces.of(name):  # what the caller did not want of this one
                pass

    def load(self, route: int, table: str, paths: Sequence[Path]) -> Reply[int]:
        first = ps_pb2.LoadRequest(
            route=route, table=table, num_snapshots=len(paths), id=self._ids.get(table, 0)
        )
        requests = _load_requests(first, paths)
        return self._start(
            self._stub.Load, requests, lambda reply: int(reply.num_rows), seconds=BULK_SECONDS
        )

    def trace(self, action: TraceAction) -> Reply[ServerTrace]:
        request = ps_pb2.TraceRequest(action=action.value)
        return self._start(self._stub.Trace, request, self._traced)

    def _traced(self, message: ps_pb2.TraceReply) -> ServerTrace:
        spans = spans_from_message(message, role=f"ps-server {self.address}")
        return ServerTrace(message.clock, spans if message.process else None)

    def join(
        self,
        rank: int,
        *,
        num_workers: int,
        name: str,
        worker: int = 0,
        on_end: Callable[[], None] | None = None,
    ) -> Reply[bool]:
        """Makes this process a worker; calls `on_end`, of another thread, when its stream ends."""
        request = ps_pb2.JoinRequest(rank=rank, num_workers=num_workers, name=name, worker=worker)
        try:
            self._membership = _uninterrupted(lambda: self._stub.Join(request))
        except ValueError as error:  # the channel is closed
            raise closed(self.address) from error
        if on_end is not None and not self._membership.add_callback(on_end):
            on_end()
        return _Joining(self._membership, self.address, self.call_seconds)

    @property
    def is_joined(self) -> bool:
        """Whether the stream of `join` is open, so that the server knows of its worker."""
        return self._membership is not None and bool(self._membership.is_active())

    def leave(self) -> None:
        if self._membership is not None:
            self._membership.cancel()

    def set_clock(self, route: int, rank: int, first_step: int | None) -> Reply[None]:
        request = ps_pb2.SetClockRequest(route=route, rank=rank, first_step=first_step)
        return self._start(self._stub.SetClock, request, _nothing)

    def goodbye(self, route: int, rank: int) -> Reply[None]:
        request = ps_pb2.GoodbyeRequest(route=route, rank=rank)
        return self._start(self._stub.Goodbye, request, _nothing)

    def take(self, route: Route) -> Reply[Route]:
        request = ps_pb2.TakeRequest(route=route_to_message(route))
        return self._start(self._stub.Take, request, lambda r: route_from_message(r.route))

    def lease(
        self, route: int, table: str, ask: Ask, *, wait_seconds: float
    ) -> Reply[tuple[Lease, int]]:
        request = ps_pb2.LeaseRequest(
            route=route,
            table=table,
            id=self._ids.get(table, 0),
            holder=ask.holder,
            held=sorted(ask.held),
            size=ask.size,
            seconds=ask.seconds,
            epochs=ask.epochs,
            wait_seconds=wait_seconds,
        )
        return self._start(self._stub.Lease, request, _lease)

    def renew_lease(self, holder: int, *, seconds: float) -> Reply[None]:
        request = ps_pb2.RenewLeaseRequest(holder=holder, seconds=seconds)
        return self._start(self._stub.RenewLease, request, _nothing)

    def end_lease(
        self, table: str, number: int, *, holder: int, num_batches: int | None
    ) -> Reply[None]:
        request = ps_pb2.EndLeaseRequest(
            table=table, holder=holder, number=number, num_batches=num_batches
        )
        return self._start(self._stub.EndLease, request, _nothing)

    def progress(self, worker: int) -> Reply[int | None]:
        return self._start(
            self._stub.Progress,
            ps_pb2.ProgressRequest(worker=worker),
            lambda reply: int(reply.sequence) if reply.HasField("sequence") else None,
        )

    def finish(self, first: int, last: int) -> Reply[None]:
        request = ps_pb2.FinishRequest(first=first, last=last)
        return self._start(self._stub.Finish, request, _nothing)

    def set_rows(
        self,
        route: int,
        table: str,
        keys: NDArray[np.uint64],
        weights: NDArray[np.float32],
        *,
        worker: int,
    ) -> Reply[None]:
        request = ps_pb2.SetRowsRequest(
            route=route,
            table=table,
            id=self._ids.get(table, 0),
            keys=bytes_from_array(keys),
            weights=bytes_from_array(weights),
            worker=worker,
        )
        return self._start(self._stub.SetRows, request, _nothing)

    def close(self) -> None:
        self._channel.close()

    def wait(self, seconds: float) -> ServerStats:
        """Returns the server's stats as soon as it answers, at most `seconds` from now.

        Raises:
            ServerUnavailable: It did not answer in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            remaining = deadline - time.monotonic()
            try:
                probe = min(max(remaining, PROBE_SECONDS), CALL_SECONDS)
                return self.stats(seconds=probe).result()
            except ServerUnavailable:
                if remaining < RETRY_SECONDS:
                    raise
                time.sleep(RETRY_SECONDS)

    def _start(
        self,
        method: Any,  # grpc has no stubs
        request: Any,
        decode: Callable[[Any], Value],
        *,
        seconds: float | None = None,
    ) -> Reply[Value]:
        timeout = self.call_seconds if seconds is None else seconds
        try:
            future = _uninterrupted(lambda: method.future(request, timeout=timeout))
        except ValueError as error:  # the channel is closed
            raise closed(self.address) from error
        return _Call(future, self.address, decode)


def _uninterrupted(start: Callable[[], Value]) -> Value:
    """Starts a call where no Ctrl-C can come between its parts.

    An interrupt inside grpc's start of a call leaves one that nobody serves,
    and the channel's `close` then waits for it for ever. It comes to the main
    thread alone, so that one lets another start its calls.
    """
    if threading.current_thread() is not threading.main_thread():
        return start()
    started: Future[Value] = Future()

    def run() -> None:
        try:
            started.set_result(start())
        except BaseException as error:  # it is the caller's
            started.set_exception(error)

    threading.Thread(target=run, name="start-call").start()
    return started.result()


def closed(address: str) -> ServerUnavailable:
    """Returns the error of a call that is made after `close`."""
    return ServerUnavailable(
        f"a call needs an open client, got one to server {address} after close(); make a new one"
    )


class _Pieces:
    """Splits a stream of pieces into files, each read to its end before the next."""

    def __init__(self, stream: Any, address: str) -> None:
        self._stream = stream
        self._address = address
        self._ahead: Any = None

    def next_name(self) -> str | None:
        try:
            self._ahead = self._ahead or next(self._stream, None)
        except grpc.RpcError as error:
            raise translate_status(error, self._address) from error
        return None if self._ahead is None else self._ahead.name

    def of(self, name: str) -> Iterator[bytes]:
        while self.next_name() == name:
            data, self._ahead = self._ahead.data, None
            yield data


def _load_requests(
    first: ps_pb2.LoadRequest, paths: Iterable[Path]
) -> Iterator[ps_pb2.LoadRequest]:
    yield first
    for path in paths:
        yield ps_pb2.LoadRequest(name=path.name)  # an empty file is a broken one, not none
        with path.open("rb") as file:
            while data := file.read(CHUNK_BYTES):
                yield ps_pb2.LoadRequest(name=path.name, data=data)


def _nothing(reply: Any) -> None:  # messages are built without types
    """Reads an answer that says only that it is done."""


def _rows(reply: ps_pb2.PullReply, num_keys: Sequence[int]) -> list[NDArray[np.float32]]:
    return [
        array_from_bytes(data, np.float32).reshape(size, -1)
        for data, size in zip(reply.rows, num_keys, strict=True)
    ]


def _lease(message: ps_pb2.LeaseReply) -> tuple[Lease, int]:
    kind = LeaseKind[ps_pb2.LeaseReply.Kind.Name(message.kind)]
    lease = Lease(
        kind,
        message.number,
        message.epoch,
        message.first_batch,
        message.size,
        message.num_before,
    )
    return lease, int(message.worker)


def _server_stats(message: ps_pb2.StatsReply) -> ServerStats:
    route = route_from_message(message.route) if message.HasField("route") else None
    tables = {stats.spec.name: _table_stats(stats) for stats in message.tables}
    incoming = tuple(
        IncomingMove(
            each.move,
            array_from_bytes(each.buckets, np.uint16),
            array_from_bytes(each.versions, np.uint32),
        )
        for each in message.incoming
    )
    return ServerStats(
        message.server_id,
        message.version,
        route,
        tables,
        message.is_durable,
        message.share,
        incoming,
        message.num_members,
    )


def _table_stats(message: ps_pb2.TableStats) -> TableStats:
    return TableStats(
        spec_from_message(message.spec),
        message.num_rows,
        message.memory_bytes,
        message.last_step,
        message.id,
    )
