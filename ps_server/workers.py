"""Workers: who trains on a server's tables, how far each is, and who waits for whom."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

__all__ = ["MAX_WORKERS", "WAIT_SECONDS", "Member", "Stopping", "WorkerLost", "Workers"]

logger = logging.getLogger(__name__)

Part = TypeVar("Part")

MAX_WORKERS = 64
"""How many may join: each may hold a thread of the server for its stream, a pull and a push."""

WAIT_SECONDS = 3600.0
"""How long one worker waits for another that lives but does not come, at most."""


class WorkerLost(Exception):
    """A worker that others wait for has ended or fallen silent."""


class Stopping(Exception):
    """The server stops; what waits there is given up."""


class _State(Enum):
    PRESENT = "is here"
    GONE = "has said goodbye"
    LOST = "is lost: its connection broke before it said goodbye"


@dataclass(eq=False)
class Member:
    """A worker that has joined. Fields are read and set under the lock of its `Workers`.

    Attributes:
        rank: Among the workers, from 0.
        name: HOST:PID.
        state: Whether it is still here.
        clock: Steps that it has pushed; None while it does not run.
        is_pushing: Whether a push of it is under way.
    """

    rank: int
    name: str
    state: _State = _State.PRESENT
    clock: int | None = None
    is_pushing: bool = False

    def is_behind(self, step: int) -> bool:
        """Whether a step of a clock that runs is still to be pushed."""
        return self.clock is not None and self.clock < step

    def __str__(self) -> str:
        return f"worker {self.rank} ({self.name})"


@dataclass(eq=False)
class _Gathering(Generic[Part]):
    """The parts of a step that have come, by rank, with the samples of each."""

    step: int
    parts: dict[int, tuple[float, Part]] = field(default_factory=dict)
    is_done: bool = False
    failure: BaseException | None = None


class Workers(Generic[Part]):
    """Lets the workers of a job keep step. All methods may be called from any thread.

    The job is over when nobody is here any more and everybody has said goodbye,
    or somebody is lost. Then another may begin.

    Invariants:
        1. A clock moves after its worker's push is applied, by one. So each
           step of a worker is applied once, in order.
        2. A pull that has waited for `after_step` finds all pushes up to that
           step applied, of every worker whose clock runs.
        3. The parts of a step are applied when all are there, or never.
        4. Every wait ends: with what it waits for, or when a worker that it
           waits for or its own is gone, at `close`, or after `wait_seconds`.

    Args:
        num_workers: How many there will be; None leaves it to the first to join.
        on_over: Called once a job is over, of any thread, with whether all have
            said goodbye.
        wait_seconds: How long a wait may last.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self,
        *,
        num_workers: int | None = None,
        on_over: Callable[[bool], None] | None = None,
        wait_seconds: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = num_workers
        self._on_over = on_over
        self._wait_seconds = wait_seconds
        self._time = clock
        self._changed = threading.Condition()  # guards all below
        self._num_workers = 0  # of the job, 0 before the first joins
        self._members: dict[int, Member] = {}
        self._gathering: _Gathering[Part] | None = None  # a step whose parts are not all here
        self._is_closed = False

    def join(self, rank: int, *, num_workers: int, name: str) -> Member:
        """Makes a worker a member of the job.

        Raises:
            ValueError: Its rank is taken or out of range, or the job has another
                number of workers.
            WorkerLost: A worker of this job is lost, while others are still here.
            Stopping: `close` was called.
        """
        with self._changed:
            self._check_open()
            self._check_size(rank, num_workers, name)
            self._check_whole()
            if rank in self._members:
                held = self._members[rank]
                raise ValueError(
                    f"each rank joins once, got rank={rank} from {name}, but {held} "
                    f"{held.state.value}; give each worker its own rank, or wait for the end of "
                    "the other job"
                )
            self._num_workers = num_workers
            member = self._members[rank] = Member(rank, name)
            logger.info("%s joined, %d of %d", member, len(self._members), num_workers)
            return member

    def wait_for_end(self, member: Member) -> None:
        """Returns when a member is no longer one; waits for as long as it is here.

        Raises:
            Stopping: `close` was called.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or member.state is not _State.PRESENT)
            if member.state is _State.PRESENT:
                self._check_open()

    def goodbye(self, rank: int) -> None:
        """Ends a membership, and its clock; to say it again before all others have is no error.

        Raises:
            ValueError: The worker has not joined.
        """
        with self._changed:
            member = self._member(rank)
        self._leave(member, _State.GONE)

    def lose(self, member: Member) -> None:
        """Says that the connection of a member broke: it is lost if it has not said goodbye."""
        self._leave(member, _State.LOST)

    def close(self) -> None:
        """Ends every wait; they and all later ones raise `Stopping`."""
        with self._changed:
            self._is_closed = True
            self._give_up(Stopping("the server stops"))
            self._changed.notify_all()

    def _leave(self, member: Member, state: _State) -> None:
        with self._changed:
            if member.state is not _State.PRESENT or self._is_closed:
                return
            member.state = state
            if state is _State.GONE:
                member.clock = None
            log = logger.info if state is _State.GONE else logger.warning
            log("%s %s", member, state.value)
            self._give_up(WorkerLost(f"{member} {state.value}, in the middle of a step"))
            outcome = self._end_job()
            self._changed.notify_all()
        if outcome is not None and self._on_over is not None:
            self._on_over(outcome)

    def _end_job(self) -> bool | None:
        """Ends the job if it is over; returns whether all said goodbye, None if it goes on."""
        states = [member.state for member in self._members.values()]
        is_whole = _State.LOST not in states
        if _State.PRESENT in states or (is_whole and len(states) < self._num_workers):
            return None
        self._members, self._num_workers = {}, 0
        return is_whole

    def begin(self, rank: int, first_step: int) -> None:
        """Starts a worker's clock at `first_step`: its next push is of the step after it.

        Raises:
            ValueError: The worker has not joined.
            WorkerLost: It is taken for lost.
        """
        with self._changed:
            self._present(rank).clock = first_step
            self._changed.notify_all()

    def end(self, rank: int) -> None:
        """Stops a worker's clock: nobody waits for it.

        Raises:
            ValueError: The worker has not joined.
            WorkerLost: It is taken for lost.
        """
        with self._changed:
            self._present(rank).clock = None
            self._changed.notify_all()

    def wait_to_pull(self, rank: int, after_step: int) -> None:
        """Returns when no clock that runs is below `after_step`.

        Raises:
            ValueError: The worker has not joined.
            WorkerLost: A worker that is waited for is gone, or was silent for too long.
            Stopping: `close` was called.
        """
        deadline = self._time() + self._wait_seconds
        with self._changed:
            mine = self._present(rank)
            members = self._members  # of this job, also when it is over
            while True:
                self._check_open()
                self._check_present(mine)
                behind = [m for m in members.values() if m.is_behind(after_step)]
                if not behind:
                    return
                for member in behind:
                    self._check_present(member)
                if self._time() >= deadline:
                    where = ", ".join(f"{member} at step {member.clock}" for member in behind)
                    raise WorkerLost(
                        f"a pull needs every worker to have pushed step {after_step}, got {where} "
                        f"after {self._wait_seconds:g} s; see what holds it up"
                    )
                self._changed.wait(deadline - self._time())

    def push(self, rank: int, step: int, apply: Callable[[], None]) -> None:
        """Calls `apply` for a worker's push of `step`, then moves its clock.

        Raises:
            ValueError: The worker has not joined or begun, or another step is its next.
            WorkerLost: It is taken for lost.
        """
        with self._changed:
            member = self._start_push(rank, step)
        is_applied = False
        try:
            apply()
            is_applied = True
        finally:
            with self._changed:
                self._finish_push(member, step if is_applied else None)

    def push_part(
        self,
        rank: int,
        step: int,
        weight: float,
        part: Part,
        apply: Callable[[Sequence[tuple[float, Part]]], None],
    ) -> None:
        """Adds a worker's part of a step; returns when the whole step is applied.

        The last to come calls `apply` with the weight and part of each rank, in
        order of the ranks. If it raises, so does the push of every worker.

        Args:
            rank: Of the worker.
            step: Its next.
            weight: Samples of the part.
            part: Any.
            apply: Applies all parts.

        Raises:
            ValueError: The worker has not joined or begun, or another step is
                its next or the others'.
            WorkerLost: A worker is gone, or was silent for too long; nothing of
                the step is applied.
            Stopping: `close` was called; nothing of the step is applied.
        """
        with self._changed:
            self._check_open()
            member = self._start_push(rank, step)
        is_applied = False
        try:
            with self._changed:
                gathering = self._gather(member, step, weight, part)
                is_last = self._gathering is None
            if is_last:
                self._apply(gathering, apply)
            else:
                self._wait_for_parts(gathering)
            if gathering.failure is not None:
                raise gathering.failure
            is_applied = True
        finally:
            with self._changed:
                self._finish_push(member, step if is_applied else None)

    def _start_push(self, rank: int, step: int) -> Member:
        member = self._present(rank)
        if member.clock is None:
            raise ValueError(f"{member} pushes after it has begun, got step={step} before")
        if member.is_pushing or step != member.clock + 1:
            raise ValueError(
                f"{member} pushes each step once, in order, got step={step} after "
                f"step {member.clock + member.is_pushing}"
            )
        member.is_pushing = True
        return member

    def _finish_push(self, member: Member, applied_step: int | None) -> None:
        member.is_pushing = False
        if applied_step is not None and member.clock is not None:
            member.clock = applied_step
        self._changed.notify_all()

    def _gather(self, member: Member, step: int, weight: float, part: Part) -> _Gathering[Part]:
        """Returns the step's gathering with the part; it is no longer the current one if whole."""
        for other in (member, *self._members.values()):
            self._check_present(other)
        gathering = self._gathering = self._gathering or _Gathering(step)
        if gathering.step != step:
            raise ValueError(
                f"workers push the parts of one step at a time, got step={step} from {member} "
                f"while others push step {gathering.step}; begin all at the same step"
            )
        gathering.parts[member.rank] = weight, part
        if len(gathering.parts) == self._num_workers:
            self._gathering = None  # it is applied now, whoever is lost meanwhile
        return gathering

    def _apply(
        self,
        gathering: _Gathering[Part],
        apply: Callable[[Sequence[tuple[float, Part]]], None],
    ) -> None:
        failure: BaseException | None = None
        try:
            apply([gathering.parts[rank] for rank in sorted(gathering.parts)])
        except BaseException as error:  # it is every worker's
            failure = error
        with self._changed:
            gathering.is_done, gathering.failure = True, failure
            self._changed.notify_all()

    def _wait_for_parts(self, gathering: _Gathering[Part]) -> None:
        deadline = self._time() + self._wait_seconds
        with self._changed:
            while not gathering.is_done:
                if self._gathering is not gathering:  # whole and being applied: that ends by itself
                    self._changed.wait()
                elif self._time() < deadline:
                    self._changed.wait(deadline - self._time())
                else:
                    self._give_up(
                        WorkerLost(
                            f"step {gathering.step} needs a push of every worker, got none of "
                            f"{self._missing(gathering)} within {self._wait_seconds:g} s; see what "
                            "holds it up"
                        )
                    )

    def _give_up(self, error: Exception) -> None:
        """Fails the pushes that wait for parts; nothing of their step is applied."""
        if self._gathering is not None:
            self._gathering.is_done, self._gathering.failure = True, error
            self._gathering = None
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Stopping("the server stops")

    def _check_size(self, rank: int, num_workers: int, name: str) -> None:
        if not 0 <= rank < num_workers <= MAX_WORKERS:
            raise ValueError(
                f"a worker needs 0 <= rank < num_workers <= {MAX_WORKERS}, got rank={rank}, "
                f"num_workers={num_workers} from {name}"
            )
        wanted = self._expected or self._num_workers or num_workers
        if num_workers != wanted:
            raise ValueError(
                f"this server is of a job of num_workers={wanted}, got num_workers={num_workers} "
                f"from {name}; start its servers with --num-workers {num_workers}, or without"
            )

    def _check_whole(self) -> None:
        """Refuses to go on with a job that has lost a worker."""
        for member in self._members.values():
            if member.state is _State.LOST:
                raise WorkerLost(f"{member} {member.state.value}")

    def _check_present(self, member: Member) -> None:
        if member.state is not _State.PRESENT:
            raise WorkerLost(f"{member} {member.state.value}")

    def _member(self, rank: int) -> Member:
        if rank not in self._members:
            raise ValueError(f"a worker joins before all else, got rank={rank}, which has not")
        return self._members[rank]

    def _present(self, rank: int) -> Member:
        member = self._member(rank)
        self._check_present(member)
        return member

    def _missing(self, gathering: _Gathering[Part]) -> str:
        ranks = [rank for rank in range(self._num_workers) if rank not in gathering.parts]
        return ", ".join(str(self._members.get(r, f"worker {r} (has not joined)")) for r in ranks)
