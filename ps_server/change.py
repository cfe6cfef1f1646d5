"""Changes: all that ever happens to the state of a server, one after the other.

A server that makes the same changes in the same order, from nothing or from a
checkpoint, has the same state to the bit. So a log of them is all that it takes
to come back after a kill.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ps_server.route import Route, ServerRef
from ps_server.spec import TableSpec
from ps_server.table import Rows

__all__ = [
    "Change",
    "ClockSet",
    "CreateTable",
    "Discard",
    "DropTable",
    "Give",
    "Gradients",
    "Hold",
    "Joined",
    "Left",
    "Log",
    "MemberState",
    "MoveChange",
    "NotLogged",
    "Origin",
    "Prepare",
    "Presence",
    "Push",
    "PushesFinished",
    "RangeCompleted",
    "RangeLeased",
    "RangeReturned",
    "ReplaceRows",
    "RosterState",
    "StagePush",
    "StageRows",
    "Take",
]

Gradients = Mapping[str, tuple[NDArray[np.uint64], NDArray[np.float32]]]
"""Keys `[n]` and gradients, `[n, dim]` or flat, by table."""


@dataclass(frozen=True)
class Origin:
    """What tells a push from all others: who pushes, and which of its pushes it is.

    Attributes:
        worker: The client's number, 64 bits drawn at random, never 0.
        sequence: From 1, the same on every server.

    Raises:
        ValueError: A number is out of range.
    """

    worker: int
    sequence: int

    def __post_init__(self) -> None:
        if not (0 < self.worker < 2**64 and 0 < self.sequence < 2**64):
            raise ValueError(
                "a push that says who pushes needs a worker and a sequence from 1 to 2**64 - 1, "
                f"got worker={self.worker}, sequence={self.sequence}"
            )


@dataclass(frozen=True)
class CreateTable:
    """A table that was not there is, under this id and route."""

    spec: TableSpec
    id: int
    route: Route


@dataclass(frozen=True)
class DropTable:
    """A table that was there is no more."""

    name: str


@dataclass(frozen=True, eq=False)
class ReplaceRows:
    """A table has these rows and no others: all of a load or none of it."""

    name: str
    rows: tuple[Rows, ...]


@dataclass(frozen=True, eq=False)
class Push:
    """Gradients are applied, pushes are noted as applied, and clocks are at `step`.

    Attributes:
        step: From 1: which update of the tables this is.
        gradients: What each table is pushed, in its order: the mean, if workers
            pushed parts. Nothing that an earlier push of the same origin has
            brought.
        origins: Of the pushes, or parts, that are in it and said whose they are.
        ranks: Of the members whose clocks move, if they run.
    """

    step: int
    gradients: Gradients
    origins: tuple[Origin, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Joined:
    """A worker is a member. `worker` is 0 if it does not say its number."""

    rank: int
    num_workers: int
    name: str
    worker: int


@dataclass(frozen=True)
class ClockSet:
    """A member's clock runs from a step; None stops it."""

    rank: int
    clock: int | None


@dataclass(frozen=True)
class Left:
    """A member has said goodbye, or is lost. The job may be over by that."""

    rank: int
    is_lost: bool


class Presence(Enum):
    """Whether a member is still one."""

    PRESENT = "is here"
    AWAY = "is away: its connection broke, it may come back"
    GONE = "has said goodbye"
    LOST = "is lost: its connection broke before it said goodbye"


@dataclass(frozen=True)
class MemberState:
    """What a server remembers of a member after it was killed. `presence` is never PRESENT."""

    rank: int
    name: str
    worker: int
    presence: Presence
    clock: int | None


@dataclass(frozen=True)
class RosterState:
    """What a server remembers of a job after it was killed.

    Attributes:
        num_workers: Of the job, 0 if there is none.
        members: Those that have joined.
        former: Ranks that have said goodbye to the job before, until one joins.
        outcome: Whether all have said goodbye to that; None since one joined.
    """

    num_workers: int = 0
    members: tuple[MemberState, ...] = ()
    former: tuple[int, ...] = ()
    outcome: bool | None = None


# How buckets move between servers, docs/scaling.md. A move has a number, and its buckets.


@dataclass(frozen=True)
class Hold:
    """Each of some buckets that are here has a new version, which is never used again."""

    buckets: tuple[int, ...]
    versions: tuple[int, ...]


@dataclass(frozen=True)
class Give:
    """Buckets are another server's from now on, in these versions; their rows are dropped."""

    buckets: tuple[int, ...]
    versions: tuple[int, ...]
    target: ServerRef


@dataclass(frozen=True, eq=False)
class StageRows:
    """A move begins: these are the rows of its buckets, by table, and no others."""

    move: int
    buckets: tuple[int, ...]
    rows: Mapping[str, tuple[Rows, ...]]


@dataclass(frozen=True, eq=False)
class StagePush:
    """What a push to the source has brought for the buckets of a move."""

    move: int
    step: int
    gradients: Gradients


@dataclass(frozen=True, eq=False)
class Prepare:
    """A move has come whole, and is safe here.

    Attributes:
        move: Its number.
        versions: Of its buckets, once they are here.
        workers: Whose pushes are in them, `[w]`.
        sequences: The last push of each in each bucket, `[w, buckets]`.
        roster: Of the source: the members, and their clocks.
    """

    move: int
    versions: tuple[int, ...]
    workers: NDArray[np.uint64]
    sequences: NDArray[np.uint64]
    roster: RosterState


@dataclass(frozen=True)
class Take:
    """The buckets of a move are this server's, as the route of who gave them says."""

    move: int
    route: Route


@dataclass(frozen=True)
class Discard:
    """A move was in vain; what has come of it is erased."""

    move: int


MoveChange = Hold | Give | StageRows | StagePush | Prepare | Take | Discard


@dataclass(frozen=True)
class RangeLeased:
    """A range of the batches of a table's run is held: a new one, or one that was given back.

    Attributes:
        table: Whose run it is.
        number: Of the range.
        holder: The worker's number.
        size: Batches of a range of a run that begins by it.
    """

    table: str
    number: int
    holder: int
    size: int


@dataclass(frozen=True)
class RangeReturned:
    """A range is held no longer, and not complete."""

    table: str
    number: int


@dataclass(frozen=True)
class RangeCompleted:
    """A range is complete; with fewer batches than others where the data end."""

    table: str
    number: int
    num_batches: int


@dataclass(frozen=True)
class PushesFinished:
    """Pushes by the numbers from `first` to `last` are applied no more, all that were to be are."""

    first: int
    last: int


Change = (
    CreateTable
    | DropTable
    | ReplaceRows
    | Push
    | Joined
    | ClockSet
    | Left
    | RangeLeased
    | RangeReturned
    | RangeCompleted
    | PushesFinished
    | MoveChange
)


class NotLogged(Exception):
    """A change could not be appended to the log, for want of room on disk: it was not made."""


class Log(Protocol):
    """Keeps what a server has changed."""

    def append(self, change: Change) -> None:
        """Keeps a change that is about to be made. Called by one thread at a time.

        Raises:
            NotLogged: It cannot; the log is as it was.
        """
