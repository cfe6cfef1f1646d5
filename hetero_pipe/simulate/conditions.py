"""Conditions: what does not go as predicted: varying times, stragglers, slow links, failures."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hetero_pipe.errors import ConfigError
from hetero_pipe.plan import ROLES

__all__ = ["Conditions", "Failure", "Restart", "Slowdown", "Straggler"]

SLOWED = ("cores", "network")
"""What of a host can be slow."""


@dataclass(frozen=True)
class Straggler:
    """A worker whose cores and device take longer for some steps.

    Attributes:
        rank: Of the worker among those of its role.
        factor: By which its times are multiplied, above 0.
        first_step: From which on.
        last_step: The first one again as before; None is never.
        role: One of `ROLES`, no server; None is the workers that read. A dense
            worker counts its own works.

    Raises:
        ConfigError: There is no such straggler.
    """

    rank: int
    factor: float
    first_step: int = 0
    last_step: int | None = None
    role: str | None = None

    def __post_init__(self) -> None:
        if self.rank < 0 or not 0 < self.factor < math.inf or self.role == "server":
            raise ConfigError(f"a straggler is a worker with a factor above 0, got {self}")
        if self.last_step is not None and self.last_step < self.first_step:
            raise ConfigError(f"a straggler's last_step is no less than its first, got {self}")


@dataclass(frozen=True)
class Slowdown:
    """The cores or the network of machines are slow for a while.

    Attributes:
        host: Name of the cluster's host, or of one of its machines.
        factor: By which what is done there takes longer, above 0.
        what: One of `SLOWED`.
        start: Seconds into the run.
        end: Likewise; infinite is for good.

    Raises:
        ConfigError: There is no such slowdown.
    """

    host: str
    factor: float
    what: str = "cores"
    start: float = 0.0
    end: float = math.inf

    def __post_init__(self) -> None:
        if self.what not in SLOWED:
            raise ConfigError(
                f"what is slow is one of {', '.join(SLOWED)}, got what={self.what!r} of host "
                f"{self.host!r}"
            )
        if not 0 < self.factor < math.inf or not 0 <= self.start <= self.end:
            raise ConfigError(f"a slowdown has a factor above 0 and start <= end, got {self}")


@dataclass(frozen=True)
class Failure:
    """A process stops.

    Attributes:
        role: One of `ROLES`.
        at: Seconds into the run.
        back_after: Seconds until it goes on where it was; infinite is never. Its
            clients' calls wait meanwhile. A real one does not come back so: see `Restart`.
        rank: Among the processes of its role. Of servers it makes no difference,
            as each request goes to all of them.

    Raises:
        ConfigError: There is no such failure.
    """

    role: str
    at: float
    back_after: float = math.inf
    rank: int = 0

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"what fails is one of {', '.join(ROLES)}, got role={self.role!r}")
        if not (self.at >= 0 and self.back_after >= 0 and self.rank >= 0):
            raise ConfigError(f"a failure is at a time of a rank, got {self}")


@dataclass(frozen=True)
class Restart:
    """What is done about a failure: as today, the whole job ends and begins again.

    Steps since the last checkpoint are done once more.

    Attributes:
        after: Seconds from the failure until the job trains again.
        checkpoint_every: Steps between two checkpoints, at least 1.
        save: Seconds that all workers wait for one to be written.

    Raises:
        ConfigError: There is no such restart.
    """

    after: float
    checkpoint_every: int
    save: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.after < math.inf and 0 <= self.save < math.inf):
            raise ConfigError(f"a restart takes at least 0 seconds, got {self}")
        if self.checkpoint_every < 1:
            raise ConfigError(
                f"checkpoint_every is at least 1, got checkpoint_every={self.checkpoint_every}"
            )


@dataclass(frozen=True)
class Conditions:
    """What does not go as predicted. By default, everything does.

    Attributes:
        variation: By stage, the coefficient of variation of its time: standard deviation
            by mean. Times are then lognormal, with the predicted one as their mean.
        interpreter: By stage, the share of its time on a worker's core in which it
            holds its process's interpreter, which one thread at a time does.
        wake_seconds: What a thread takes to go on that waited for another of its process: at
            a hand-off, or at the gate.
        stragglers: Workers.
        slowdowns: Machines and their links.
        failures: Processes.
        restart: What follows a failure; None lets all others wait for it.

    Raises:
        ConfigError: A value is out of range.
    """

    variation: Mapping[str, float] = field(default_factory=dict)
    interpreter: Mapping[str, float] = field(default_factory=dict)
    wake_seconds: float = 0.0
    stragglers: tuple[Straggler, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    failures: tuple[Failure, ...] = ()
    restart: Restart | None = None

    def __post_init__(self) -> None:
        for stage, value in self.variation.items():
            if not 0 <= value < math.inf:
                raise ConfigError(f"a variation is at least 0, got {value} of stage {stage!r}")
        if not 0 <= self.wake_seconds < math.inf:
            raise ConfigError(f"a wait is at least 0, got wake_seconds={self.wake_seconds}")
        for stage, value in self.interpreter.items():
            if not 0 <= value <= 1:
                raise ConfigError(f"a share is from 0 to 1, got {value} of stage {stage!r}")
