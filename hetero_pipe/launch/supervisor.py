"""Runs a job whose processes are started again when they die."""

import logging
import math
import os
import queue
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace

from hetero_pipe.errors import ConfigError
from hetero_pipe.launch.address import free_addresses, is_free
from hetero_pipe.launch.control import Control, Message
from hetero_pipe.launch.folder import JobFolder
from hetero_pipe.launch.interrupt import told_of_signals
from hetero_pipe.launch.job import Job
from hetero_pipe.launch.process import KILL_SECONDS, Ended, OnLine, Output, Process, copier
from hetero_pipe.launch.restart import Restarts
from hetero_pipe.launch.status import JobStatus, ProcessStatus
from hetero_pipe.launch.workers import Workers
from hetero_pipe.section import nearest
from hetero_pipe.units import format_seconds

__all__ = ["supervise"]

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
WRITE_SECONDS = 0.5  # until the servers file is tried again
REQUESTS = ("status", "start_servers", "stop_servers")


def supervise(job: Job) -> int:
    """Runs a job to its end and returns its exit code; called by the main thread.

    A server that ends is started again with its data, on its port if that is free;
    the servers file tells where. Once a worker fails, all are stopped and started
    again with the same arguments; in mode `elastic` it alone is, and the others go on.
    Both have limits, `RestartLimit`. Ctrl-C and
    SIGTERM are passed on to the workers; servers stay until these have ended.
    Whatever happens to this process, also SIGKILL, none of the job's outlives it
    (on Linux). The servers' data stay: the same job, run again, goes on with them.

    Returns:
        0 if every worker returned 0; of a failure at its limit, its exit code as a
        shell gives it; 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        ConfigError: Another supervisor has the job's folder, or it cannot be written
            to.
    """
    with JobFolder(job.folder) as folder:
        if job.is_durable:
            job = _as_it_was(job, folder)
        with (
            _Supervisor(job, folder) as supervisor,
            Control(folder.control, supervisor.answer),
        ):
            code = supervisor.run()
    how = "is done" if code == 0 else "has stopped, and goes on when it is started again"
    logger.info(
        "job %s %s; its data and logs stay in %s until you remove that", job.name, how, folder.path
    )
    return code


def _as_it_was(job: Job, folder: JobFolder) -> Job:
    """Returns a job with as many servers as it has data of: it may have been scaled."""
    found, wanted = folder.num_servers(), job.processes.num_servers
    if found is None or found == wanted:
        return job
    logger.warning(
        "job %s goes on with %d servers, whose data are in %s, not with %d; hetero-pipe scale "
        "changes that while it runs",
        *(job.name, found, folder.path, wanted),
    )
    return replace(job, processes=replace(job.processes, num_servers=found))


@dataclass(frozen=True)
class _Listens:
    """A server says where."""

    server: str
    address: str


@dataclass(frozen=True)
class _Asked:
    """Somebody asks, by the job's socket, and waits for a reply."""

    request: Message
    replies: "queue.SimpleQueue[Message]"


@dataclass
class _Server:
    """A server, whether it runs or not."""

    number: int
    restarts: Restarts
    process: Process | None = None
    is_listening: bool = False
    address: str | None = None  # where it has listened last
    due: float = -math.inf  # when it is to be started
    started: float = -math.inf
    since: float = field(default_factory=time.time)

    @property
    def name(self) -> str:
        return f"server {self.number}"

    def status(self) -> ProcessStatus:
        state = "running" if self.is_listening else "starting" if self.process else "waiting"
        return ProcessStatus(
            self.name,
            state,
            self.since,
            self.restarts.total,
            self.process.pid if self.process else None,
            self.address if self.is_listening else None,
        )


@dataclass
class _Worker:
    """A worker that is started again by itself."""

    command: Sequence[str]
    restarts: Restarts
    started: float
    due: float = math.inf  # when it is to be started again


class _Supervisor:
    """The processes of a job, and the queue of what happens to them.

    All but `answer` is done by the main thread, which starts the processes: they
    end with it. It waits for the next event or the next time at which something is
    due, and then does all that is due::

        server   due -> starting -> running -> ended: due again, or the job ends
        workers  due, and every server listens -> running -> all ended: done
                  ^                                  | one fails
                  +------------ all stopped <--------+

    A worker of mode `elastic` that fails is due by itself.
    """

    def __init__(self, job: Job, folder: JobFolder) -> None:
        self._job = job
        self._folder = folder
        self._events: queue.SimpleQueue[_Listens | Ended | _Asked | signal.Signals] = (
            queue.SimpleQueue()
        )
        self._servers = {
            server.name: server
            for server in (
                _Server(i, Restarts(job.server_restarts)) for i in range(job.processes.num_servers)
            )
        }
        self._leaving: dict[str, Process] = {}  # servers that are no more of the job
        self._workers = Workers(self._spawn, are_alone=job.processes.is_elastic)
        self._alone: dict[str, _Worker] = {}  # by name, in mode `elastic`
        self._worker_restarts = Restarts(job.worker_restarts)
        self._workers_due = -math.inf  # infinity while they run, and when they are done
        self._file_due = math.inf  # when the servers file is to be written, once more
        self._worker_since: dict[str, float] = {}
        self._code: int | None = None  # the job ends with it, once the workers have
        self._since = time.time()
        self._out, self._err = Output(sys.stdout.buffer), Output(sys.stderr.buffer)
        self._logs: dict[str, Output] = {}
        self._resources = ExitStack()  # signal handlers and log files

    def __enter__(self) -> "_Supervisor":
        self._resources.enter_context(told_of_signals(self._events.put))
        return self

    def __exit__(self, *error: object) -> None:
        with self._resources:
            self._end(self._workers.processes, signal.SIGKILL)
            servers = {s.name: s.process for s in self._servers.values() if s.process is not None}
            self._end(self._leaving | servers, signal.SIGTERM)

    def run(self) -> int:
        """Returns the job's exit code when no worker is left."""
        while True:
            now = time.monotonic()
            failure = self._workers.check(now=now)
            if failure is not None:
                self._note_failure(failure, now=now)
            if self._workers.are_done and not self._dues():
                return 0
            if self._code is not None and not self._workers.processes:
                return self._code
            self._start_due(now)
            try:
                event = self._events.get(timeout=self._seconds_left(now))
            except queue.Empty:
                continue
            self._note(event, now=time.monotonic())

    def answer(self, request: Message) -> Message:
        """Returns the reply to a request; called by any thread.

        Raises:
            ConfigError: It is none that a supervisor knows, or the job is just ending.
        """
        name = request.get("request")
        if name not in REQUESTS:
            raise ConfigError(
                f"a request is one of {', '.join(REQUESTS)}, got {name!r}{nearest(name, REQUESTS)}"
            )
        if name != "status":
            self._check_number(request.get("number"))
        replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._events.put(_Asked(request, replies))
        try:
            return replies.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise ConfigError("the job is just ending") from None

    def _check_number(self, number: object) -> None:
        if not isinstance(number, int) or number < 1:
            raise ConfigError(f"a job has at least 1 server, got number={number!r}")
        if not self._job.is_durable or not self._servers:
            raise ConfigError(
                "servers come and go where they keep their rows (durability = process), got a job "
                f"with {len(self._servers)} servers and durability = {self._job.durability}"
            )

    # ---------------------------------------------------------------- what is due

    def _seconds_left(self, now: float) -> float | None:
        """Returns the time until something is due; None if nothing is but what happens."""
        due = [s.due for s in self._servers.values() if s.due > now]
        due += [each for each in self._dues() if each > now]
        due += [each for each in (self._workers_due, self._file_due) if each > now]
        left = min([*due, self._workers.next_check]) - now
        return None if left == math.inf else max(left, 0.0)

    def _start_due(self, now: float) -> None:
        for server in self._servers.values():
            if server.process is None and server.due <= now and server.name not in self._leaving:
                self._start_server(server, now)
        if self._file_due <= now:
            self._write_servers(now)
        is_due = self._workers_due <= now and not self._workers.processes and self._code is None
        if is_due and all(server.is_listening for server in self._servers.values()):
            coordinator, *dense = free_addresses(1 + self._job.processes.num_dense)
            commands = self._job.worker_commands(
                servers_file=self._folder.servers_file, coordinator=coordinator, dense=dense
            )
            self._workers_due = math.inf
            self._worker_since = dict.fromkeys(commands, time.time())
            self._workers.start(commands, now=now)
            if self._job.processes.is_elastic:
                self._alone = {
                    name: _Worker(command, self._restarts_of(name), now)
                    for name, command in commands.items()
                }
        for name, worker in self._alone.items():
            if worker.due <= now and not self._workers.is_stopping:
                worker.due, worker.started = math.inf, now
                self._worker_since[name] = time.time()
                self._workers.start_again(name, worker.command)

    def _dues(self) -> list[float]:
        """Returns when workers are to be started again, each by itself."""
        dues = [worker.due for worker in self._alone.values() if worker.due < math.inf]
        return [] if self._workers.is_stopping else dues

    def _restarts_of(self, name: str) -> Restarts:
        """Returns those that count for a worker: its own, or of all together."""
        if not self._job.processes.is_elastic:
            return self._worker_restarts
        known = self._alone.get(name)
        return Restarts(self._job.worker_restarts) if known is None else known.restarts

    def _start_server(self, server: _Server, now: float) -> None:
        address = server.address if server.address and is_free(server.address) else None
        server.address = None  # somebody else may be faster there: then not once more
        command = self._job.server_command(self._folder.data_of(server.number), address=address)
        server.due, server.started, server.since = math.inf, now, time.time()
        server.process = self._spawn(server.name, command, on_out=self._read_address(server.name))

    # -------------------------------------------------------------- what has happened

    def _note(self, event: "_Listens | Ended | _Asked | signal.Signals", *, now: float) -> None:
        if isinstance(event, signal.Signals):
            self._note_signal(event, now=now)
        elif isinstance(event, _Asked):
            self._note_request(event.request, now=now)
            event.replies.put(asdict(self._status()))
        elif isinstance(event, _Listens):
            if event.server in self._servers:
                self._note_address(self._servers[event.server], event.address, now=now)
        elif event.name in self._leaving:
            del self._leaving[event.name]
        elif event.name in self._servers:
            self._note_server_end(self._servers[event.name], event, now=now)
        else:
            self._worker_since[event.name] = time.time()
            failure = self._workers.note(event, now=now)
            if failure is not None:
                self._note_failure(failure, now=now)

    def _note_request(self, request: Message, *, now: float) -> None:
        number = request.get("number", 0)
        if request["request"] == "start_servers":
            for i in range(len(self._servers), number):
                server = _Server(i, Restarts(self._job.server_restarts))
                self._servers[server.name] = server
                logger.info("%s is new", server.name)
        elif request["request"] == "stop_servers":
            for server in [*self._servers.values()][number:]:
                del self._servers[server.name]
                if server.process is not None:
                    self._leaving[server.name] = server.process
                    server.process.send(signal.SIGTERM)
                logger.info("%s leaves; its folder stays", server.name)
            self._write_servers(now)

    def _note_address(self, server: _Server, address: str, *, now: float) -> None:
        server.address, server.is_listening, server.since = address, True, time.time()
        self._write_servers(now)
        if server.restarts.total:
            seconds = format_seconds(now - server.started)
            logger.warning("%s listens again, on %s, after %s", server.name, address, seconds)

    def _write_servers(self, now: float) -> None:
        """Says where the servers are, once all are known; is tried again while the disk is full."""
        addresses = [each.address for each in self._servers.values() if each.address]
        if len(addresses) < len(self._servers):
            return
        try:
            self._folder.write_servers(addresses)
        except OSError as error:
            if self._file_due == math.inf:
                logger.warning("where servers listen cannot be written: %s; trying again", error)
            self._file_due = now + WRITE_SECONDS
        else:
            self._file_due = math.inf

    def _note_server_end(self, server: _Server, ended: Ended, *, now: float) -> None:
        server.process, server.is_listening, server.since = None, False, time.time()
        why = server.restarts.note(ended, at=now, lasted=now - server.started)
        if why is not None:
            return self._give_up(ended, why, now=now)
        delay = server.restarts.delay
        server.due = now + delay
        if self._job.is_durable:
            logger.warning(
                "%s; it starts again with its data%s: %s", _told(ended), _in(delay), server.restarts
            )
        else:
            logger.warning(
                "%s, and its rows are lost; it and all workers start again%s: %s",
                *(_told(ended), _in(delay), server.restarts),
            )
            self._workers.stop(signal.SIGTERM, now=now)
            self._workers_due = now

    def _note_failure(self, failure: Ended, *, now: float) -> None:
        restarts, worker = self._restarts_of(failure.name), self._alone.get(failure.name)
        started = self._workers.started if worker is None else worker.started
        why = restarts.note(failure, at=now, lasted=now - started)
        if why is not None:
            return self._give_up(failure, why, now=now)
        if worker is not None:
            logger.warning(
                "%s; it starts again%s, and the others go on: %s",
                *(_told(failure), _in(restarts.delay), restarts),
            )
            worker.due = now + restarts.delay
            return
        logger.warning(
            "%s; all workers start again%s: %s", _told(failure), _in(restarts.delay), restarts
        )
        self._workers.stop(signal.SIGTERM, now=now)
        self._workers_due = now + restarts.delay

    def _note_signal(self, number: signal.Signals, *, now: float) -> None:
        is_urgent = number == signal.SIGTERM or self._code is not None
        self._code = self._code or 128 + number
        self._workers.stop(number, now=now, seconds=KILL_SECONDS if is_urgent else math.inf)

    def _give_up(self, ended: Ended, why: str, *, now: float) -> None:
        logger.error("%s; %s, so the job ends", _told(ended), why)
        self._code = self._code or ended.shell_code or 1
        self._workers.stop(signal.SIGTERM, now=now)

    # ------------------------------------------------------------------ what there is

    def _status(self) -> JobStatus:
        state = "stopping" if self._workers.is_stopping else "running"
        is_waiting = self._workers_due < math.inf
        workers = []
        for name, since in self._worker_since.items():
            process = self._workers.processes.get(name)
            is_due = is_waiting or (name in self._alone and self._alone[name].due < math.inf)
            workers.append(
                ProcessStatus(
                    name,
                    state if process else "waiting" if is_due else "ended",
                    since,
                    self._restarts_of(name).total,
                    process.pid if process else None,
                )
            )
        return JobStatus(
            self._job.name,
            str(self._folder.path),
            os.getpid(),
            self._since,
            is_ending=self._code is not None,
            processes=(*(server.status() for server in self._servers.values()), *workers),
        )

    def _spawn(self, name: str, arguments: Sequence[str], on_out: OnLine | None = None) -> Process:
        log = self._log(name)
        copy = copier(name, self._err, log)
        said = [""]

        def on_err(line: bytes) -> None:
            copy(line)
            text = line.decode(errors="replace").strip()
            said[0] = text or said[0]

        return Process(
            [sys.executable, "-u", *arguments],
            on_out=on_out or copier(name, self._out, log),
            on_err=on_err,
            on_end=lambda code: self._events.put(Ended(name, code, said[0])),
            inherit=[self._folder.lock_fd],
        )

    def _log(self, name: str) -> Output:
        if name not in self._logs:
            folder = self._job.processes.log_dir or self._folder.logs
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # Unbuffered: what a full disk has no room for is not tried again at the end.
                file = (folder / f"{name.replace(' ', '.')}.log").open("ab", buffering=0)
            except OSError as error:
                raise ConfigError(
                    f"a log folder can be written to, got {error}; name another"
                ) from error
            self._logs[name] = Output(self._resources.enter_context(file))
        return self._logs[name]

    def _read_address(self, server: str) -> OnLine:
        def read(line: bytes) -> None:
            address = line.decode().removeprefix("listening on ").strip()
            self._events.put(_Listens(server, address))

        return read

    def _end(self, processes: dict[str, Process], number: int) -> None:
        """Sends all a signal, kills those that are left after a while, and waits for their ends."""
        left = dict(processes)
        deadline = time.monotonic() + KILL_SECONDS
        _send(left, number)
        while left:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                deadline = time.monotonic() + KILL_SECONDS  # the kernel's time, and to drain
                _send(left, signal.SIGKILL)
            else:
                if isinstance(event, Ended):
                    left.pop(event.name, None)


def _send(processes: dict[str, Process], number: int) -> None:
    for process in processes.values():
        process.send(number)


def _told(ended: Ended) -> str:
    return f"{ended} ({ended.said})" if ended.said and ended.code > 0 else str(ended)


def _in(delay: float) -> str:
    return f" in {format_seconds(delay)}" if delay else " at once"
