"""Moves of buckets: what a server makes of each call, and what is left of it after a kill."""

import numpy as np
import pytest

from ps_server.change import MemberState, Origin, Presence, RosterState
from ps_server.moves import MoveError
from ps_server.roster import Roster
from ps_server.route import Route, ServerRef
from ps_server.snapshot import read_snapshot
from ps_server.store import RouteMismatch, Store
from tests.ps_server.test_durable import (
    LATER,
    SPECS,
    after_a_kill,
    gradients_of,
    life,
    pushed_rows,
    state_of,
)

NAMES = ["user", "item"]
BUCKETS = list(range(0, 4096, 2))


class Move:
    """Two durable servers, the first of which has all buckets and moves every second one."""

    def __init__(self, here, there, folder):
        self.here, self.there, self.folder = here, there, folder
        self.refs = ServerRef(here.id, "here:1"), ServerRef(there.id, "there:1")
        route = Route(self.refs).moved(range(2048, 4096), to=self.refs[0])
        for store in (here, there):
            for name in NAMES:
                store.create_table(SPECS[name], route)
        here.workers.join(0, num_workers=1, name="here:1", worker=7)
        here.workers.begin(0, 0)
        self.pushed = 0

    def gradients(self, number):
        return {n: gradients_of([number, i], SPECS[n].dim) for i, n in enumerate(NAMES)}

    def push(self):
        self.pushed += 1
        origin, gradients = Origin(7, self.pushed), self.gradients(self.pushed)
        self.here.push(self.here.share[1], gradients, step=self.pushed, rank=0, origin=origin)

    def copy(self):
        """Returns the number of a move, and the rows of its copy as they travel."""
        copied = self.here.moves.copy(self.here.share[1], BUCKETS)
        rows = {}
        for name, snapshots in copied.tables:
            rows[name] = ()
            for file, data in snapshots:
                path = self.folder / f"{copied.move}-{name}" / file
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(data)
                rows[name] += (read_snapshot(path, SPECS[name]),)
        return copied.move, rows

    def __iter__(self):
        """Makes the calls of a move, and says what each has come to."""
        here, there = self.here.moves, self.there.moves
        self.push()
        move, rows = self.copy()
        yield "copied"
        self.push()
        there.stage_rows(move, BUCKETS, rows)
        yield "rows staged"
        self.push()
        tail = here.catch_up(move, 0)
        assert len(tail.pushes) == 2
        there.stage_pushes(move, 0, tail.pushes)
        yield "pushes staged"
        self.push()
        tail = here.hold(move, 2, seconds=LATER)
        yield "held"
        there.prepare(2, tail.pushes, tail.prepared)
        yield "prepared"
        given = here.give(move, to=self.refs[1])
        yield "given"
        assert len(self.there.route.buckets_of(self.there.id)) == 0
        there.take(given)
        assert self.there.route == given
        yield "taken"


@pytest.fixture
def move(tmp_path):
    (tmp_path / "files").mkdir()
    with life(tmp_path / "here") as here, life(tmp_path / "there") as there:
        yield Move(here, there, tmp_path / "files")


@pytest.mark.parametrize("has_checkpoints", [False, True])
def test_both_servers_come_back_from_any_moment(move, tmp_path, has_checkpoints):
    servers = {"here": move.here, "there": move.there}
    for moment in move:
        for name, store in servers.items():
            if has_checkpoints:
                store.durable._write_checkpoint()
            found = after_a_kill(tmp_path / name, tmp_path / f"{name} {moment}")
            assert found == state_of(store), (moment, name)


def test_rows_are_on_one_server_each_as_if_they_had_stayed(move):
    for _ in move:
        pass
    alone = Store()
    for name in NAMES:
        alone.create_table(SPECS[name], Route((ServerRef(alone.id, "here:1"),)))
    for number in range(1, move.pushed + 1):
        alone.push(alone.share[1], move.gradients(number), step=number)
    for name in NAMES:
        parts = [pushed_rows(store, name) for store in (move.here, move.there)]
        assert all(len(part) for part in parts)
        order = np.argsort(np.concatenate([part.keys for part in parts]))
        for column, wanted in vars(pushed_rows(alone, name)).items():
            found = np.concatenate([getattr(part, column) for part in parts])[order]
            assert np.array_equal(found, wanted), column
    (member,) = move.there.workers.state().members
    assert (member.rank, member.worker, member.clock) == (0, 7, move.pushed)
    before = state_of(move.there)["rows"]
    origin = Origin(7, move.pushed)  # is known there, too
    move.there.push(move.there.share[1], move.gradients(move.pushed), step=9, origin=origin)
    assert state_of(move.there)["rows"] == before


def test_what_does_not_follow_is_refused_and_the_move_begins_anew(move):
    here, there = move.here.moves, move.there.moves
    move.push()
    first, _ = move.copy()
    number, rows = move.copy()
    with pytest.raises(MoveError, match="must be under way here"):
        here.catch_up(first, 0)
    with pytest.raises(MoveError, match="are held, got some that are not"):
        here.give(number, to=move.refs[1])
    with pytest.raises(MoveError, match="follow its copy and one another, got push 0"):
        there.stage_pushes(number, 0, ())
    there.stage_rows(number, BUCKETS, rows)
    with pytest.raises(MoveError, match=r"got push 1 .* not its next"):
        there.stage_pushes(number, 1, ())
    move.push()
    here.catch_up(number, 1)
    with pytest.raises(MoveError, match="handed out once, from 1 on, got 0"):
        here.catch_up(number, 0)
    with pytest.raises(MoveError, match="buckets that are not here"):
        here.stage_rows(number, BUCKETS, rows)
    with pytest.raises(RouteMismatch, match="the 4096 buckets that this server owns"):
        here.copy(0, BUCKETS)
    with pytest.raises(ValueError, match="got 1, of which 0 are"):
        there.copy(move.there.share[1], [5])
    assert state_of(move.there)["rows"]["user"]["keys"] == b""  # it owns none of what came
    assert [len(each.buckets) for each in there.incoming] == [2048]
    assert not there.incoming[0].prepared
    there.discard(number)
    assert move.there.stats()[0].num_rows == 0


def test_a_hold_that_is_over_is_void_and_its_version_is_never_used_again(move):
    moves = move.here.moves
    move.push()
    number, _ = move.copy()
    held = moves.hold(number, 0, seconds=LATER).prepared
    assert set(held.versions) == {1, 2}  # half of them came from elsewhere before
    assert moves.unhold(number)
    assert not moves.unhold(number)
    with pytest.raises(MoveError, match="must be under way"):
        moves.give(number, to=move.refs[1])
    move.push()  # does not wait
    number, _ = move.copy()
    assert set(moves.hold(number, 0, seconds=LATER).prepared.versions) == {2, 3}
    moves.unhold(number)
    number, _ = move.copy()
    moves.hold(number, 0, seconds=1e-3)
    move.push()  # waits for that alone, and is not in what was held
    with pytest.raises(MoveError, match="are held, got some that are not"):
        moves.give(number, to=move.refs[1])


def test_a_load_gives_up_the_move_that_it_comes_into(move, tmp_path):
    move.push()
    number, rows = move.copy()
    move.there.moves.stage_rows(number, BUCKETS, rows)
    for store in (move.here, move.there):
        store.import_rows(store.share[1], "user", rows["user"][0])
    with pytest.raises(MoveError, match="must be under way here"):
        move.here.moves.hold(number, 0)
    assert move.there.moves.incoming == ()


AWAY, GONE, LOST = Presence.AWAY, Presence.GONE, Presence.LOST


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        ((7, AWAY, 5), (7, AWAY, 4), (7, AWAY, 4)),  # the push to 5 is not in what comes yet
        ((7, AWAY, 4), (7, AWAY, 5), (7, AWAY, 4)),
        ((7, AWAY, None), (7, AWAY, 5), (7, AWAY, None)),
        ((7, AWAY, 5), (7, AWAY, None), (7, AWAY, None)),
        ((7, GONE, None), (7, AWAY, 5), (7, AWAY, 5)),  # it left when nothing was here for it
        ((8, AWAY, 9), (7, AWAY, 5), (7, AWAY, 5)),
        ((7, LOST, 3), (7, AWAY, 5), (7, LOST, 3)),
        (None, (7, AWAY, 5), (7, AWAY, 5)),
        (None, (7, GONE, None), (7, GONE, None)),
        ((7, AWAY, 5), (7, GONE, None), (7, AWAY, 5)),
    ],
)
def test_members_come_along_with_the_lower_of_two_clocks(mine, theirs, expected):
    def roster_of(member):
        here = MemberState(1, "x:1", 9, AWAY, 0)  # that keeps the job going
        if member is None:
            return RosterState(2, (here,))
        worker, presence, clock = member
        return RosterState(2, (MemberState(0, "w:1", worker, presence, clock), here))

    roster = Roster()
    roster.restore(roster_of(mine))
    roster.merge(roster_of(theirs))
    found = {each.rank: (each.worker, each.presence, each.clock) for each in roster.state().members}
    assert found == {0: expected, 1: (9, AWAY, 0)}
