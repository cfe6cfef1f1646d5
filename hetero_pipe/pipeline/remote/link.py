"""StageLink: a sparse worker's stream to one dense worker."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import grpc

from hetero_pipe.errors import HeteroPipeError, PlanError, StageError, WorkerLost
from hetero_pipe.pipeline.handoff import Closed
from hetero_pipe.pipeline.remote.batch import CutBatch, CutResult
from hetero_pipe.pipeline.remote.failure import Failure
from hetero_pipe.pipeline.remote.flow import Credits
from hetero_pipe.pipeline.wire import stage_pb2, stage_pb2_grpc
from hetero_pipe.units import format_seconds

__all__ = ["StageLink"]

logger = logging.getLogger(__name__)

GRACE_SECONDS = 3.0
QUIET_SECONDS = 0.5  # before a log line says who is waited for

OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Sparse workers may start before dense ones: knock often, so that training starts when they do.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # how long one attempt to connect may take
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # a batch is sent once
    ("grpc.service_config_disable_resolution", 1),
    # Two links of a process to one address are two connections, so that each can be closed.
    ("grpc.use_local_subchannel_pool", 1),
    # A host that vanished without closing its connection is noticed, on either side.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # or its 60 s count
    ("grpc.http2.max_pings_without_data", 0),  # no limit: who waits for a gradient is silent
]


class StageLink:
    """Sends batches to a dense worker and takes what they gave. Thread safe.

    A context manager: it connects in `__enter__` and says goodbye in `__exit__`,
    after which no thread of it is left.

    Args:
        address: HOST:PORT of the dense worker.
        dense_rank: Of the dense worker, for messages.
        rank: Of this sparse worker.
        worker: What this worker is called, as `worker_name` has it.
        job: What the dense worker must have alike, by name.
        wire: Of the cuts, one of `plan.WIRES`.
        connect_timeout: Seconds to wait for a dense worker that is not there yet.

    Raises:
        HeteroPipeError: The dense worker failed; it is named, with its traceback.
        PlanError: The dense worker is of another job.
        WorkerLost: It was not there in time.
    """

    def __init__(
        self,
        address: str,
        *,
        dense_rank: int,
        rank: int,
        worker: str,
        job: Mapping[str, str],
        wire: str,
        connect_timeout: float,
    ) -> None:
        self._peer = f"dense worker {dense_rank} at {address}"
        self._start_it = f"start it with --stage dense --worker {dense_rank}"
        self._worker = worker
        self._wire = wire
        self._connect_timeout = connect_timeout
        self._credits = Credits()
        self._outbox: queue.SimpleQueue[stage_pb2.FromSparse | None] = queue.SimpleQueue()
        self._outbox.put(
            stage_pb2.FromSparse(hello=stage_pb2.Hello(rank=rank, worker=worker, job=job))
        )
        self._changed = threading.Condition()
        self._results: dict[int, CutResult] = {}
        self._error: HeteroPipeError | None = None
        self._is_welcome = False
        self._is_closing = False
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        # The call is started there too: a Ctrl-C, which comes to the main thread, must not fall
        # between its parts.
        self._thread = threading.Thread(target=self._read, name="read-stream")

    def __enter__(self) -> "StageLink":
        self._thread.start()
        try:
            self._wait_for_welcome()
        except BaseException:
            self._give_up()
            raise
        return self

    def _wait_for_welcome(self) -> None:
        def is_decided() -> bool:
            return self._is_welcome or self._error is not None

        quiet = min(QUIET_SECONDS, self._connect_timeout)
        with self._changed:
            if not self._changed.wait_for(is_decided, timeout=quiet):
                logger.warning(
                    "%s is not reachable, waiting up to %s for it; %s",
                    self._peer,
                    format_seconds(self._connect_timeout),
                    self._start_it,
                )
                self._changed.wait_for(is_decided, timeout=self._connect_timeout - quiet)
            if self._error is not None:
                raise self._error
            if not self._is_welcome:
                raise WorkerLost(
                    f"{self._peer} must be reachable, got no answer within "
                    f"{format_seconds(self._connect_timeout)}; {self._start_it}"
                )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_closing = True
        self._outbox.put(stage_pb2.FromSparse(goodbye=stage_pb2.Goodbye()))
        self._outbox.put(None)
        self._thread.join(GRACE_SECONDS)
        self._give_up()

    def _give_up(self) -> None:
        self._is_closing = True
        self._outbox.put(None)
        self._channel.close()
        self._thread.join()

    def send(
        self, batch: CutBatch, *, is_given_up: Callable[[], bool] = lambda: False
    ) -> tuple[float, float]:
        """Sends a batch; blocks until the dense worker has room for it.

        Args:
            batch: The next one.
            is_given_up: Asked at each `wake`: whether to wait no longer.

        Returns:
            When it began and ended to wait for a credit, on `time.perf_counter`.

        Raises:
            Closed: It was given up.
            HeteroPipeError: Some worker failed; it is named, with its traceback.
            WorkerLost: The dense worker is gone.
        """
        message = stage_pb2.FromSparse()
        batch.write(message.batch, self._wire)
        start = time.perf_counter()
        self._credits.take(is_given_up=is_given_up)
        end = time.perf_counter()
        self._outbox.put(message)
        return start, end

    def receive(self, step: int, *, is_given_up: Callable[[], bool] = lambda: False) -> CutResult:
        """Returns what the batch of a step gave; blocks until it is there.

        Raises:
            Closed: As `send`.
            HeteroPipeError: As `send`. What is there already is returned first.
            WorkerLost: As `send`.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: step in self._results or self._error is not None or is_given_up()
            )
            if step in self._results:
                return self._results.pop(step)
            if self._error is not None:
                raise self._error
            raise Closed

    def wake(self) -> None:
        """Makes what waits ask whether it is given up."""
        self._credits.wake()
        with self._changed:
            self._changed.notify_all()

    def end(self, call: str) -> None:
        """Says that no more batches come of a call, such as `fit`; calls may be within calls."""
        self._outbox.put(stage_pb2.FromSparse(end=stage_pb2.End(call=call)))

    def fail(self, failure: Failure) -> None:
        """Tells the dense worker, and by it all others, that this one cannot go on."""
        self._outbox.put(stage_pb2.FromSparse(failure=failure.to_message()))
        self._outbox.put(None)
        self._set_error(failure.to_error())

    def _set_error(self, error: HeteroPipeError) -> None:
        """The first error stays: later ones follow from it."""
        self._credits.fail(error)
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    def _read(self) -> None:
        """Takes in what the dense worker says until the stream ends, in whichever way."""
        try:
            stub = stage_pb2_grpc.StageHostStub(self._channel)
            for message in stub.Feed(iter(self._outbox.get, None), wait_for_ready=True):
                self._receive(message)
            self._set_error(
                WorkerLost(f"{self._peer} has closed its trainer; all workers run the same script")
            )
        except grpc.RpcError as error:
            self._set_error(self._error_of(error))
        except Exception as error:  # of a message that is none
            failure = Failure.of(error, worker=self._worker, stage="recv", step=0)
            self.fail(failure)
        finally:
            self._outbox.put(None)  # whoever feeds the stream

    def _receive(self, message: stage_pb2.FromDense) -> None:
        kind = message.WhichOneof("kind")
        if kind == "credit":
            self._credits.grant(1)
        elif kind == "result":
            result = CutResult.from_message(message.result)
            with self._changed:
                self._results[result.step] = result
                self._changed.notify_all()
        elif kind == "welcome":
            self._credits.grant(message.welcome.num_credits)
            with self._changed:
                self._is_welcome = True
                self._peer = message.welcome.worker
                self._changed.notify_all()
        elif kind == "failure":
            self._set_error(Failure.from_message(message.failure).to_error())

    def _error_of(self, error: Any) -> HeteroPipeError:  # grpc has no types
        code, details = error.code(), error.details()
        if code == grpc.StatusCode.FAILED_PRECONDITION:
            return PlanError(details)
        if code == grpc.StatusCode.UNAVAILABLE or self._is_closing:
            return WorkerLost(f"{self._peer} is gone: its stream to {self._worker} broke")
        return StageError(f"{self._peer} broke its stream to {self._worker}: {code.name} {details}")
