"""Runs one configuration for real: a fresh worker, or two, and as many ps-servers as it says."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from config import Config
from memory import peak_bytes, reset_peak, resident_bytes

ROOT = Path(__file__).parents[2]
WORKER = str(Path(__file__).parent / "worker.py")
HOST = "127.0.0.1"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

sys.path.append(str(Path(__file__).parents[1] / "emulated_device"))

import emulated  # noqa: E402


@dataclass(frozen=True)
class Measured:
    """What one run of a configuration gave.

    Attributes:
        step: Seconds between two steps, in steady state.
        peak_bytes: That trainers and servers have had more, at most, than before the
            tables and the dense part were made; the sum of each process's own peak.
        process_bytes: The same by process.
        stages: By worker and stage, seconds a step: `busy`, and `cpu` on a core.
        cpu: Seconds a step on cores, by process.
        num_rows: Of each table.
        others: The share of all cores that had something else to do meanwhile.
        core_speed: FLOP/s of a core in small matmuls, just before and after: a virtual
            machine's cores are not the same all the time.
    """

    step: float
    peak_bytes: int
    process_bytes: Mapping[str, int]
    stages: Mapping[str, Mapping[str, float]]
    cpu: Mapping[str, float]
    num_rows: Mapping[str, int]
    others: float
    core_speed: float


def device_environment() -> dict[str, str]:
    """Returns the environment of a process that sees the emulated device."""
    return emulated.environment(emulated.build(), memory=4 << 30)


def run_config(config: Config, *, verbose: bool = False) -> Measured:
    """Trains once and returns what that took.

    Raises:
        RuntimeError: A process failed.
    """
    silent = None if verbose else subprocess.DEVNULL
    coordinator, dense = _free_addresses(2)
    stages = ["sparse", "dense"] if config.workers == "split" else ["whole"]
    device = device_environment() if config.is_emulated else {}
    with ExitStack() as stack:
        servers = [stack.enter_context(_server(silent)) for _ in range(config.servers)]
        flags = ["--config", json.dumps(asdict(config)), "--staleness", str(config.staleness)]
        flags += ["--wire", config.wire]
        if servers:
            flags += ["--servers", ",".join(address for _, address in servers)]
        if len(stages) > 1:
            flags += ["--coordinator", coordinator, "--dense-workers", dense]
        workers = {
            stage: stack.enter_context(
                _started(
                    [WORKER, *flags, "--stage", stage],
                    stderr=silent,
                    environment=device if stage != "sparse" else {},
                )
            )
            for stage in stages
        }
        for worker in workers.values():
            _told(config, worker)  # it is ready
        before = {process.pid: resident_bytes(process.pid) for process, _ in servers}
        for pid in before:
            reset_peak(pid)
        first = workers[stages[0]]
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
        for worker in workers.values():
            _told(config, worker)  # it begins
        cpu = {process.pid: _cpu_of(process.pid) for process, _ in servers}
        start = _cpu_of_all()
        found = {stages[0]: _told(config, first)}
        of_all = [after - before for before, after in zip(start, _cpu_of_all(), strict=True)]
        used = {pid: _cpu_of(pid) - seconds for pid, seconds in cpu.items()}
        peaks = {pid: peak_bytes(pid) - size for pid, size in before.items()}
        found |= {stage: _told(config, workers[stage]) for stage in stages[1:]}
    return _measured(found, peaks, used, of_all)


def _measured(
    found: Mapping[str, dict],
    peaks: Mapping[int, int],
    used: Mapping[int, float],
    of_all: Sequence[float],
) -> Measured:
    first = next(iter(found.values()))
    num_steps = first["num_steps"]
    sizes = {stage: each["peak_bytes"] for stage, each in found.items()}
    sizes |= {f"server {i}": size for i, size in enumerate(peaks.values())}
    cpu = {stage: each["cpu"] for stage, each in found.items()}
    cpu |= {f"server {i}": each / num_steps for i, each in enumerate(used.values())}
    stages = {
        name if stage == "whole" else f"{stage} {name}": seconds
        for stage, each in found.items()
        for name, seconds in each["stages"].items()
    }
    busy, idle = of_all
    others = max(busy - num_steps * sum(cpu.values()), 0.0) / (busy + idle)
    return Measured(
        first["step"],
        sum(sizes.values()),
        sizes,
        stages,
        cpu,
        first["num_rows"],
        others,
        first["core_speed"],
    )


def _told(config: Config, worker: subprocess.Popen) -> dict:
    """Returns the next line of a worker."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker of {config.name!r} failed; see why with --verbose")
    return json.loads(line)


@contextmanager
def _server(silent: int | None) -> Iterator[tuple[subprocess.Popen, str]]:
    """Runs a ps-server, and gives it and its HOST:PORT."""
    with _started(["-m", "ps_server", "--listen", f"{HOST}:0"], stderr=silent) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[-1]


@contextmanager
def _started(
    command: Sequence[str], *, stderr: int | None, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen]:
    """Runs a Python command; it is ended with the block."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    with subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
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


def _cpu_of_all() -> tuple[float, float]:
    """Returns the seconds in which cores of the machine were busy, or not theirs, and idle."""
    fields = [int(each) for each in Path("/proc/stat").read_text().split()[1:9]]
    idle = fields[3] + fields[4]  # idle, and waiting for a disk
    return (sum(fields) - idle) / TICKS_PER_SECOND, idle / TICKS_PER_SECOND
