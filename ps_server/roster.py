"""Roster: the members of a job, as changes make them."""

from collections.abc import Iterable
from dataclasses import dataclass

from ps_server.change import ClockSet, Joined, Left, MemberState, Presence, RosterState

__all__ = ["Member", "MemberState", "Presence", "Roster", "RosterState"]


@dataclass(eq=False)
class Member:
    """A worker that has joined. Fields are read and set under the lock of its `Workers`.

    Attributes:
        rank: Among the workers, from 0.
        name: HOST:PID.
        worker: Its number, 64 bits; 0 if it has not said one: it cannot come back.
        presence: Whether it is still here.
        clock: Steps that it has pushed; None while it does not run.
        is_pushing: Whether a push of it is under way.
        stream: Number of its latest; how an earlier one ends says nothing.
        deadline: When it is lost if it stays away, None while nobody counts.
    """

    rank: int
    name: str
    worker: int = 0
    presence: Presence = Presence.PRESENT
    clock: int | None = None
    is_pushing: bool = False
    stream: int = 0
    deadline: float | None = None

    @property
    def is_waited_for(self) -> bool:
        """Whether it is here, or may come back."""
        return self.presence in (Presence.PRESENT, Presence.AWAY)

    def is_behind(self, step: int) -> bool:
        """Whether a step of a clock that runs is still to be pushed."""
        return self.clock is not None and self.clock < step

    def move_clock(self, step: int) -> None:
        """Sets the clock to a step that was pushed, if it runs."""
        if self.clock is not None:
            self.clock = step

    def __str__(self) -> str:
        return f"worker {self.rank} ({self.name})"


class Roster:
    """The members of a job by rank. Its owner locks; nothing but changes moves it.

    Equal changes make equal rosters, so that a log of them brings it back.

    Attributes:
        num_workers: Of the job, 0 before the first joins.
        members: By rank; of the next job, another dict.
        former: Ranks that have said goodbye to the job before, until one joins.
        outcome: Whether all have said goodbye to that; None since one joined.
    """

    def __init__(self) -> None:
        self.num_workers = 0
        self.members: dict[int, Member] = {}
        self.former: tuple[int, ...] = ()
        self.outcome: bool | None = None

    def join(self, change: Joined) -> None:
        """Makes a worker a member."""
        self.num_workers = change.num_workers
        self.members[change.rank] = Member(change.rank, change.name, change.worker)
        self.former, self.outcome = (), None

    def set_clock(self, change: ClockSet) -> None:
        """Starts or stops a clock."""
        self.members[change.rank].clock = change.clock

    def move_clocks(self, ranks: Iterable[int], step: int) -> None:
        """Sets the clocks that run to a step that these members have pushed."""
        for rank in ranks:
            self.members[rank].move_clock(step)

    def leave(self, change: Left) -> None:
        """Ends a membership, and the job if it is over."""
        member = self.members[change.rank]
        member.presence = Presence.LOST if change.is_lost else Presence.GONE
        if not change.is_lost:
            member.clock = None
        members = self.members.values()
        is_whole = all(each.presence is not Presence.LOST for each in members)
        if any(each.is_waited_for for each in members):
            return
        if is_whole and len(members) < self.num_workers:
            return
        self.former = tuple(each.rank for each in members if each.presence is Presence.GONE)
        self.outcome = is_whole
        self.members, self.num_workers = {}, 0

    def merge(self, source: RosterState) -> None:
        """Takes the members of a server from which buckets came.

        A clock goes back to the lower of the two: one that is higher counts a push
        that is not in these buckets yet, or not in those.
        """
        if not any(each.is_waited_for for each in self.members.values()):
            self.members, self.num_workers = {}, source.num_workers
        if source.members:
            self.former, self.outcome = (), None
        for theirs in source.members:
            mine = self.members.get(theirs.rank)
            is_known = mine is not None and mine.worker == theirs.worker
            if mine is None or not is_known or mine.presence is Presence.GONE:
                self.members[theirs.rank] = Member(
                    theirs.rank, theirs.name, theirs.worker, theirs.presence, theirs.clock
                )
            elif theirs.presence is Presence.AWAY:
                clocks = (mine.clock, theirs.clock)
                mine.clock = None if None in clocks else min(c for c in clocks if c is not None)

    def state(self) -> RosterState:
        """Returns what is remembered after a kill."""
        members = tuple(
            MemberState(
                each.rank,
                each.name,
                each.worker,
                Presence.AWAY if each.is_waited_for else each.presence,
                each.clock,
            )
            for each in self.members.values()
        )
        return RosterState(self.num_workers, members, self.former, self.outcome)

    def restore(self, state: RosterState) -> None:
        """Takes what was remembered; who was here is away."""
        self.num_workers, self.former, self.outcome = state.num_workers, state.former, state.outcome
        self.members = {
            each.rank: Member(each.rank, each.name, each.worker, each.presence, each.clock)
            for each in state.members
        }
