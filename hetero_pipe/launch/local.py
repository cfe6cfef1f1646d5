"""A whole job on this host: starts its servers and workers, and leaves none behind."""

import logging
import queue
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hetero_pipe.errors import ConfigError, ServerUnavailable
from hetero_pipe.launch.address import HOST, free_addresses
from hetero_pipe.launch.arguments import mode_of
from hetero_pipe.launch.process import (
    FIRST_SECONDS,
    KILL_SECONDS,
    Ended,
    OnLine,
    Output,
    Process,
    copier,
)
from hetero_pipe.launch.run import FOLLOWED
from hetero_pipe.plan import WorkersPlan

__all__ = ["LocalJob", "run_local_job"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LocalJob:
    """A job on one host.

    Attributes:
        command: Of a script that ends in `run`: its path and its arguments.
        num_servers: 0 leaves the tables to the worker.
        num_readers: Whole workers or, with dense ones, sparse workers.
        num_dense: 0 means whole workers.
        log_dir: Gets a file for each process; None is no files.

    Raises:
        ConfigError: There can be no such job.
    """

    command: tuple[str, ...]
    num_servers: int = 2
    num_readers: int = 2
    num_dense: int = 0
    log_dir: Path | None = None

    def __post_init__(self) -> None:
        if self.num_readers < 1 or self.num_servers < 0 or self.num_dense < 0:
            raise ConfigError(
                f"a job has a worker that reads, and no count below 0, got {self.num_servers} "
                f"servers, {self.num_readers} workers that read, {self.num_dense} dense ones; "
                "start at least one (--workers N, or --sparse N --dense N)"
            )
        if not Path(self.command[0]).is_file():
            raise ConfigError(f"a job runs a script, got no file {self.command[0]!r}")

    @property
    def mode(self) -> str:
        """How workers keep step, as the script's arguments say."""
        return mode_of(self.command[1:])

    @property
    def is_elastic(self) -> bool:
        """Whether a worker may die, and the others go on."""
        return WorkersPlan(mode=self.mode).is_elastic

    def worker_arguments(
        self, *, servers: Sequence[str], coordinator: str, dense: Sequence[str]
    ) -> dict[str, list[str]]:
        """Returns the flags of each worker by its name.

        Args:
            servers: HOST:PORT of each.
            coordinator: HOST:PORT where the workers meet.
            dense: HOST:PORT of each dense worker.
        """
        shared = [
            *(("--servers", ",".join(servers)) if servers else ()),
            *("--num-workers", str(self.num_readers)),
            *("--coordinator", coordinator),
            *(("--dense-workers", ",".join(dense)) if dense else ()),
        ]
        if not dense:
            return {f"worker {i}": [*shared, "--worker", str(i)] for i in range(self.num_readers)}
        return {
            f"{stage} {i}": [*shared, "--stage", stage, "--worker", str(i)]
            for stage, num in (("sparse", self.num_readers), ("dense", len(dense)))
            for i in range(num)
        }


def run_local_job(job: LocalJob) -> int:
    """Runs a job to its end and returns its exit code; called by the main thread.

    Lines of the processes go to stdout and stderr, each with a name in front.
    Ctrl-C and SIGTERM are passed on to the workers; servers stay until these
    have ended. Once a worker fails, the others are stopped; in mode `elastic`, they go
    on, and it is a failure if none of them ends well. Whatever happens to
    this process, also SIGKILL, none of the job's outlives it (on Linux).

    Returns:
        0 if every worker returned 0; that of the first process that failed, as a
        shell gives it, 128 and its number for a signal. One that failed because
        another had, by its exit code 75, is not the first, unless no other ends
        within 10 seconds. 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        ConfigError: The log folder cannot be written to.
        ServerUnavailable: A server ended before it listened.
    """
    with _Running(job) as running:
        servers = running.start_servers()
        if not running.is_stopping:
            running.start_workers(servers)
        return running.wait()


@dataclass(frozen=True)
class _Listens:
    """A server says where."""

    server: str
    address: str


class _Running:
    """The processes of a job by name, and the queue of what happens to them."""

    def __init__(self, job: LocalJob) -> None:
        self._job = job
        # A signal handler may put into it at any time, also while it is being put into.
        self._events: queue.SimpleQueue[_Listens | Ended | signal.Signals] = queue.SimpleQueue()
        self._servers: dict[str, Process] = {}
        self._workers: dict[str, Process] = {}
        self._out, self._err = Output(sys.stdout.buffer), Output(sys.stderr.buffer)
        self._code = 0
        self._followed: Ended | None = None  # the first that failed because another had
        self._lost: Ended | None = None  # the first worker that failed while others go on
        self._is_done = False  # a worker has ended well
        self.is_stopping = False
        self._resources = ExitStack()  # signal handlers and log files

    def __enter__(self) -> "_Running":
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, lambda n, _: self._events.put(signal.Signals(n)))
            self._resources.callback(signal.signal, number, before)
        return self

    def __exit__(self, *error: object) -> None:
        self.is_stopping = True
        with self._resources:
            self._end(self._workers, signal.SIGKILL)
            self._end(self._servers, signal.SIGTERM)

    def start_servers(self) -> list[str]:
        """Starts the servers and returns their addresses when all listen.

        Returns early if there is a reason to stop.
        """
        addresses: dict[str, str] = {}
        for i in range(self._job.num_servers):
            name = f"server {i}"
            command = ["-m", "ps_server", "--listen", f"{HOST}:0", "--log-level", "warning"]
            self._servers[name] = self._spawn(name, command, on_out=self._read_address(name))
        while len(addresses) < self._job.num_servers and not self.is_stopping:
            event = self._events.get()
            if isinstance(event, _Listens):
                addresses[event.server] = event.address
            else:
                self._note(event)
                if isinstance(event, Ended) and not event.code:
                    raise ServerUnavailable(f"{event.name} must listen, it ended instead")
        return list(addresses.values())

    def start_workers(self, servers: Sequence[str]) -> None:
        """Starts the workers."""
        coordinator, *dense = free_addresses(1 + self._job.num_dense)
        flags = self._job.worker_arguments(servers=servers, coordinator=coordinator, dense=dense)
        for name, arguments in flags.items():
            self._workers[name] = self._spawn(name, [*self._job.command, *arguments])

    def wait(self) -> int:
        """Returns the exit code when no worker is left."""
        self._until_ended(self._workers)
        if self._followed is not None and not self.is_stopping:
            self._fail(self._followed)
        if self._lost is not None and not self._is_done and not self.is_stopping:
            self._fail(self._lost)
        return self._code

    def _spawn(
        self, name: str, arguments: Sequence[str], *, on_out: OnLine | None = None
    ) -> Process:
        log = self._open_log(name)
        return Process(
            [sys.executable, "-u", *arguments],
            on_out=on_out or copier(name, self._out, log),
            on_err=copier(name, self._err, log),
            on_end=lambda code: self._events.put(Ended(name, code)),
        )

    def _open_log(self, name: str) -> Output | None:
        folder = self._job.log_dir
        if folder is None:
            return None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = (folder / f"{name.replace(' ', '.')}.log").open("wb")
        except OSError as error:
            raise ConfigError(
                f"a log folder can be written to, got {error}; name another"
            ) from error
        return Output(self._resources.enter_context(file))

    def _read_address(self, server: str) -> OnLine:
        def read(line: bytes) -> None:
            address = line.decode().removeprefix("listening on ").strip()
            self._events.put(_Listens(server, address))

        return read

    def _end(self, processes: dict[str, Process], number: int) -> None:
        _send(processes, number)
        self._until_ended(processes, seconds=KILL_SECONDS)

    def _until_ended(self, processes: dict[str, Process], *, seconds: float | None = None) -> None:
        """Returns when none is left; kills them after so many seconds, or a reason to stop."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while processes:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                event = self._events.get(timeout=left)
            except queue.Empty:
                if self._followed is not None and not self.is_stopping:
                    self._fail(self._followed)
                    deadline = time.monotonic() + KILL_SECONDS
                else:
                    deadline = None
                    _send(processes, signal.SIGKILL)
            else:
                seconds = self._note(event)
                deadline = deadline if seconds is None else time.monotonic() + seconds

    def _note(self, event: _Listens | Ended | signal.Signals) -> float | None:
        """Notes an event; returns in how many seconds those that are left must end, if it says."""
        if isinstance(event, signal.Signals):
            is_urgent = event == signal.SIGTERM or self.is_stopping
            self._stop(event, code=128 + event)
            return KILL_SECONDS if is_urgent else None
        if isinstance(event, _Listens):
            return None
        is_worker = self._workers.pop(event.name, None) is not None
        self._servers.pop(event.name, None)
        self._is_done |= is_worker and event.code == 0
        if event.code == 0 or self.is_stopping:
            return None
        if is_worker and self._job.is_elastic:
            self._lost = self._lost or event
            logger.warning("%s; others go on without it", event)
            return None
        if event.code == FOLLOWED:
            is_first, self._followed = self._followed is None, self._followed or event
            return FIRST_SECONDS if is_first else None
        self._fail(event)
        return KILL_SECONDS

    def _fail(self, first: Ended) -> None:
        logger.error("%s; the others are stopped", first)
        self._stop(signal.SIGTERM, code=first.shell_code)

    def _stop(self, number: signal.Signals, *, code: int) -> None:
        """Passes a signal on to the workers; of several reasons, the first one's code counts."""
        self._code = self._code if self.is_stopping else code
        self.is_stopping = True
        _send(self._workers, number)


def _send(processes: dict[str, Process], number: int) -> None:
    for process in processes.values():
        process.send(number)
