"""Applied: each push is in each bucket once, whatever comes again and wherever buckets move."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ps_server.applied import Applied, InWork, range_worker, still_to_apply
from ps_server.change import Origin
from ps_server.keys import bucket_of
from ps_server.spec import NUM_BUCKETS

SOON = 0.05
LATER = 10.0
ALL = np.ones(NUM_BUCKETS, np.bool_)
NUM_PARTS = 4  # of the buckets, which move part by part
WORKERS = (1, 2**64 - 1)


def part(number):
    """Returns a quarter of the buckets."""
    return np.arange(NUM_BUCKETS) * NUM_PARTS // NUM_BUCKETS == number


def keys_of_each_part():
    keys = np.arange(100, dtype=np.uint64)
    firsts = [int(np.flatnonzero(part(number)[bucket_of(keys)])[0]) for number in range(NUM_PARTS)]
    return keys[firsts]


KEYS = keys_of_each_part()


class Move(RuleBasedStateMachine):
    """Two servers own parts that move; workers push to both, again and in any order.

    The oracle is the list of what was applied: (worker, sequence, part).
    """

    def __init__(self):
        super().__init__()
        self.servers = [Applied(), Applied()]
        self.owner = [0, 0, 1, 1]
        self.applied = []
        self.sent = dict.fromkeys(WORKERS, 0)  # the latest push that its worker began

    def owned(self, server):
        return np.any([part(n) for n in range(NUM_PARTS) if self.owner[n] == server] + [~ALL], 0)

    def push(self, worker, sequence, server):
        origin, owned = Origin(worker, sequence), self.owned(server)
        pending = self.servers[server].pending(origin, owned)
        left = still_to_apply({"user": (KEYS, np.arange(NUM_PARTS))}, pending, owned)
        for key in left.get("user", ([], []))[0]:
            number = KEYS.tolist().index(key)
            if self.owner[number] == server:  # all else of the keys goes to the other server
                self.applied.append((worker, sequence, number))
        self.servers[server].note(origin, owned)

    def is_whole(self, worker):
        last = self.sent[worker]
        return all((worker, last, number) in self.applied for number in range(NUM_PARTS))

    @rule(worker=st.sampled_from(WORKERS))
    def begin_the_next(self, worker):
        if self.sent[worker] == 0 or self.is_whole(worker):
            self.sent[worker] += 1

    @rule(worker=st.sampled_from(WORKERS), server=st.sampled_from([0, 1]))
    def send(self, worker, server):
        if self.sent[worker]:
            self.push(worker, self.sent[worker], server)

    @rule(
        worker=st.sampled_from(WORKERS),
        server=st.sampled_from([0, 1]),
        back=st.integers(min_value=1, max_value=3),
    )
    def an_old_one_comes_late(self, worker, server, back):
        if self.sent[worker] > back:
            before = list(self.applied)
            self.push(worker, self.sent[worker] - back, server)
            assert self.applied == before

    @rule(number=st.integers(min_value=0, max_value=NUM_PARTS - 1))
    def move(self, number):
        giver = self.owner[number]
        buckets = np.flatnonzero(part(number)).tolist()
        self.servers[1 - giver].set_sequences(buckets, *self.servers[giver].sequences_of(buckets))
        self.servers[giver].forget_buckets(buckets)
        self.owner[number] = 1 - giver

    @rule(server=st.sampled_from([0, 1]))
    def restart(self, server):
        state = self.servers[server].state()
        self.servers[server] = Applied()
        self.servers[server].restore(state)

    @precondition(lambda self: any(self.sent.values()))
    @rule(worker=st.sampled_from(WORKERS), server=st.sampled_from([0, 1]))
    def one_is_left_out(self, worker, server):
        owned = self.owned(server)
        if owned.any():
            with pytest.raises(ValueError, match="are missing here"):
                self.servers[server].pending(Origin(worker, self.sent[worker] + 2), owned)

    @invariant()
    def each_is_applied_once_and_none_is_skipped(self):
        assert len(self.applied) == len(set(self.applied))
        for worker in WORKERS:
            for sequence in range(1, self.sent[worker]):
                for number in range(NUM_PARTS):
                    assert (worker, sequence, number) in self.applied


Move.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_pushes_are_applied_once_while_buckets_move = Move.TestCase


def test_only_the_first_push_of_a_worker_that_is_not_known_is_taken():
    applied = Applied()
    with pytest.raises(ValueError, match=r"worker 0x7 .* got sequence=3 where 0 was its last"):
        applied.pending(Origin(7, 3), ALL)
    assert applied.pending(Origin(7, 1), ALL).all()


def test_a_gap_is_refused_by_what_is_missing_and_where():
    applied = Applied()
    applied.note(Origin(7, 1), ALL)
    applied.note(Origin(7, 2), part(0))
    with pytest.raises(ValueError, match=r"where 1 .* 3072 buckets from 1024 on; pushes 2 to 3 "):
        applied.pending(Origin(7, 4), ~part(0))
    assert applied.pending(Origin(7, 3), part(0)).sum() == NUM_BUCKETS // NUM_PARTS


def test_who_has_not_pushed_for_longest_is_forgotten_and_then_refused():
    applied = Applied(max_workers=2)
    for worker in (1, 2):
        applied.note(Origin(worker, 1), ALL)
    applied.note(Origin(1, 2), ALL)
    applied.note(Origin(3, 1), ALL)
    assert applied.state().workers.tolist() == [1, 3]
    with pytest.raises(ValueError, match="remembers the last 2 workers"):
        applied.pending(Origin(2, 2), ALL)
    applied.restore(applied.state())
    applied.note(Origin(4, 1), ALL)
    assert applied.state().workers.tolist() == [3, 4], "their order is kept, too"
    applied.forget(3)
    applied.forget(99)
    assert applied.state().workers.tolist() == [4]


def test_state_is_a_copy():
    applied = Applied()
    applied.note(Origin(7, 1), ALL)
    state = applied.state()
    applied.note(Origin(7, 2), ALL)
    assert (state.sequences == 1).all()
    applied.restore(state)
    applied.note(Origin(7, 2), ALL)
    assert (state.sequences == 1).all()
    assert Applied().state().sequences.shape == (0, NUM_BUCKETS)


def test_a_late_repetition_takes_nothing_back():
    applied = Applied()
    for sequence in (1, 2, 1):
        applied.note(Origin(7, sequence), ALL)
    assert not applied.pending(Origin(7, 2), ALL).any()


@pytest.mark.parametrize("flat", [False, True])
def test_what_is_left_of_a_push_is_of_the_pending_buckets_in_its_order(flat):
    keys, rows = np.concatenate([KEYS[::-1], KEYS]), np.arange(16, dtype=np.float32).reshape(8, 2)
    none = np.empty(0, np.uint64), np.empty(0, np.float32)
    gradients = {"user": (keys, rows.reshape(-1) if flat else rows), "item": none}
    left = still_to_apply(gradients, part(0) | part(2), ALL)
    assert left["user"][0].tolist() == KEYS[[2, 0, 0, 2]].tolist()
    assert left["user"][1].reshape(-1, 2).tolist() == rows[[1, 3, 4, 6]].tolist()
    assert [len(each) for each in left["item"]] == [0, 0]
    assert still_to_apply(gradients, ALL, ALL) is gradients
    assert still_to_apply(gradients, ~ALL, ALL) == {}


@pytest.mark.parametrize(
    ("worker", "sequence"), [(0, 1), (2**64, 1), (-1, 1), (1, 0), (1, 2**64), (1, -1)]
)
def test_origin_that_cannot_be_is_refused(worker, sequence):
    with pytest.raises(ValueError, match=f"worker={worker}, sequence={sequence}"):
        Origin(worker, sequence)


def test_a_push_in_work_holds_up_its_repetition_and_no_other():
    in_work, inside, leave = InWork(), threading.Event(), threading.Event()

    def work():
        with in_work.turn(Origin(1, 1)):
            inside.set()
            assert leave.wait(LATER)

    def repeat():
        with in_work.turn(Origin(1, 1)):
            return leave.is_set()

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(work)
        assert inside.wait(LATER)
        repeated = threads.submit(repeat)
        with pytest.raises(TimeoutError):
            repeated.result(SOON)
        for other in (Origin(1, 2), Origin(2, 1)):
            with in_work.turn(other):
                pass
        leave.set()
        assert repeated.result(LATER)
        first.result(LATER)


def test_what_has_finished_takes_no_push_however_late_it_comes():
    applied, origin = Applied(), Origin(7, 1)
    applied.note(origin, ALL)
    assert applied.progress(7, ALL) == 1
    applied.finish(7, 7)
    for sequence in (1, 2, 9):
        assert not applied.pending(Origin(7, sequence), ALL).any()
    applied.note(Origin(7, 2), ALL)
    assert applied.progress(7, ALL) is None
    assert applied.state().workers.tolist() == []
    assert applied.pending(Origin(8, 1), ALL).all()


def test_progress_is_that_of_the_bucket_that_is_furthest_behind():
    applied = Applied()
    applied.note(Origin(7, 1), ALL)
    applied.note(Origin(7, 2), part(0))
    assert [applied.progress(7, owned) for owned in (ALL, part(0))] == [1, 2]
    assert applied.progress(8, ALL) == 0


def test_workers_of_ranges_follow_one_another_and_are_those_of_one_run():
    ids = (1, 2**64 - 1, 5 << 32)
    numbers = {range_worker(table_id, number) for table_id in ids for number in range(4)}
    assert len(numbers) == 12
    assert 0 not in numbers
    assert [range_worker(5 << 32, n) - range_worker(5 << 32, 0) for n in range(3)] == [0, 1, 2]
