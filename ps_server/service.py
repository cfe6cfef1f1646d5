"""The ParameterServer service: decode, call the store, encode. No other logic."""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import grpc
import numpy as np

from ps_server.move_messages import incoming_to_message, snapshot_name
from ps_server.status import abort, unary
from ps_server.store import Ask, Lease, Origin, Store, TableStats
from ps_server.version import VERSION
from ps_server.wire import (
    array_from_bytes,
    bytes_from_array,
    ps_pb2,
    ps_pb2_grpc,
    route_from_message,
    route_to_message,
    spans_to_message,
    spec_from_message,
    spec_to_message,
)

__all__ = ["LOAD_PREFIX", "Service"]

CHUNK_BYTES = 1 << 20

LOAD_PREFIX = "load-"
"""How the folder is named where the snapshots of a load wait."""

# Seconds. A request that waits holds a thread, and its client asks again.
MAX_LEASE_WAIT = 2.0

Stepped = TypeVar("Stepped", ps_pb2.PullRequest, ps_pb2.PushRequest)
Reply = TypeVar("Reply")


def _recorded(
    method: Callable[["Service", Stepped], Reply],
) -> Callable[["Service", Stepped], Reply]:
    """Records when a method served which step; a request counts steps from 1."""

    @functools.wraps(method)
    def call(self: "Service", request: Stepped) -> Reply:
        start = time.perf_counter()
        reply = method(self, request)
        whose = f" of worker {request.rank}" if request.HasField("rank") else ""
        self._store.recorder.record(method.__name__ + whose, max(request.step - 1, -1), start)
        return reply

    return call


class Service(ps_pb2_grpc.ParameterServerServicer):
    """Serves one store over gRPC.

    Args:
        store: What is served.
        data_dir: Where the snapshots of a load wait until all have arrived.
    """

    def __init__(self, store: Store, *, data_dir: Path) -> None:
        self._store = store
        self._data_dir = data_dir

    @unary
    def Stats(self, request: ps_pb2.StatsRequest) -> ps_pb2.StatsReply:  # noqa: N802
        """Tells what the server is and holds."""
        route, share = self._store.share
        return ps_pb2.StatsReply(
            server_id=self._store.id,
            version=VERSION,
            is_durable=self._store.is_durable,
            route=None if route is None else route_to_message(route),
            tables=[_stats_message(stats) for stats in self._store.stats()],
            share=share,
            incoming=[incoming_to_message(each) for each in self._store.moves.incoming],
            num_members=self._store.workers.num_members,
        )

    @unary
    def CreateTable(self, request: ps_pb2.CreateTableRequest) -> ps_pb2.TableStats:  # noqa: N802
        """Creates a table or attaches to it."""
        spec, route = spec_from_message(request.spec), route_from_message(request.route)
        return _stats_message(self._store.create_table(spec, route))

    @unary
    def DropTable(self, request: ps_pb2.DropTableRequest) -> ps_pb2.DropTableReply:  # noqa: N802
        """Drops a table."""
        self._store.drop_table(request.table)
        return ps_pb2.DropTableReply()

    @unary
    @_recorded
    def Pull(self, request: ps_pb2.PullRequest) -> ps_pb2.PullReply:  # noqa: N802
        """Reads rows."""
        keys = {part.table: array_from_bytes(part.keys, np.uint64) for part in request.tables}
        _check_unique(len(keys), len(request.tables))
        ids = {part.table: part.id for part in request.tables if part.id}
        rows = self._store.pull(
            request.route,
            keys,
            insert=request.insert,
            ids=ids,
            rank=request.rank if request.HasField("rank") else None,
            after_step=request.after_step if request.HasField("after_step") else None,
        )
        return ps_pb2.PullReply(rows=[bytes_from_array(part) for part in rows])

    @unary
    @_recorded
    def Push(self, request: ps_pb2.PushRequest) -> ps_pb2.PushReply:  # noqa: N802
        """Applies gradients."""
        gradients = {}
        for part in request.tables:
            gradients[part.table] = (
                array_from_bytes(part.keys, np.uint64),
                array_from_bytes(part.gradients, np.float32),
            )
        _check_unique(len(gradients), len(request.tables))
        ids = {part.table: part.id for part in request.tables if part.id}
        self._store.push(
            request.route,
            gradients,
            step=request.step,
            ids=ids,
            rank=request.rank if request.HasField("rank") else None,
            weight=request.weight if request.HasField("weight") else None,
            origin=Origin(request.worker, request.sequence) if request.worker else None,
        )
        return ps_pb2.PushReply()

    def Join(  # noqa: N802
        self, request: ps_pb2.JoinRequest, context: grpc.ServicerContext
    ) -> Iterator[ps_pb2.JoinReply]:
        """Makes a worker a member for as long as the stream is open."""
        workers = self._store.workers
        try:
            stream = workers.join(
                request.rank,
                num_workers=request.num_workers,
                name=request.name,
                worker=request.worker,
            )
            try:
                # A kill -9 closes the connection too: within milliseconds this is called, by the
                # one thread that serves all connections. So it hands on to the thread that is here.
                if context.add_callback(lambda: workers.interrupt(stream)):
                    yield ps_pb2.JoinReply(is_back=stream.is_back)
                    workers.wait_for_end(stream)
            finally:  # also where the stream broke before the reply was sent
                workers.lose(stream)
        except Exception as error:  # the boundary: each becomes a status
            abort(context, error)

    @unary
    def SetClock(self, request: ps_pb2.SetClockRequest) -> ps_pb2.SetClockReply:  # noqa: N802
        """Starts or stops the clock of a worker."""
        first_step = request.first_step if request.HasField("first_step") else None
        self._store.set_clock(request.route, request.rank, first_step)
        return ps_pb2.SetClockReply()

    @unary
    def Goodbye(self, request: ps_pb2.GoodbyeRequest) -> ps_pb2.GoodbyeReply:  # noqa: N802
        """Ends a membership."""
        self._store.goodbye(request.route, request.rank)
        return ps_pb2.GoodbyeReply()

    @unary
    def Freeze(self, request: ps_pb2.FreezeRequest) -> ps_pb2.FreezeReply:  # noqa: N802
        """Keeps the rows of all tables as they are now."""
        return ps_pb2.FreezeReply(freeze=self._store.freeze(request.route))

    @unary
    def Release(self, request: ps_pb2.ReleaseRequest) -> ps_pb2.ReleaseReply:  # noqa: N802
        """Lets go what was frozen."""
        self._store.release(request.freeze)
        return ps_pb2.ReleaseReply()

    @unary
    def Lease(self, request: ps_pb2.LeaseRequest) -> ps_pb2.LeaseReply:  # noqa: N802
        """Leases a range of batches."""
        lease, worker = self._store.lease(
            request.route,
            request.table,
            Ask(
                request.holder,
                frozenset(request.held),
                request.size,
                request.seconds,
                request.epochs,
            ),
            wait_seconds=min(request.wait_seconds, MAX_LEASE_WAIT),
            ids={request.table: request.id} if request.id else {},
        )
        return _lease_message(lease, worker)

    @unary
    def RenewLease(self, request: ps_pb2.RenewLeaseRequest) -> ps_pb2.RenewLeaseReply:  # noqa: N802
        """Hears a sign of life."""
        self._store.leases.renew(request.holder, request.seconds)
        return ps_pb2.RenewLeaseReply()

    @unary
    def EndLease(self, request: ps_pb2.EndLeaseRequest) -> ps_pb2.EndLeaseReply:  # noqa: N802
        """Completes a range or gives it back."""
        leases, table, number = self._store.leases, request.table, request.number
        if request.HasField("num_batches"):
            leases.complete(table, number, num_batches=request.num_batches)
        else:
            leases.give_back(table, number, holder=request.holder)
        return ps_pb2.EndLeaseReply()

    @unary
    def Progress(self, request: ps_pb2.ProgressRequest) -> ps_pb2.ProgressReply:  # noqa: N802
        """Tells how far pushes are applied."""
        return ps_pb2.ProgressReply(sequence=self._store.progress(request.worker))

    @unary
    def Finish(self, request: ps_pb2.FinishRequest) -> ps_pb2.FinishReply:  # noqa: N802
        """Takes no more pushes of a number."""
        self._store.finish(request.first, request.last)
        return ps_pb2.FinishReply()

    @unary
    def SetRows(self, request: ps_pb2.SetRowsRequest) -> ps_pb2.SetRowsReply:  # noqa: N802
        """Replaces the rows of a table."""
        self._store.set_rows(
            request.route,
            request.table,
            array_from_bytes(request.keys, np.uint64),
            array_from_bytes(request.weights, np.float32),
            worker=request.worker,
            ids={request.table: request.id} if request.id else {},
        )
        return ps_pb2.SetRowsReply()

    def Save(  # noqa: N802
        self, request: ps_pb2.SaveRequest, context: grpc.ServicerContext
    ) -> Iterator[ps_pb2.SaveReply]:
        """Streams the snapshots of a table."""
        try:
            ids = {request.table: request.id} if request.id else {}
            freeze = request.freeze or None
            for name, data in self._store.save(
                request.route, request.table, freeze=freeze, ids=ids
            ):
                for start in range(0, len(data), CHUNK_BYTES):
                    piece = bytes(data[start : start + CHUNK_BYTES])
                    yield ps_pb2.SaveReply(name=name, data=piece)
        except Exception as error:  # the boundary: each becomes a status
            abort(context, error)

    @unary
    def Load(self, requests: Iterator[ps_pb2.LoadRequest]) -> ps_pb2.LoadReply:  # noqa: N802
        """Receives the snapshots of a table, then replaces its rows."""
        first = next(requests, None)
        if first is None:
            raise ValueError("a load must begin with the name of its table, got no message")
        with tempfile.TemporaryDirectory(prefix=LOAD_PREFIX, dir=self._data_dir) as folder:
            paths: list[Path] = []
            for request in requests:
                path = Path(folder) / snapshot_name(request.name)
                if not paths or paths[-1] != path:
                    if path in paths:
                        raise ValueError(
                            f"the pieces of a snapshot must follow one another, got {path.name} "
                            f"again after {paths[-1].name}"
                        )
                    paths.append(path)
                with path.open("ab") as file:
                    file.write(request.data)
            if len(paths) != first.num_snapshots:
                raise ValueError(
                    f"a load must bring the {first.num_snapshots} snapshots that it begins with, "
                    f"got {len(paths)}"
                )
            ids = {first.table: first.id} if first.id else {}
            num_rows = self._store.load(first.route, first.table, paths, ids=ids)
        return ps_pb2.LoadReply(num_rows=num_rows)

    @unary
    def Trace(self, request: ps_pb2.TraceRequest) -> ps_pb2.TraceReply:  # noqa: N802
        """Tells the time; begins and ends the recording of spans."""
        reply = ps_pb2.TraceReply()
        if request.action == ps_pb2.TraceRequest.START:
            self._store.recorder.start()
        elif request.action == ps_pb2.TraceRequest.STOP:
            spans = self._store.recorder.stop()
            if spans is not None:
                reply = spans_to_message(spans)
        reply.clock = time.perf_counter()
        return reply

    @unary
    def Take(self, request: ps_pb2.TakeRequest) -> ps_pb2.TakeReply:  # noqa: N802
        """Takes what was given to the server."""
        known = self._store.moves.take(route_from_message(request.route))
        return ps_pb2.TakeReply(route=route_to_message(known))


def _check_unique(num_names: int, num_parts: int) -> None:
    if num_names != num_parts:
        raise ValueError(
            f"a request must name each table once, got {num_parts} parts of {num_names}"
        )


def _lease_message(lease: Lease, worker: int) -> ps_pb2.LeaseReply:
    return ps_pb2.LeaseReply(
        kind=lease.kind.value,
        number=lease.number,
        epoch=lease.epoch,
        first_batch=lease.first_batch,
        size=lease.size,
        worker=worker,
        num_before=lease.num_before,
    )


def _stats_message(stats: TableStats) -> ps_pb2.TableStats:
    return ps_pb2.TableStats(
        spec=spec_to_message(stats.spec),
        num_rows=stats.num_rows,
        memory_bytes=stats.memory_bytes,
        last_step=stats.last_step,
        id=stats.id,
    )
