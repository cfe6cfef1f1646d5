"""Members that are away and come back, what is said twice, and what a log brings back."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_server.change import NotLogged, Presence, Push
from ps_server.order import Order
from ps_server.workers import WorkerLost, Workers
from tests.oracles.list_log import ListLog

SOON = 0.05
LATER = 10.0
LONG = 3600.0


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def make():
    """Returns a function that makes workers, which end with the test."""
    made = []

    def make(**options):
        made.append(Workers(**{"wait_seconds": LATER, "rejoin_seconds": LONG, **options}))
        return made[-1]

    yield make
    for workers in made:
        workers.close()


def join(workers, rank, *, num_workers=2, worker=None):
    """Joins as the worker of number 100 + rank, or another."""
    number = 100 + rank if worker is None else worker
    return workers.join(rank, num_workers=num_workers, name=f"w{rank}", worker=number)


def begun(workers, num_workers=2):
    streams = [join(workers, rank, num_workers=num_workers) for rank in range(num_workers)]
    for rank in range(num_workers):
        workers.begin(rank, 0)
    return streams


def nothing():
    """Applies a push that has no rows."""


def clock_of(workers, rank):
    return workers.state().members[rank].clock


def assert_blocks(future):
    with pytest.raises(TimeoutError):
        future.result(SOON)


def test_member_that_is_away_is_waited_for_and_comes_back_with_its_clock(make, threads):
    workers = make()
    streams = begun(workers)
    workers.push(0, 1, nothing)
    workers.push(1, 1, nothing)
    workers.push(0, 2, nothing)
    pull = threads.submit(workers.wait_to_pull, 0, 2)
    workers.lose(streams[1])
    assert streams[1].member.presence is Presence.AWAY
    assert_blocks(pull)
    back = join(workers, 1)
    assert (back.is_back, clock_of(workers, 1)) == (True, 1)
    workers.push(1, 2, nothing)
    assert pull.result(LATER) is None
    assert not streams[0].is_back


def test_member_that_stays_away_is_lost_to_who_waits(make, threads):
    workers = make(rejoin_seconds=SOON)
    streams = begun(workers)
    pull = threads.submit(workers.wait_to_pull, 0, 0)
    part = threads.submit(workers.push_part, 0, 1, 1.0, None, print)
    workers.lose(streams[1])
    with pytest.raises(WorkerLost, match=r"worker 1 \(w1\) is lost"):
        part.result(LATER)
    pull.result(LATER)
    with pytest.raises(WorkerLost, match=r"worker 1 \(w1\) is lost"):
        join(workers, 1)


@pytest.mark.parametrize(("worker", "seconds"), [(0, LONG), (101, 0.0)])
def test_who_cannot_come_back_is_lost_at_once(make, worker, seconds):
    workers = make(rejoin_seconds=seconds)
    join(workers, 0)
    workers.lose(join(workers, 1, worker=worker))
    with pytest.raises(WorkerLost, match=r"worker 1 \(w1\) is lost"):
        join(workers, 1, worker=worker)


def test_old_stream_of_a_member_that_came_back_says_nothing(make, threads):
    workers = make(rejoin_seconds=0.0)
    old = begun(workers)[1]
    end = threads.submit(workers.wait_for_end, old)
    assert_blocks(end)
    new = join(workers, 1)
    assert end.result(LATER) is None
    workers.lose(old)
    workers.interrupt(old)
    assert new.member.presence is Presence.PRESENT
    assert new.is_current
    end = threads.submit(workers.wait_for_end, new)
    assert_blocks(end)
    workers.interrupt(new)
    assert end.result(LATER) is None


def test_another_worker_for_a_rank_that_is_away_ends_the_job_of_the_others(make, threads):
    workers = make()
    streams = begun(workers)
    part = threads.submit(workers.push_part, 0, 1, 1.0, None, print)
    with pytest.raises(ValueError, match=r"worker 1 \(w1\) is here"):
        join(workers, 1, worker=7)
    workers.lose(streams[1])
    with pytest.raises(WorkerLost, match=r"worker 1 \(w1\) is lost"):
        join(workers, 1, worker=7)
    with pytest.raises(WorkerLost, match=r"worker 1 \(w1\) is lost"):
        part.result(LATER)
    workers.goodbye(0)
    assert not join(workers, 1, worker=7).is_back


def test_worker_started_anew_takes_the_place_of_one_that_was_alone(make):
    ends = []
    workers = make(on_over=ends.append)
    workers.lose(begun(workers, 1)[0])
    stream = join(workers, 0, num_workers=1, worker=7)
    assert not stream.is_back
    assert clock_of(workers, 0) is None
    assert ends == [], "a job goes on"
    with pytest.raises(WorkerLost, match=r"rank=0 by now, got a push of the worker that had it"):
        workers.push(0, 1, nothing, worker=100)


def test_workers_that_were_all_started_anew_begin_another_job(make):
    workers = make()
    for stream in begun(workers):
        workers.lose(stream)
    streams = [join(workers, rank, worker=7 + rank) for rank in (1, 0)]
    assert not any(stream.is_back for stream in streams)
    assert [clock_of(workers, rank) for rank in (0, 1)] == [None, None]


def test_what_is_said_twice_is_said_once(make):
    log, order = ListLog(), Order()
    workers = make(order=order)
    begun(workers)
    order.keep(log)
    for _ in range(2):
        workers.begin(0, 5)
    assert clock_of(workers, 0) == 5
    for _ in range(2):
        workers.end(0)
    for rank in (0, 1):
        for _ in range(2):
            workers.goodbye(rank)
    assert [type(each).__name__ for each in log.changes] == ["ClockSet", "ClockSet", "Left", "Left"]
    join(workers, 1)
    with pytest.raises(ValueError, match="joins before all else, got rank=0"):
        workers.goodbye(0)


def test_all_are_away_after_a_restart_and_their_clocks_hold(make, threads):
    before = make()
    begun(before)
    before.push(0, 1, nothing)
    workers = make()
    workers.restore(before.state())
    workers.resume()
    assert join(workers, 0).is_back
    pull = threads.submit(workers.wait_to_pull, 0, 1)
    assert_blocks(pull)
    assert join(workers, 1).is_back
    workers.push(1, 1, nothing)
    assert pull.result(LATER) is None


def test_who_does_not_come_back_after_a_restart_is_lost(make, threads):
    before = make()
    begun(before)
    workers = make(rejoin_seconds=SOON)
    workers.restore(before.state())
    pull = threads.submit(workers.wait_to_pull, 0, 1)
    workers.resume()
    with pytest.raises(WorkerLost):
        pull.result(LATER)


def test_job_that_was_over_before_the_kill_is_over_after_it(make):
    before, ends = make(), []
    begun(before, 1)
    before.goodbye(0)
    workers = make(on_over=ends.append)
    workers.restore(before.state())
    workers.resume()
    assert ends == [True]
    workers.goodbye(0)  # its answer was lost


def test_what_cannot_be_logged_does_not_happen(make):
    log, order = ListLog(), Order()
    workers = make(order=order)
    stream = begun(workers)[1]
    order.keep(log)
    log.is_full = True
    before = workers.state()
    for call in (lambda: workers.begin(0, 9), lambda: workers.end(0), lambda: workers.goodbye(0)):
        with pytest.raises(NotLogged):
            call()
        assert workers.state() == before
    workers.lose(stream)
    with pytest.raises(NotLogged):
        join(workers, 1, worker=7)
    assert workers.state().members[1].presence is Presence.AWAY
    assert join(workers, 1).is_back, "nothing to log"


def test_loss_that_cannot_be_logged_comes_when_it_can(make, threads, monkeypatch):
    monkeypatch.setattr("ps_server.workers.LOG_SECONDS", SOON)
    log, order = ListLog(), Order()
    workers = make(order=order, rejoin_seconds=0.0)
    stream = begun(workers)[1]
    order.keep(log)
    log.is_full = True
    workers.lose(stream)
    assert stream.member.presence is Presence.AWAY
    pull = threads.submit(workers.wait_to_pull, 0, 1)
    workers_clock = threads.submit(workers.push, 0, 1, nothing)
    workers_clock.result(LATER)
    assert_blocks(pull)
    log.is_full = False
    with pytest.raises(WorkerLost, match=r"worker 1 \(w1\) is lost"):
        pull.result(LATER)


def do_anything(data, workers, order):
    streams = {}
    for _ in range(data.draw(st.integers(1, 25))):
        rank = data.draw(st.integers(0, 1))
        call = data.draw(st.sampled_from(["join", "begin", "end", "goodbye", "push", "break"]))
        worker = data.draw(st.sampled_from([100, 200]))
        try:
            if call == "join":
                streams[rank] = join(workers, rank, worker=worker + rank)
            elif call == "begin":
                workers.begin(rank, data.draw(st.integers(0, 3)))
            elif call == "push":
                push = Push(1 + (clock_of_rank(workers, rank) or 0), {}, (), (rank,))
                workers.push(rank, push.step, lambda push=push: order.make(push, nothing))
            elif call == "break" and rank in streams:
                workers.lose(streams[rank])
            elif call in ("end", "goodbye"):
                getattr(workers, call)(rank)
        except (ValueError, WorkerLost):
            pass


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_log_of_changes_brings_the_same_roster_back(data):
    log, order = ListLog(), Order()
    order.keep(log)
    # However it ends: hypothesis leaves a test whose data are too long.
    with closing(Workers(order=order, rejoin_seconds=LONG)) as workers:
        do_anything(data, workers, order)
        state = workers.state()
    replayed = Workers()
    for change in log.changes:
        if isinstance(change, Push):
            replayed.replay_push(change.ranks, change.step)
        else:
            replayed.replay(change)
    assert replayed.state() == state


def clock_of_rank(workers, rank):
    return next((each.clock for each in workers.state().members if each.rank == rank), None)


def test_close_ends_the_thread_that_waits_for_those_away(make):
    workers = make()
    workers.lose(begun(workers)[1])
    watcher = workers._watcher
    assert watcher.is_alive()
    workers.close()
    assert not watcher.is_alive()
    assert watcher not in threading.enumerate()


def test_next_push_is_told_by_rank_step_and_worker(make):
    workers = make()
    begun(workers)
    assert workers.is_next(0, 1, worker=100)
    assert workers.is_next(0, 1)
    assert not workers.is_next(0, 2, worker=100)
    assert not workers.is_next(0, 1, worker=101)
    assert not workers.is_next(2, 1)
