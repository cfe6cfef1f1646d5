"""Scales a supervised job: servers start, buckets move, servers that own nothing leave."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hetero_pipe.client import (
    BucketsMoved,
    Retry,
    ScaleStep,
    check_tables,
    move_buckets,
    wait_until_left,
)
from hetero_pipe.errors import ConfigError
from hetero_pipe.launch.control import ask, listens
from hetero_pipe.launch.status import JobStatus, ProcessStatus, job_status
from hetero_pipe.units import format_seconds

__all__ = ["find_job", "scale_job"]

logger = logging.getLogger(__name__)

START_SECONDS = 60.0
LEAVE_SECONDS = 60.0
LOOK_SECONDS = 0.1


def find_job(folder: Path) -> Path:
    """Returns a job's folder that is supervised: this one, or the only one in it.

    Raises:
        ConfigError: There is none, or several.
    """
    if (folder / "control").exists():
        return folder
    found = [path.parent for path in sorted(folder.glob("*/control")) if listens(path)]
    if len(found) != 1:
        named = ", ".join(map(str, found)) or "none"
        raise ConfigError(
            f"a job's folder has a supervisor, or one folder in it has, got {named} in "
            f"{folder.absolute()}; name one, or start its job with hetero-pipe launch JOB.toml"
        )
    return found[0]


def scale_job(
    folder: Path,
    num_servers: int,
    *,
    retry_seconds: float,
    on_step: Callable[[ScaleStep], None] = lambda step: None,
) -> BucketsMoved:
    """Brings a job to another number of servers while it trains, and returns what moved.

    Interrupted, it is called again: what was begun is finished first.

    Args:
        folder: Of the job.
        num_servers: How many there shall be, at least 1.
        retry_seconds: How long to wait for a server that is away.
        on_step: Called after each move of some buckets.

    Raises:
        ConfigError: No supervisor runs there, its servers keep no rows, or none has a
            table yet.
        ServerError: A server refused, or is away for too long.
    """
    before = len(_servers(job_status(folder)))
    file = [f"@{folder / 'servers.json'}"]
    check_tables(
        file
    )  # or workers that begin just now would not agree on how many servers there are
    if num_servers > before:
        ask(folder / "control", {"request": "start_servers", "number": num_servers})
    _wait_for_servers(folder, max(before, num_servers))
    retry = Retry(retry_seconds, np.random.default_rng())
    done = move_buckets(file, num_servers, retry=retry, on_step=on_step)
    if num_servers < before:
        leaving = [each.address for each in _servers(job_status(folder))[num_servers:]]
        if not wait_until_left([each for each in leaving if each], seconds=LEAVE_SECONDS):
            raise ConfigError(
                f"servers that own nothing leave when the workers know it, got some that were "
                f"silent for {format_seconds(LEAVE_SECONDS)}; their rows have moved: scale again "
                "when they train"
            )
        ask(folder / "control", {"request": "stop_servers", "number": num_servers})
    return done


def _servers(status: JobStatus) -> list[ProcessStatus]:
    return [each for each in status.processes if each.name.startswith("server ")]


def _wait_for_servers(folder: Path, number: int) -> None:
    """Returns when so many servers listen, and the servers file says where.

    Raises:
        ConfigError: They do not in time.
    """
    deadline = time.monotonic() + START_SECONDS
    while True:
        servers = _servers(job_status(folder))
        listening = [each for each in servers if each.state == "running"]
        if len(listening) == number:
            return
        if time.monotonic() >= deadline:
            raise ConfigError(
                f"a job's servers must listen within {format_seconds(START_SECONDS)}, got "
                f"{len(listening)} of {number}; see their logs in {folder / 'logs'}"
            )
        time.sleep(LOOK_SECONDS)
