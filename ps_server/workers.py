"""Workers: who trains on a server's tables, how far each is, and who waits for whom."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ps_server.change import ClockSet, Joined, Left, NotLogged, Presence, RosterState
from ps_server.order import Order
from ps_server.roster import Member, Roster
from ps_server.spans import Recorder

__all__ = ["MAX_WORKERS", "WAITING", "WAIT_SECONDS", "Stopping", "Stream", "WorkerLost", "Workers"]

logger = logging.getLogger(__name__)

Part = TypeVar("Part")

MAX_WORKERS = 64
"""How many may join: each may hold a thread of the server for its stream, a pull and a push."""

WAITING = "waiting for other workers"
"""What a trace calls these waits."""

WAIT_SECONDS = 3600.0
"""How long one worker waits for another that lives but does not come, at most."""

LOG_SECONDS = 1.0
"""How long the loss of a worker waits for room in the log before it is tried again."""


def _nothing() -> None:
    """Checks nothing."""


class WorkerLost(Exception):
    """A worker that others wait for has ended or fallen silent."""


class Stopping(Exception):
    """The server stops; what waits there is given up."""


@dataclass(eq=False)
class Stream:
    """What `join` opens: it says that a member lives until it breaks.

    Fields are read and set under the lock of its `Workers`.

    Attributes:
        member: Whose it is.
        number: Among the streams of the server: a member that comes back has another.
        is_back: Whether its worker was a member before; its clock is where it was.
        is_broken: Whether its end was seen.
    """

    member: Member
    number: int
    is_back: bool
    is_broken: bool = False

    @property
    def is_current(self) -> bool:
        """Whether it is how its member is here."""
        return self.member.presence is Presence.PRESENT and self.member.stream == self.number


@dataclass(eq=False)
class _Gathering(Generic[Part]):
    """The parts of a step that have come, by rank, with the samples of each."""

    step: int
    parts: dict[int, tuple[float, Part]] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    is_done: bool = False
    failure: BaseException | None = None


class Workers(Generic[Part]):
    """Lets the workers of a job keep step. All methods may be called from any thread.

    The job is over when nobody is here any more and everybody has said goodbye,
    or somebody is lost. Then another may begin.

    A member whose stream breaks is lost, or away for a while if it may come
    back: it is then waited for as if it were here::

        join ─▶ PRESENT ── goodbye ─▶ GONE
                 │    ▲       ▲
        it breaks│    │join   │
                 ▼    │       │
                 AWAY ─┴──────┘── rejoin_seconds, or another worker joins ─▶ LOST

    Invariants:
        1. A clock moves after its worker's push is applied, by one. So each
           step of a worker is applied once, in order.
        2. A pull that has waited for `after_step` finds all pushes up to that
           step applied, of every worker whose clock runs.
        3. The parts of a step are applied when all are there, or never.
        4. Every wait ends: with what it waits for, or when a worker that it
           waits for or its own is gone, at `close`, or after `wait_seconds`.
        5. What the roster says has been logged, if there is a log, before it is
           seen; but that members are away, which all are after a kill.

    Locks are taken in this order: a turn of `order`, then `_changed`.

    Args:
        num_workers: How many there will be; None leaves it to the first to join.
        on_over: Called once a job is over, of any thread, with whether all have
            said goodbye.
        recorder: Of the waits.
        wait_seconds: How long a wait may last.
        rejoin_seconds: How long a worker that says its number may be away; 0
            takes it for lost at once.
        order: Of the changes of the server.
        clock: Tells the time, in seconds.
    """

    def __init__(
        self,
        *,
        num_workers: int | None = None,
        on_over: Callable[[bool], None] | None = None,
        recorder: Recorder | None = None,
        wait_seconds: float = WAIT_SECONDS,
        rejoin_seconds: float = 0.0,
        order: Order | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._expected = num_workers
        self._on_over = on_over
        self._recorder = recorder or Recorder()
        self._wait_seconds = wait_seconds
        self._rejoin_seconds = rejoin_seconds
        self._order = order or Order()
        self._time = clock
        self._changed = threading.Condition()  # guards all below
        self._roster = Roster()
        self._num_streams = 0
        self._watcher: threading.Thread | None = None  # while somebody is away
        self._is_watching = False
        self._gathering: _Gathering[Part] | None = None  # a step whose parts are not all here
        self._is_closed = False

    def join(self, rank: int, *, num_workers: int, name: str, worker: int = 0) -> Stream:
        """Makes a worker a member of the job, or again: it then comes back.

        One that comes back takes its membership over, its clock too, also where
        its old stream still looks alive. If another worker comes for the rank of
        one that is away, that one has been started anew and has forgotten what
        it had: it is lost at once, and so are all where nobody is here any more.

        Args:
            rank: Among the workers, from 0.
            num_workers: How many these are.
            name: HOST:PID.
            worker: Its number; 0 cannot come back.

        Raises:
            ValueError: Its rank is taken or out of range, or the job has another
                number of workers.
            WorkerLost: A worker of this job is lost, while others are still here.
            NotLogged: The log is full; nothing changed.
            Stopping: `close` was called.
        """
        with self._order.turn(), self._changed:
            self._check_open()
            self._check_size(rank, num_workers, name)
            member = self._roster.members.get(rank)
            is_back = (
                member is not None
                and member.is_waited_for
                and worker != 0
                and member.worker == worker
            )
            if member is None or not is_back:
                self._end_those_before(member)
                self._check_whole()
                self._check_free(rank, name)
                joined = Joined(rank, num_workers, name, worker)
                self._order.make(joined, lambda: self._roster.join(joined))
                member = self._roster.members[rank]
            self._num_streams += 1
            member.presence, member.deadline = Presence.PRESENT, None
            member.stream = self._num_streams
            how = "is back" if is_back else "joined"
            logger.info("%s %s, %d of %d", member, how, len(self._roster.members), num_workers)
            self._changed.notify_all()
            return Stream(member, member.stream, is_back)

    def wait_for_end(self, stream: Stream) -> None:
        """Returns when a stream may end: it broke, or its member left or has another.

        Raises:
            Stopping: `close` was called.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or stream.is_broken or not stream.is_current
            )
            if stream.is_current and not stream.is_broken:
                self._check_open()

    def goodbye(self, rank: int, *, check: Callable[[], None] = _nothing) -> None:
        """Ends a membership, and its clock; to say it again, before another job, is no error.

        Args:
            rank: Of the worker.
            check: Called in its turn; what it raises refuses it.

        Raises:
            ValueError: The worker has not joined.
            NotLogged: The log is full; nothing changed.
        """
        with self._changed:
            if rank in self._roster.former:
                return
            member = self._member(rank)
        self._leave(member, is_lost=False, check=check)

    def interrupt(self, stream: Stream) -> None:
        """Ends the wait for the end of a stream that broke: who waits calls `lose`.

        Returns at once, whatever is under way.
        """
        with self._changed:
            stream.is_broken = True
            self._changed.notify_all()

    def lose(self, stream: Stream) -> None:
        """Says that a stream broke: its member is away or lost, if it has not said goodbye.

        Nothing if the member has come back by another stream, or at `close`. While
        the log is full, it stays away.
        """
        member = stream.member
        with self._changed:
            if self._is_closed or not stream.is_current:
                return
            now = self._time()
            seconds = self._rejoin_seconds if member.worker else 0.0
            member.presence, member.deadline = Presence.AWAY, now + seconds
            self._changed.notify_all()
            if seconds > 0:
                logger.warning("%s %s within %g s", member, member.presence.value, seconds)
                self._watch()
                return
        self._lose_at(member, now)

    def close(self) -> None:
        """Ends every wait; they and all later ones raise `Stopping`."""
        with self._changed:
            self._is_closed = True
            self._give_up(Stopping("the server stops"))
            self._changed.notify_all()
            watcher = self._watcher
        if watcher is not None:
            watcher.join()

    def state(self) -> RosterState:
        """Returns who is a member, and how far each is, to remember it after a kill."""
        with self._changed:
            return self._roster.state()

    def restore(self, state: RosterState) -> None:
        """Takes who was a member; to be called before requests come, then `replay`, `resume`."""
        with self._changed:
            self._roster.restore(state)

    def replay(self, change: Joined | ClockSet | Left) -> None:
        """Makes a change that was logged before a kill."""
        with self._changed:
            if isinstance(change, Joined):
                self._roster.join(change)
            elif isinstance(change, ClockSet):
                self._roster.set_clock(change)
            else:
                self._roster.leave(change)

    def replay_push(self, ranks: tuple[int, ...], step: int) -> None:
        """Moves the clocks that a push moved before a kill."""
        with self._changed:
            self._roster.move_clocks(ranks, step)

    def merge(self, source: RosterState) -> None:
        """Takes the members of a server from which buckets came; within its change.

        Those that are new here are away until they come, however long that takes: a
        server that they know sees whether they live.
        """
        with self._changed:
            self._roster.merge(source)
            self._changed.notify_all()

    @property
    def num_members(self) -> int:
        """Members that are here, or may come back."""
        with self._changed:
            return sum(each.is_waited_for for each in self._roster.members.values())

    def interrupt_step(self, error: Exception) -> None:
        """Refuses to all the parts of a step that wait for others; nothing of it is applied."""
        with self._changed:
            self._give_up(error)

    def resume(self) -> None:
        """Begins to serve with what was remembered: who was here is away from now on."""
        with self._changed:
            for member in self._roster.members.values():
                if member.is_waited_for:
                    member.presence = Presence.AWAY
                    member.deadline = self._time() + self._rejoin_seconds
                    logger.info("%s was here, and may come back", member)
            self._watch()
            outcome = self._roster.outcome
        if outcome is not None and self._on_over is not None:
            self._on_over(outcome)

    def _watch(self) -> None:
        """Starts the thread that loses those who stay away, if somebody is."""
        is_needed = bool(self._deadlines()) and not self._is_closed
        if is_needed and not self._is_watching:
            self._is_watching = True
            self._watcher = threading.Thread(
                target=self._lose_overdue, name="workers-away", daemon=True
            )
            self._watcher.start()

    def _deadlines(self) -> list[tuple[float, Member]]:
        return [
            (member.deadline, member)
            for member in self._roster.members.values()
            if member.presence is Presence.AWAY and member.deadline is not None
        ]

    def _lose_overdue(self) -> None:
        """Loses each that is away for too long; returns when nobody is away, or at `close`."""
        while True:
            with self._changed:
                away = self._deadlines()
                if not away or self._is_closed:
                    self._is_watching = False
                    return
                deadline, member = min(away, key=lambda each: each[0])
                if (seconds := deadline - self._time()) > 0:
                    self._changed.wait(seconds)
                    continue
            self._lose_at(member, deadline)

    def _lose_at(self, member: Member, now: float) -> None:
        """Ends the membership of one that is away, unless it came back since."""
        try:
            self._leave(member, is_lost=True, is_due=lambda: _is_overdue(member, now))
        except NotLogged as error:
            logger.warning("%s has stayed away, and remains so for now: %s", member, error)
            with self._changed:
                member.deadline = self._time() + LOG_SECONDS
                self._watch()

    def _leave(
        self,
        member: Member,
        *,
        is_lost: bool,
        is_due: Callable[[], bool] = lambda: True,
        check: Callable[[], None] = _nothing,
    ) -> None:
        with self._order.turn(), self._changed:
            check()
            if self._is_closed or not member.is_waited_for or not is_due():
                return
            self._end(member, is_lost=is_lost)
            outcome = self._roster.outcome
        if outcome is not None and self._on_over is not None:
            self._on_over(outcome)

    def _end(self, member: Member, *, is_lost: bool) -> None:
        left = Left(member.rank, is_lost)
        self._order.make(left, lambda: self._roster.leave(left))
        log = logger.warning if is_lost else logger.info
        log("%s %s", member, member.presence.value)
        self._give_up(WorkerLost(f"{member} {member.presence.value}, in the middle of a step"))
        self._changed.notify_all()

    def _end_those_before(self, member: Member | None) -> None:
        """Loses the members that a new worker shows to have been started anew.

        That is the one whose rank it takes. If nobody is here, it is all of them: the
        workers of a job begin together, and end so.
        """
        members = [*self._roster.members.values()]
        if all(each.presence is not Presence.PRESENT for each in members):
            anew = [each for each in members if each.presence is Presence.AWAY]
        else:
            anew = [each for each in (member,) if each and each.presence is Presence.AWAY]
        for each in anew:
            self._end(each, is_lost=True)

    def begin(self, rank: int, first_step: int, *, check: Callable[[], None] = _nothing) -> None:
        """Starts a worker's clock at `first_step`: its next push is of the step after it.

        Args:
            rank: Of the worker.
            first_step: Steps that count as pushed.
            check: Called in its turn; what it raises refuses it.

        Raises:
            ValueError: The worker has not joined.
            WorkerLost: It is taken for lost.
            NotLogged: The log is full; nothing changed.
        """
        self._set_clock(ClockSet(rank, first_step), check)

    def end(self, rank: int, *, check: Callable[[], None] = _nothing) -> None:
        """Stops a worker's clock: nobody waits for it. Arguments and errors as of `begin`."""
        self._set_clock(ClockSet(rank, None), check)

    def _set_clock(self, change: ClockSet, check: Callable[[], None]) -> None:
        with self._order.turn(), self._changed:
            check()
            if self._present(change.rank).clock == change.clock:
                return  # its answer was lost
            self._order.make(change, lambda: self._roster.set_clock(change))
            self._changed.notify_all()

    def wait_to_pull(self, rank: int, after_step: int) -> None:
        """Returns when no clock that runs is below `after_step`.

        Raises:
            ValueError: The worker has not joined.
            WorkerLost: A worker that is waited for is gone, or was silent for too long.
            Stopping: `close` was called.
        """
        start = time.perf_counter()
        deadline = self._time() + self._wait_seconds
        with self._changed:
            mine = self._present(rank)
            members = self._roster.members  # of this job, also when it is over
            while True:
                self._check_open()
                self._check_present(mine)
                behind = [m for m in members.values() if m.is_behind(after_step)]
                if not behind:
                    self._recorder.record(WAITING, -1, start)
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

    def is_next(self, rank: int, step: int, *, worker: int = 0) -> bool:
        """Whether a worker is a member whose next push is of `step`."""
        with self._changed:
            member = self._roster.members.get(rank)
            return (
                member is not None
                and member.is_waited_for
                and not _is_another(member, worker)
                and member.clock == step - 1
            )

    def push(self, rank: int, step: int, apply: Callable[[], None], *, worker: int = 0) -> None:
        """Calls `apply` for a worker's push of `step`, then moves its clock, in one turn.

        Raises:
            ValueError: The worker has not joined or begun, or another step is its next.
            WorkerLost: It is taken for lost, or by its number another has its rank.
        """
        with self._changed:
            member = self._start_push(rank, step, worker)
        try:
            self._apply([member], step, apply)
        finally:
            self._finish_push(member)

    def push_part(
        self,
        rank: int,
        step: int,
        weight: float,
        part: Part,
        apply: Callable[[Sequence[tuple[float, Part]]], None],
        *,
        worker: int = 0,
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
            worker: Its number, if it says it.

        Raises:
            ValueError: The worker has not joined or begun, or another step is
                its next or the others'.
            WorkerLost: A worker is gone, or was silent for too long; nothing of
                the step is applied.
            Stopping: `close` was called; nothing of the step is applied.
        """
        with self._changed:
            self._check_open()
            member = self._start_push(rank, step, worker)
        try:
            with self._changed:
                gathering = self._gather(member, step, weight, part)
                is_last = self._gathering is None
            if is_last:
                self._apply_parts(gathering, apply)
            else:
                start = time.perf_counter()
                self._wait_for_parts(gathering)
                self._recorder.record(WAITING, step - 1, start)
            if gathering.failure is not None:
                raise gathering.failure
        finally:
            self._finish_push(member)

    def _start_push(self, rank: int, step: int, worker: int) -> Member:
        member = self._present(rank)
        if _is_another(member, worker):
            raise WorkerLost(
                f"{member} has rank={rank} by now, got a push of the worker that had it before; "
                "that one was taken for lost and must not go on"
            )
        if member.clock is None:
            raise ValueError(f"{member} pushes after it has begun, got step={step} before")
        if member.is_pushing or step != member.clock + 1:
            raise ValueError(
                f"{member} pushes each step once, in order, got step={step} after "
                f"step {member.clock + member.is_pushing}"
            )
        member.is_pushing = True
        return member

    def _finish_push(self, member: Member) -> None:
        with self._changed:
            member.is_pushing = False

    def _apply(self, members: Sequence[Member], step: int, apply: Callable[[], None]) -> None:
        """Calls `apply` and moves clocks, with no change of the roster's in between."""
        with self._order.turn():
            with self._changed:
                for member in members:  # a log names members by rank
                    if self._roster.members.get(member.rank) is not member:
                        raise WorkerLost(f"{member} {member.presence.value}; its job is over")
            apply()
            with self._changed:
                for member in members:  # without a log one may have left meanwhile
                    member.move_clock(step)
                self._changed.notify_all()

    def _gather(self, member: Member, step: int, weight: float, part: Part) -> _Gathering[Part]:
        """Returns the step's gathering with the part; it is no longer the current one if whole."""
        for other in (member, *self._roster.members.values()):
            self._check_present(other)
        gathering = self._gathering = self._gathering or _Gathering(step)
        if gathering.step != step:
            raise ValueError(
                f"workers push the parts of one step at a time, got step={step} from {member} "
                f"while others push step {gathering.step}; begin all at the same step"
            )
        gathering.parts[member.rank] = weight, part
        gathering.members.append(member)
        if len(gathering.parts) == self._roster.num_workers:
            self._gathering = None  # it is applied now, whoever is lost meanwhile
        return gathering

    def _apply_parts(
        self,
        gathering: _Gathering[Part],
        apply: Callable[[Sequence[tuple[float, Part]]], None],
    ) -> None:
        parts = [gathering.parts[rank] for rank in sorted(gathering.parts)]
        failure: BaseException | None = None
        try:
            self._apply(gathering.members, gathering.step, lambda: apply(parts))
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
        wanted = self._expected or self._roster.num_workers or num_workers
        if num_workers != wanted:
            raise ValueError(
                f"this server is of a job of num_workers={wanted}, got num_workers={num_workers} "
                f"from {name}; start its servers with --num-workers {num_workers}, or without"
            )

    def _check_whole(self) -> None:
        """Refuses to go on with a job that has lost a worker."""
        for member in self._roster.members.values():
            if member.presence is Presence.LOST:
                raise WorkerLost(f"{member} {member.presence.value}")

    def _check_free(self, rank: int, name: str) -> None:
        if rank in self._roster.members:
            held = self._roster.members[rank]
            raise ValueError(
                f"each rank joins once, got rank={rank} from {name}, but {held} "
                f"{held.presence.value}; give each worker its own rank, or wait for the end of "
                "the other job"
            )

    def _check_present(self, member: Member) -> None:
        if not member.is_waited_for:
            raise WorkerLost(f"{member} {member.presence.value}")

    def _member(self, rank: int) -> Member:
        if rank not in self._roster.members:
            raise ValueError(f"a worker joins before all else, got rank={rank}, which has not")
        return self._roster.members[rank]

    def _present(self, rank: int) -> Member:
        member = self._member(rank)
        self._check_present(member)
        return member

    def _missing(self, gathering: _Gathering[Part]) -> str:
        members, ranks = self._roster.members, range(self._roster.num_workers)
        return ", ".join(
            str(members.get(rank, f"worker {rank} (has not joined)"))
            for rank in ranks
            if rank not in gathering.parts
        )


def _is_another(member: Member, worker: int) -> bool:
    """Whether a number is not a member's, where both say theirs."""
    return worker != 0 and member.worker not in (0, worker)


def _is_overdue(member: Member, now: float) -> bool:
    return (
        member.presence is Presence.AWAY and member.deadline is not None and member.deadline <= now
    )
