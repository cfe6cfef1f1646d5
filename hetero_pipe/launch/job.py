"""A job that is supervised: what `hetero-pipe launch JOB.toml` reads and starts."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hetero_pipe.errors import ConfigError
from hetero_pipe.launch.address import HOST
from hetero_pipe.launch.local import LocalJob
from hetero_pipe.launch.restart import RestartLimit
from hetero_pipe.section import Section, nearest
from hetero_pipe.units import parse_bytes, parse_seconds

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DURABILITIES", "Job", "load_job"]

DURABILITIES = ("process", "none")

JOB_KEYS = ("name", "dir", "servers", "workers", "restarts")
SERVERS_KEYS = ("number", "durability", "journal_limit", "restarts")
WORKERS_KEYS = ("number", "sparse", "dense", "script", "arguments", "restarts")
RESTARTS_KEYS = ("limit", "within", "delay", "longest_delay")


@dataclass(frozen=True)
class Job:
    """A job on one host whose processes are started again when they die.

    Attributes:
        name: For people.
        folder: Its own: the servers' data, logs, and what tells of it.
        processes: Which there are, and the workers' command, in whose arguments
            `{dir}` stands for the folder.
        durability: What a server that was killed comes back with: `process` is all
            that it has answered, `none` nothing.
        journal_limit: Bytes after which a server writes a checkpoint; None leaves
            it to the server.
        server_restarts: Of each server.
        worker_restarts: Of the workers, which are started again together; in mode
            `elastic`, of each.

    Raises:
        ConfigError: `durability` is unknown, or the workers' script is not there.
    """

    name: str
    folder: Path
    processes: LocalJob
    durability: str = "process"
    journal_limit: int | None = None
    server_restarts: RestartLimit = field(default_factory=RestartLimit)
    worker_restarts: RestartLimit = field(default_factory=RestartLimit)

    def __post_init__(self) -> None:
        if self.durability not in DURABILITIES:
            raise ConfigError(
                f"a server's durability is {' or '.join(DURABILITIES)}, got {self.durability!r}"
                f"{nearest(self.durability, DURABILITIES)}"
            )

    @property
    def is_durable(self) -> bool:
        """Whether a server that was killed comes back with its rows."""
        return self.durability != "none"

    def server_command(self, data: Path, *, address: str | None) -> list[str]:
        """Returns the arguments with which Python is a server of the job.

        Args:
            data: Its folder.
            address: HOST:PORT; None is a free port.
        """
        limit = () if self.journal_limit is None else ("--journal-limit", f"{self.journal_limit}B")
        durable = ("--durability", self.durability, *limit) if self.is_durable else ()
        return [
            *("-m", "ps_server", "--listen", address or f"{HOST}:0"),
            *("--data-dir", str(data), *durable),
        ]

    def worker_commands(
        self, *, servers_file: Path, coordinator: str, dense: Sequence[str]
    ) -> dict[str, list[str]]:
        """Returns the arguments with which Python is a worker of the job, for each by name.

        Args:
            servers_file: Says where the servers listen, as long as the job runs.
            coordinator: HOST:PORT where the workers meet.
            dense: HOST:PORT of each dense worker.
        """
        command = [each.replace("{dir}", str(self.folder)) for each in self.processes.command]
        flags = self.processes.worker_arguments(
            servers=[f"@{servers_file}"] if self.processes.num_servers else [],
            coordinator=coordinator,
            dense=dense,
        )
        return {name: [*command, *own] for name, own in flags.items()}


def load_job(path: Path) -> Job:
    """Returns the job that a TOML file describes; docs/operations.md lists the keys.

    Its `dir` and `script` are named as from the file's own folder.

    Raises:
        ConfigError: It cannot be read, or describes no job; names part and key.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"a job file must be readable, got {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: a job is TOML, got {error}") from error
    job = Section(tables, str(path), JOB_KEYS)
    servers = _part(job, "servers", SERVERS_KEYS)
    workers = _part(job, "workers", WORKERS_KEYS)
    name = job.text("name", path.stem)
    try:
        limit = _limit(_part(job, "restarts", RESTARTS_KEYS))
        return Job(
            name,
            (path.parent / job.text("dir", name)).absolute(),
            _processes(servers, workers, path.parent),
            durability=servers.text("durability", DURABILITIES[0]),
            journal_limit=_journal_limit(servers),
            server_restarts=replace(limit, limit=_count(servers, "restarts", limit.limit)),
            worker_restarts=replace(limit, limit=_count(workers, "restarts", limit.limit)),
        )
    except ConfigError as error:  # a description does not know which file it is of
        if str(error).startswith(str(path)):
            raise
        raise ConfigError(f"{path}: {error}") from error


def _part(job: Section, key: str, keys: Sequence[str]) -> Section:
    return Section(job.table(key) if key in job else {}, job.within(f"[{key}]"), keys)


def _count(section: Section, key: str, default: int) -> int:
    value = section.number(key, default)
    if not isinstance(value, int) or value < 0:
        raise section.error(key, f"a whole number of at least 0, got {value!r}")
    return value


def _limit(section: Section) -> RestartLimit:
    times = {
        key: section.quantity(key, parse_seconds, "600s")
        for key in RESTARTS_KEYS[1:]
        if key in section
    }
    return RestartLimit(_count(section, "limit", RestartLimit.limit), **times)


def _journal_limit(section: Section) -> int | None:
    if "journal_limit" not in section:
        return None
    return round(section.quantity("journal_limit", parse_bytes, "1GiB"))


def _processes(servers: Section, workers: Section, folder: Path) -> LocalJob:
    if ("sparse" in workers) != ("dense" in workers):
        missing = "dense" if "sparse" in workers else "sparse"
        raise workers.error(missing, "given, as sparse workers feed dense ones, got none")
    if "sparse" in workers and "number" in workers:
        raise workers.error("number", "left out, as workers are whole, or sparse and dense")
    return LocalJob(
        (str(folder / workers.text("script")), *workers.texts("arguments")),
        num_servers=_count(servers, "number", LocalJob.num_servers),
        num_readers=_count(
            workers, "sparse" if "sparse" in workers else "number", LocalJob.num_readers
        ),
        num_dense=_count(workers, "dense", LocalJob.num_dense),
    )
