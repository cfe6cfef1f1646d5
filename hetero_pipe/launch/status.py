"""What a supervisor tells of its job."""

from dataclasses import dataclass
from pathlib import Path

from hetero_pipe.codec import decode
from hetero_pipe.launch.control import ask

__all__ = ["JobStatus", "ProcessStatus", "job_status"]


@dataclass(frozen=True)
class ProcessStatus:
    """A process of a job.

    Attributes:
        name: Such as `server 0`.
        state: `starting` (a server that does not listen yet), `running`,
            `stopping`, `waiting` (to be started, again or at all) or `ended`.
        since: When it came into this state: seconds since 1970.
        restarts: How often it was started again.
        pid: Its id, while it runs.
        address: HOST:PORT where a server listens.
    """

    name: str
    state: str
    since: float
    restarts: int = 0
    pid: int | None = None
    address: str | None = None


@dataclass(frozen=True)
class JobStatus:
    """A job whose supervisor runs.

    Attributes:
        name: Of the job.
        folder: Its folder.
        pid: Of the supervisor.
        since: When that was started: seconds since 1970.
        is_ending: Whether it stops, and starts nothing again.
        processes: Servers, then workers.
    """

    name: str
    folder: str
    pid: int
    since: float
    is_ending: bool = False
    processes: tuple[ProcessStatus, ...] = ()


def job_status(folder: str | Path) -> JobStatus:
    """Asks the supervisor of a job's folder what runs.

    Raises:
        ConfigError: None runs there, or it did not answer.
    """
    return decode(JobStatus, ask(Path(folder) / "control", {"request": "status"}))
