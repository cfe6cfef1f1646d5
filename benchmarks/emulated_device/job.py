"""Jobs of real processes on this machine: a ps-server and workers, as a user starts them."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from run import Run

ROOT = Path(__file__).parents[2]
WORKER = str(Path(__file__).parent / "worker.py")
HOST = "127.0.0.1"
STALENESS = 2
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Job:
    """Workers in front of one ps-server, mode bounded.

    Attributes:
        num_sparse: That feed one dense worker; 0 is a whole worker alone.
    """

    num_sparse: int

    def __str__(self) -> str:
        if not self.num_sparse:
            return f"server, whole worker, k = {STALENESS}"
        return f"server, {self.num_sparse} sparse, 1 dense, k = {STALENESS}"


JOBS = (Job(0), Job(1), Job(2))


def run_job(job: Job, *, milliseconds: float, num_steps: int, verbose: bool = False) -> Run:
    """Trains so many batches and returns what that took of all processes.

    Raises:
        SystemExit: A process failed.
    """
    silent = None if verbose else subprocess.DEVNULL
    address, coordinator, dense = _free_addresses(3)
    flags = ["--servers", address, "--num-workers", str(job.num_sparse or 1)]
    flags += ["--coordinator", coordinator, "--staleness", str(STALENESS)]
    stages = ["whole"]
    if job.num_sparse:
        flags += ["--dense-workers", dense]
        stages = ["sparse"] * job.num_sparse + ["dense"]
    own = ["--ms", str(milliseconds), "--steps", str(num_steps)]
    with ExitStack() as stack:
        serve = ["-m", "ps_server", "--listen", address]
        server = stack.enter_context(_started(serve, stdout=silent, stderr=silent))
        workers = []
        for i, stage in enumerate(stages):
            role = ["--stage", stage, "--worker", str(i if stage == "sparse" else 0)]
            command = ["-m", "hetero_pipe", "worker", *flags, *role, WORKER, *own]
            workers.append(
                stack.enter_context(_started(command, stdout=subprocess.PIPE, stderr=silent))
            )
        first = workers[0].stdout
        assert first is not None
        first.readline()  # it begins, or has failed
        before = _cpu_of(server.pid)
        told = [first.readline()]
        server_cpu = _cpu_of(server.pid) - before
        told += [worker.communicate(timeout=60)[0] for worker in workers[1:]]
        if any(worker.wait(60) for worker in workers):
            sys.exit(f"error: a worker of '{job}' failed; see why with --verbose")
    found = [json.loads(text.splitlines()[-1]) for text in told]
    return _run_of(found, server_cpu, milliseconds, num_steps)


def _run_of(found: Sequence[dict], server_cpu: float, milliseconds: float, num_steps: int) -> Run:
    first = found[0]
    cpu = server_cpu + sum(each["cpu"] for each in found)
    busy: dict[str, float] = {}
    for each in found:
        for stage, share in each["busy"].items():
            busy[stage] = max(share, busy.get(stage, 0.0))
    size = first["samples"] / num_steps
    return Run(
        samples_per_second=first["samples"] / first["seconds"],
        limit=size / (milliseconds / 1e3),
        busy=busy,
        cpu_ms=1e3 * cpu / num_steps,
        cores=cpu / first["seconds"] / len(os.sched_getaffinity(0)),
    )


@contextmanager
def _started(command: Sequence[str], **streams: int | None) -> Iterator[subprocess.Popen]:
    """Runs a Python command; it is ended with the block."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    with subprocess.Popen(
        [sys.executable, *command], env=environment, text=True, **streams
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _free_addresses(number: int) -> list[str]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind((HOST, 0))
        return [f"{HOST}:{each.getsockname()[1]}" for each in sockets]


def _cpu_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND  # user and system
