"""StageHost: where a dense worker takes batches and answers them."""

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import grpc

from hetero_pipe.errors import ConfigError, WorkerLost
from hetero_pipe.pipeline.remote.batch import CutBatch, CutResult
from hetero_pipe.pipeline.remote.failure import Failure
from hetero_pipe.pipeline.remote.flow import Intake
from hetero_pipe.pipeline.wire import stage_pb2, stage_pb2_grpc
from hetero_pipe.units import format_seconds

__all__ = ["StageHost"]

GRACE_SECONDS = 3.0
SPARE_THREADS = 4  # for strangers, beside one a sparse worker

OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),  # two hosts on one port are a mistake
    # A host that vanished without closing its connection is noticed, on either side.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # or its 60 s count
    ("grpc.http2.max_pings_without_data", 0),  # no limit: who waits for a batch is silent
    ("grpc.http2.max_ping_strikes", 0),  # its sparse workers' are welcome
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]


@dataclass(eq=False)
class _Peer:
    """A sparse worker: its stream, as seen from here."""

    rank: int
    name: str
    outbox: "queue.SimpleQueue[stage_pb2.FromDense | None]" = field(
        default_factory=queue.SimpleQueue
    )

    def end_with(self, message: stage_pb2.FromDense) -> None:
        self.outbox.put(message)
        self.outbox.put(None)


class StageHost:
    """Takes the batches of all sparse workers and answers each. Thread safe.

    A context manager: it listens from `__enter__` to `__exit__`, after which no
    thread of it is left.

    ::

        sparse 0 ──▶ reader thread ──▶ ╮ at most `capacity` each
        sparse 1 ──▶ reader thread ──▶ ┴──▶ take() ──▶ answer() ──▶ outbox ──▶ its sparse worker

    Args:
        listen: HOST:PORT; port 0 picks a free one.
        worker: What this worker is called, as `worker_name` has it.
        job: What a sparse worker must have alike, by name.
        num_sparse: Sparse workers that will connect.
        capacity: Batches of each that may wait, at least 1.
        wire: Of the gradients, one of `plan.WIRES`.

    Attributes:
        address: HOST:PORT that it listens on.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    def __init__(
        self,
        listen: str,
        *,
        worker: str,
        job: Mapping[str, str],
        num_sparse: int,
        capacity: int,
        wire: str,
    ) -> None:
        self.address = listen
        self._worker = worker
        self._job = job
        self._capacity = capacity
        self._wire = wire
        names = [f"sparse worker {rank}" for rank in range(num_sparse)]
        self._intake: Intake[CutBatch] = Intake(names, capacity=capacity)
        self._changed = threading.Condition()
        self._peers: dict[int, _Peer] = {}
        self._num_sparse = num_sparse
        self._failure: Failure | None = None
        self._is_closing = False
        self._readers: list[threading.Thread] = []
        self._threads = ThreadPoolExecutor(num_sparse + SPARE_THREADS, thread_name_prefix="stream")
        self._server = grpc.server(self._threads, options=OPTIONS)

    def __enter__(self) -> "StageHost":
        stage_pb2_grpc.add_StageHostServicer_to_server(_Servicer(self._feed), self._server)
        try:
            port = self._server.add_insecure_port(self.address)
        except RuntimeError as error:
            self._threads.shutdown()
            raise ConfigError(
                f"{self._worker} must listen on {self.address}, which is in use or not of this "
                "host; name another address (--dense-workers)"
            ) from error
        self._server.start()
        self.address = f"{self.address.rpartition(':')[0]}:{port}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._changed:
            self._is_closing = True
            peers = list(self._peers.values())
        for peer in peers:
            peer.end_with(stage_pb2.FromDense(goodbye=stage_pb2.Goodbye()))
        self._server.stop(GRACE_SECONDS).wait()
        self._threads.shutdown()
        for reader in self._readers:
            reader.join()

    def wait_for_all(self, seconds: float) -> None:
        """Returns when every sparse worker is connected.

        Raises:
            WorkerLost: One is not within `seconds`, or is gone again.
            HeteroPipeError: One failed.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._peers) == self._num_sparse or self._failure, timeout=seconds
            )
            if self._failure is not None:
                raise self._failure.to_error()
            missing = [str(r) for r in range(self._num_sparse) if r not in self._peers]
        if missing:
            raise WorkerLost(
                f"{self._worker} at {self.address} is fed by {self._num_sparse} sparse workers, "
                f"got none of rank {', '.join(missing)} within {format_seconds(seconds)}; start "
                f"it with --stage sparse --worker {missing[0]}"
            )

    def take(
        self, *, is_given_up: Callable[[], bool] = lambda: False
    ) -> tuple[int, CutBatch] | str:
        """Takes the next batch of any sparse worker, in turns; blocks while there is none.

        Args:
            is_given_up: Asked at each `wake`: whether to wait no longer.

        Returns:
            The sparse worker's rank and its batch; or, once all have come to the
            end of a call, what they called it.

        Raises:
            Closed: It was given up.
            ConfigError: Sparse workers have come to the ends of different calls.
            WorkerLost: A sparse worker is gone.
            HeteroPipeError: A sparse worker failed; it is named, with its traceback.
        """
        taken = self._intake.take(is_given_up=is_given_up)
        if not isinstance(taken, str):
            credit = stage_pb2.FromDense(credit=stage_pb2.Credit())
            self._peers[taken[0]].outbox.put(credit)
        return taken

    def wake(self) -> None:
        """Makes a `take` that waits ask whether it is given up."""
        self._intake.wake()

    def answer(self, rank: int, result: CutResult) -> None:
        """Sends a sparse worker what its batch gave; never blocks.

        What waits to be sent is bounded by the steps that it has under way.
        """
        message = stage_pb2.FromDense()
        result.write(message.result, self._wire)
        self._peers[rank].outbox.put(message)

    def fail(self, failure: Failure) -> None:
        """Tells every sparse worker that this one, or another, cannot go on. The first counts."""
        with self._changed:
            if self._failure is not None or self._is_closing:
                return
            self._failure = failure
            peers = list(self._peers.values())
            self._changed.notify_all()
        self._intake.fail(failure.to_error())
        for peer in peers:
            peer.end_with(stage_pb2.FromDense(failure=failure.to_message()))

    def _feed(self, requests: Iterator[Any], context: Any) -> Iterator[stage_pb2.FromDense]:
        """Serves one stream, in a thread of the server's; another one reads what comes."""
        peer = self._admit(requests, context)
        # A stream that breaks wakes this thread up.
        if not context.add_callback(lambda: peer.outbox.put(None)):
            peer.outbox.put(None)
        while (message := peer.outbox.get()) is not None:
            yield message

    def _admit(self, requests: Iterator[Any], context: Any) -> _Peer:
        first = next(requests, None)
        hello = stage_pb2.FromSparse().hello if first is None else first.hello
        if not hello.worker:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a stream begins with Hello")
        peer = _Peer(hello.rank, hello.worker)
        reader = threading.Thread(target=self._read, args=(peer, requests), name="read-stream")
        with self._changed:
            refusal = self._refusal(peer, hello.job)
            if refusal is None:
                self._peers[peer.rank] = peer
                self._intake.rename(peer.rank, peer.name)
                self._readers.append(reader)
                reader.start()
                welcome = stage_pb2.Welcome(worker=self._worker, num_credits=self._capacity)
                peer.outbox.put(stage_pb2.FromDense(welcome=welcome))
                self._changed.notify_all()
        if refusal is not None:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal)
        return peer

    def _refusal(self, peer: _Peer, job: Mapping[str, str]) -> str | None:
        if self._is_closing or self._failure is not None:
            return f"{self._worker} has ended"
        if peer.rank >= self._num_sparse:
            return f"{self._worker} is fed by {self._num_sparse} sparse workers, got {peer.name}"
        if peer.rank in self._peers:
            return (
                f"{self._worker} is fed by each sparse worker once, got {peer.name} beside "
                f"{self._peers[peer.rank].name}; give each its own --worker"
            )
        names = dict.fromkeys([*self._job, *job])
        differing = [
            f"{name} {job.get(name)} there and {self._job.get(name)} here"
            for name in names
            if job.get(name) != self._job.get(name)
        ]
        if not differing:
            return None
        return (
            f"{self._worker} is fed by workers of its own job, got {peer.name} with "
            f"{'; '.join(differing)}; start both with the same script and flags"
        )

    def _read(self, peer: _Peer, requests: Iterator[Any]) -> None:
        """Takes in what a sparse worker says, until it says goodbye or is gone."""
        try:
            is_last = False
            for message in _until_broken(requests):
                is_last = self._receive(peer, message)
                if is_last:
                    break
        except Exception as error:  # of a message that is none; it is everybody's
            self.fail(Failure.of(error, worker=self._worker, stage="recv", step=0))
            return
        if not is_last:
            self._lose(f"{peer.name} is gone: its stream to {self._worker} broke")
        peer.outbox.put(None)

    def _receive(self, peer: _Peer, message: stage_pb2.FromSparse) -> bool:
        """Returns whether it was the last message."""
        kind = message.WhichOneof("kind")
        if kind == "batch":
            self._intake.put(peer.rank, CutBatch.from_message(message.batch))
        elif kind == "end":
            self._intake.end(peer.rank, message.end.call)
        elif kind == "failure":
            self.fail(Failure.from_message(message.failure))
            return True
        elif kind == "goodbye":
            self._intake.end(peer.rank, "its script")
            return True
        return False

    def _lose(self, text: str) -> None:
        self.fail(Failure(self._worker, "recv", 0, WorkerLost.__name__, text, f"{text}\n"))


class _Servicer(stage_pb2_grpc.StageHostServicer):
    def __init__(self, feed: Callable[[Iterator[Any], Any], Iterator[stage_pb2.FromDense]]) -> None:
        self._feed = feed

    def Feed(  # noqa: N802  # as the service is named
        self, requests: Iterator[Any], context: Any
    ) -> Iterator[stage_pb2.FromDense]:
        return self._feed(requests, context)


def _until_broken(requests: Iterator[Any]) -> Iterator[stage_pb2.FromSparse]:
    """Yields the messages of a stream; that it broke looks like its end."""
    try:
        yield from requests
    except grpc.RpcError:
        return
