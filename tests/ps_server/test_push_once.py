"""The store's pushes that come again: answered, and in the rows once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_server.change import NotLogged, Origin, Push
from ps_server.order import Order
from ps_server.route import Route, ServerRef
from ps_server.spec import NUM_BUCKETS, SGD, Adam, Constant, TableSpec
from ps_server.store import Store, WorkerLost
from tests.oracles.list_log import ListLog

SOON = 0.05
LATER = 10.0
SPEC = TableSpec("user", 1, SGD(1.0), Constant(0.0))
KEYS = np.arange(64, dtype=np.uint64)
ONES = {"user": (KEYS, np.full((64, 1), -1, np.float32))}
ALL = np.ones(NUM_BUCKETS, np.bool_)
LOWER = np.arange(NUM_BUCKETS) < NUM_BUCKETS // 2


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def new_store(num_workers=1, *, spec=SPEC, wait_seconds=LATER):
    store = Store()
    store.workers._wait_seconds = wait_seconds
    store.create_table(spec, Route((ServerRef(store.id, "here"),)))
    for rank in range(num_workers):
        store.workers.join(rank, num_workers=num_workers, name=f"w{rank}", worker=100 + rank)
        store.workers.begin(rank, 0)
    return store


def push(store, step=1, *, rank=0, weight=None, sequence=None, gradients=ONES):
    sequence = step if sequence is None else sequence
    store.push(
        store.route.fingerprint_of(store.id),
        gradients,
        step=step,
        rank=rank,
        weight=weight,
        origin=Origin(100 + (rank or 0), sequence),
    )


def counts(store):
    """How often each key was pushed."""
    (rows,) = store.pull(store.route.fingerprint_of(store.id), {"user": KEYS}, insert=False)
    return set(rows[:, 0].tolist())


def clocks(store):
    return [member.clock for member in store.workers.state().members]


def assert_blocks(future):
    with pytest.raises(TimeoutError):
        future.result(SOON)


@pytest.mark.parametrize("weight", [None, 4.0])
@pytest.mark.parametrize("is_logged", [False, True])
def test_push_that_comes_again_is_answered_and_changes_nothing(weight, is_logged):
    store, log = new_store(), ListLog()
    if is_logged:
        store.keep(log)
    for step in (1, 1, 2, 1, 2):
        push(store, step, weight=weight)
    assert (counts(store), clocks(store)) == ({2}, [2])
    assert len(log.changes) == 2 * is_logged
    store.workers.goodbye(0)
    push(store, 2, weight=weight)
    assert counts(store) == {2}


def test_push_is_noted_in_the_buckets_that_are_here_alone():
    """One that comes with another server's bucket later must find it as that server had it."""
    store = Store()
    here, there = ServerRef(store.id, "here"), ServerRef("other", "there")
    route = Route((here, there)).moved([0, 7, 2000], to=there).moved([4000], to=here)
    store.create_table(SPEC, route)
    push(store, rank=None, gradients={"user": (KEYS[:0], np.empty((0, 1), np.float32))})
    noted = np.flatnonzero(store.applied.state().sequences[0])
    assert noted.tolist() == [b for b in range(2048) if b not in (0, 7, 2000)] + [4000]


def test_push_of_no_member_that_comes_again_changes_nothing():
    store = new_store(0)
    for sequence in (1, 1, 2, 1):
        push(store, 5, rank=None, sequence=sequence)
    assert counts(store) == {2}


def test_push_that_leaves_one_out_is_refused_and_changes_nothing():
    store = new_store()
    with pytest.raises(ValueError, match="pushes 1 to 1 are missing here"):
        push(store, 1, sequence=2)
    assert (store.stats()[0].num_rows, clocks(store)) == (0, [0])


@pytest.mark.parametrize("fails", [False, True])
def test_push_repeated_while_it_is_applied_waits_for_that_and_is_tried_if_it_failed(threads, fails):
    store, log = new_store(), ListLog()
    store.keep(log)
    log.may_append.clear()
    log.num_refusals = int(fails)
    first = threads.submit(push, store)
    assert log.appending.wait(LATER)
    again = threads.submit(push, store)
    assert_blocks(again)
    log.may_append.set()
    if fails:
        with pytest.raises(NotLogged):
            first.result(LATER)
    else:
        first.result(LATER)
    again.result(LATER)
    assert (counts(store), clocks(store), len(log.changes)) == ({1}, [1], 1)


def test_part_that_comes_again_while_others_are_awaited_waits_with_the_first(threads, wait_until):
    store = new_store(2)
    first = threads.submit(push, store, weight=1.0)
    wait_until(lambda: store.workers._gathering is not None)
    again = threads.submit(push, store, weight=1.0)
    assert_blocks(again)
    push(store, rank=1, weight=1.0)
    for each in (first, again):
        assert each.result(LATER) is None
    push(store, weight=1.0)
    push(store, rank=1, weight=1.0)
    assert (counts(store), clocks(store)) == ({1}, [1, 1])


def test_part_whose_step_was_given_up_is_a_new_one(threads, wait_until):
    store = new_store(2, wait_seconds=SOON)
    with pytest.raises(WorkerLost, match=r"none of worker 1"):
        push(store, weight=1.0)
    store.workers._wait_seconds = LATER
    again = threads.submit(push, store, weight=1.0)
    wait_until(lambda: store.workers._gathering is not None)
    push(store, rank=1, weight=1.0)
    assert again.result(LATER) is None
    assert (counts(store), clocks(store)) == ({1}, [1, 1])


def test_buckets_that_have_a_push_already_do_not_take_it_again():
    store = new_store()
    store.applied.note(Origin(100, 1), LOWER)  # they came from a server that had it
    push(store)
    push(store)
    (rows,) = store.pull(store.route.fingerprint_of(store.id), {"user": KEYS}, insert=False)
    has_it = store.applied.state().sequences[0] == 1
    assert has_it.all()
    assert 0 < rows.sum() < len(KEYS)
    assert clocks(store) == [1]


def test_clock_moves_also_where_all_buckets_have_the_push_and_waits_for_no_parts():
    store = new_store(2)
    store.applied.note(Origin(100, 1), ALL)
    push(store, weight=1.0)
    assert (store.stats()[0].num_rows, clocks(store)) == (0, [1, 0])


def test_push_of_a_worker_whose_rank_is_anothers_is_refused_and_its_repetition_moves_no_clock():
    store = new_store()
    push(store)
    stream = store.workers.join(0, num_workers=1, name="w0", worker=100)
    store.workers.lose(stream)
    store.workers.join(0, num_workers=1, name="new", worker=7)
    store.workers.begin(0, 0)
    push(store, 1)  # its answer comes late
    with pytest.raises(WorkerLost, match="got a push of the worker that had it before"):
        push(store, 1, sequence=2)
    assert (counts(store), clocks(store)) == ({1}, [0])


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_log_of_changes_brings_the_store_back_to_the_bit(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    spec = TableSpec("user", 2, Adam(0.1))
    log, store = ListLog(), Store()
    store.keep(log)
    store.create_table(spec, Route((ServerRef(store.id, "here"),)))
    route = store.route.fingerprint_of(store.id)
    for rank in range(2):
        store.workers.join(rank, num_workers=2, name="w", worker=100 + rank)
        store.workers.begin(rank, 0)
    steps = [0, 0]
    for _ in range(data.draw(st.integers(1, 12))):
        rank = data.draw(st.integers(0, 1))
        is_new = steps[rank] == 0 or data.draw(st.booleans())
        steps[rank] += is_new
        keys = rng.choice(KEYS, size=5, replace=False)
        gradients = {"user": (keys, rng.standard_normal((5, 2)).astype(np.float32))}
        push(store, steps[rank], rank=rank, gradients=gradients)
    if data.draw(st.booleans()):
        rows = store.export_rows(route, "user")
        store.import_rows(route, "user", rows)
    replayed = Store(server_id=store.id)
    for change in log.changes:
        replayed.replay(change)
    assert replayed.stats() == store.stats()
    assert replayed.workers.state() == store.workers.state()
    for mine, other in zip(
        vars(replayed.applied.state()).values(), vars(store.applied.state()).values(), strict=True
    ):
        assert np.array_equal(mine, other)
    mine, other = (each.export_rows(route, "user") for each in (replayed, store))
    for name in vars(mine):
        assert np.array_equal(getattr(mine, name), getattr(other, name)), name


def test_changes_are_refused_after_one_that_was_logged_and_failed():
    order, log = Order(), ListLog()
    order.keep(log)

    def fail():
        raise MemoryError

    change = Push(1, {}, (), ())
    with pytest.raises(MemoryError):
        order.make(change, fail)
    with pytest.raises(RuntimeError, match="restart this server"):
        order.make(change, lambda: None)
    assert log.changes == [change]


def test_a_log_gets_one_change_at_a_time():
    order, meeting = Order(), threading.Barrier(2)
    order.keep(ListLog())

    def meet():
        with order.turn():
            meeting.wait(SOON)

    with ThreadPoolExecutor(2) as threads:
        for visit in [threads.submit(meet) for _ in range(2)]:
            with pytest.raises(threading.BrokenBarrierError):
                visit.result(LATER)
