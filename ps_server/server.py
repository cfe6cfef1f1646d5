"""Server: the port, the threads, health, reflection and a graceful stop."""

import errno
import fcntl
import logging
import shutil
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ps_server.durable import Durable, Identity, refuse_data
from ps_server.move_service import STAGE_PREFIX, MoveService
from ps_server.service import LOAD_PREFIX, Service
from ps_server.store import MAX_WORKERS, Store
from ps_server.wire import MAX_MESSAGE_BYTES, ps_pb2, ps_pb2_grpc

__all__ = ["REJOIN_SECONDS", "Server"]

logger = logging.getLogger(__name__)

SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"].full_name

# A request holds a thread while it runs, also while it waits for another worker. Of each worker
# that has joined, its stream, one pull and one push may wait; as many threads as they can hold at
# most stand beside those for all else, so that the push that ends a wait always finds one. Threads
# are started when they are needed: a grpcio server is one core's worth however many it has.
NUM_THREADS = 16 + 3 * MAX_WORKERS

GRACE_SECONDS = 3.0

REJOIN_SECONDS = 30.0
"""How long a worker of a durable server may be away, by default."""


class Server:
    """A parameter server: one store behind one gRPC port.

    A context manager: it listens from `__enter__` to `__exit__`, which lets the
    requests under way end and releases all it holds.

    Args:
        listen: HOST:PORT to listen on; port 0 picks a free one.
        data_dir: The server's own folder, created and locked; None takes a
            temporary one.
        num_workers: How many workers will join; None leaves it to them.
        on_over: Called, of any thread, when they have left, with whether all
            said goodbye.
        journal_limit: Bytes of journal after which a checkpoint is written, of
            a server that comes back with all that it answered; None keeps no
            journal. Needs a `data_dir`.
        rejoin_seconds: How long a worker whose connection broke may be away
            before it is lost; None is 30 s with a journal, otherwise 0.

    Raises:
        OSError: The address cannot be listened on, or another server has the
            folder.
        JournalError, CheckpointError, SnapshotError: What an earlier process
            has left in the folder is damaged; or it is there, but this one is
            to keep no journal.
        ValueError: A journal has no `data_dir`.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:7000",
        *,
        data_dir: Path | None = None,
        num_workers: int | None = None,
        on_over: Callable[[bool], None] | None = None,
        journal_limit: int | None = None,
        rejoin_seconds: float | None = None,
    ) -> None:
        if journal_limit is not None and data_dir is None:
            raise ValueError("a journal needs a folder that stays, got data_dir=None; name one")
        self._journal_limit = journal_limit
        default = 0.0 if journal_limit is None else REJOIN_SECONDS
        self._rejoin_seconds = default if rejoin_seconds is None else rejoin_seconds
        self._listen = listen
        self._data_dir = data_dir
        self._num_workers = num_workers
        self._on_over = on_over
        self._resources = ExitStack()
        self.address = ""

    def __enter__(self) -> "Server":
        with ExitStack() as undo:
            # Left in the opposite order: the folder goes before requests are waited for, so that
            # a load that outlives the grace ends at its next file.
            threads = undo.enter_context(
                ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="request")
            )
            if self._data_dir is None:
                temporary = tempfile.TemporaryDirectory(
                    prefix="ps-server-", ignore_cleanup_errors=True
                )
                folder = Path(undo.enter_context(temporary))
            else:
                folder = self._data_dir
                undo.enter_context(_FolderLock(folder))
            store = self._open_store(folder, undo)
            self._start(store, folder, threads, undo)
            undo.callback(store.leases.close)
            undo.callback(store.workers.close)  # before the wait for requests: theirs end with it
            self._resources = undo.pop_all()
        return self

    def _open_store(self, folder: Path, undo: ExitStack) -> Store:
        """Returns a store that is empty, or what the folder's last one was."""
        if self._journal_limit is None:
            refuse_data(folder)
        identity = None if self._journal_limit is None else Identity(folder)
        store = Store(
            num_workers=self._num_workers,
            on_over=self._on_over,
            rejoin_seconds=self._rejoin_seconds,
            server_id=None if identity is None else identity.id,
        )
        if identity is not None and self._journal_limit is not None:
            durable = Durable(store, folder, identity, journal_limit=self._journal_limit)
            undo.enter_context(durable)
            store.workers.resume()
        return store

    def _start(
        self, store: Store, folder: Path, threads: ThreadPoolExecutor, undo: ExitStack
    ) -> None:
        server = grpc.server(
            threads,
            options=[
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
                ("grpc.so_reuseport", 0),  # two servers on one port are a mistake
                # A worker's host that vanished without closing its connection is noticed.
                ("grpc.keepalive_time_ms", 20_000),
                ("grpc.keepalive_timeout_ms", 20_000),
                ("grpc.http2.ping_timeout_ms", 20_000),  # or its 60 s count
                ("grpc.http2.max_pings_without_data", 0),  # no limit: its stream is silent
                # Workers ask likewise, over streams that are silent for hours. By default a server
                # takes that for abuse and closes the connection, which would lose the worker.
                ("grpc.http2.max_ping_strikes", 0),
            ],
        )
        ps_pb2_grpc.add_ParameterServerServicer_to_server(Service(store, data_dir=folder), server)
        ps_pb2_grpc.add_MovesServicer_to_server(MoveService(store, data_dir=folder), server)
        checks = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        for name in ("", SERVICE):
            checks.set(name, health_pb2.HealthCheckResponse.SERVING)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        host = self._listen.rpartition(":")[0]
        try:
            _try_address(self._listen)
            port = server.add_insecure_port(self._listen)
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise OSError(
                f"cannot listen on {self._listen}: {reason}; is another server there? "
                "name another address with --listen HOST:PORT, port 0 picks a free one"
            ) from error
        server.start()
        undo.callback(lambda: server.stop(grace=GRACE_SECONDS).wait())
        undo.callback(checks.enter_graceful_shutdown)
        self.address = f"{host}:{port}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._resources.close()


def _try_address(listen: str) -> None:
    """Binds the address and lets it go: of a failure gRPC gives no reason, and logs beside it.

    Raises:
        OSError: It is in use, unknown or not of this machine.
    """
    host, _, port = listen.rpartition(":")
    failures = []
    found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as gRPC does
            try:
                probe.bind(where)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise
                failures.append(error)
    if len(failures) == len(found):  # a host with one address that works is listened on
        raise failures[0]


class _FolderLock:
    """Creates a folder and keeps other servers out of it while it is open."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"

    def __enter__(self) -> "_FolderLock":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._file.close()
            raise OSError(
                f"the folder {self._path.parent} is another server's; give each its own --data-dir"
            ) from error
        for prefix in (LOAD_PREFIX, STAGE_PREFIX):  # by a server that was killed
            for left in self._path.parent.glob(f"{prefix}*"):
                shutil.rmtree(left)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
