"""Workers: membership, clocks, the wait for a step's parts; and the rows that come of it."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps_server.route import Route, ServerRef
from ps_server.spec import SGD, Adagrad, Adam, Constant, TableSpec
from ps_server.store import Store, TableNotFound
from ps_server.workers import MAX_WORKERS, Stopping, WorkerLost, Workers
from tests.oracles.dict_table import DictTable
from tests.oracles.schedule import run_schedule

SOON = 0.05
LATER = 10.0
KEYS = np.arange(8, dtype=np.uint64)


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def assert_blocks(future):
    with pytest.raises(TimeoutError):
        future.result(SOON)


def joined(num_workers, *, first_step=0, **options):
    """Returns workers that have all joined and begun, and the members."""
    workers = Workers(**{"wait_seconds": LATER, **options})
    members = [workers.join(r, num_workers=num_workers, name=f"w{r}") for r in range(num_workers)]
    for rank in range(num_workers):
        workers.begin(rank, first_step)
    return workers, members


def nothing():
    """Applies a push that has no rows."""


def is_waiting_for_parts(workers, rank):
    gathering = workers._gathering
    return gathering is not None and rank in gathering.parts


@pytest.mark.parametrize(
    ("rank", "num_workers"), [(0, 0), (1, 1), (-1, 2), (2, 2), (0, MAX_WORKERS + 1)]
)
def test_ranks_out_of_range_are_refused(rank, num_workers):
    with pytest.raises(ValueError, match=f"rank={rank}, num_workers={num_workers} from w"):
        Workers().join(rank, num_workers=num_workers, name="w")


def test_another_number_of_workers_is_refused():
    workers = Workers()
    workers.join(0, num_workers=2, name="w0")
    with pytest.raises(ValueError, match="of num_workers=2, got num_workers=3 from w1"):
        workers.join(1, num_workers=3, name="w1")
    with pytest.raises(ValueError, match="of num_workers=4, got num_workers=2 from w0"):
        Workers(num_workers=4).join(0, num_workers=2, name="w0")


def test_rank_that_is_taken_is_refused_by_name_until_the_job_is_over():
    workers, _ = joined(2)
    with pytest.raises(ValueError, match=r"rank=1 from other, but worker 1 \(w1\) is here"):
        workers.join(1, num_workers=2, name="other")
    workers.goodbye(1)
    with pytest.raises(ValueError, match=r"worker 1 \(w1\) has said goodbye"):
        workers.join(1, num_workers=2, name="other")
    workers.goodbye(0)
    assert str(workers.join(0, num_workers=1, name="other").member) == "worker 0 (other)"


@pytest.mark.parametrize("call", ["begin", "end", "goodbye", "pull", "push", "part"])
def test_who_has_not_joined_is_refused(call):
    workers = Workers()
    calls = {
        "begin": lambda: workers.begin(3, 0),
        "end": lambda: workers.end(3),
        "goodbye": lambda: workers.goodbye(3),
        "pull": lambda: workers.wait_to_pull(3, 0),
        "push": lambda: workers.push(3, 1, nothing),
        "part": lambda: workers.push_part(3, 1, 1.0, None, print),
    }
    with pytest.raises(ValueError, match="joins before all else, got rank=3"):
        calls[call]()


def test_job_is_over_once_each_has_said_goodbye_or_nobody_is_left_of_one_that_lost_some():
    ends = []
    workers, members = joined(2, on_over=ends.append)
    workers.goodbye(0)
    workers.goodbye(0)  # again, and the end of its stream: both are nothing
    workers.lose(members[0])
    assert ends == []
    workers.goodbye(1)
    assert ends == [True]
    workers.join(1, num_workers=2, name="quick")
    workers.goodbye(1)
    assert ends == [True], "the other has yet to come"
    workers.join(0, num_workers=2, name="slow")
    workers.goodbye(0)
    assert ends == [True, True]
    ends.clear()
    members = [workers.join(r, num_workers=3, name="w") for r in range(2)]
    workers.lose(members[0])
    assert ends == []
    workers.goodbye(1)
    assert ends == [False], "the third worker has nobody to train with"
    workers.join(0, num_workers=1, name="next")
    workers.lose(members[0])  # of the job before
    workers.goodbye(0)
    assert ends == [False, True]


def test_nobody_joins_a_job_that_has_lost_a_worker():
    workers = Workers()
    lost = workers.join(0, num_workers=3, name="w0")
    workers.join(1, num_workers=3, name="w1")
    workers.lose(lost)
    for rank in (0, 2):
        with pytest.raises(WorkerLost, match=r"worker 0 \(w0\) is lost"):
            workers.join(rank, num_workers=3, name="new")


def test_wait_for_the_end_of_a_membership_ends_with_it(threads):
    workers, members = joined(2)
    ends = [threads.submit(workers.wait_for_end, member) for member in members]
    assert_blocks(ends[0])
    workers.goodbye(0)
    workers.lose(members[1])
    for end in ends:
        assert end.result(LATER) is None


def test_close_ends_every_wait_and_refuses_the_next(threads):
    workers, members = joined(3)
    waits = [
        threads.submit(workers.wait_for_end, members[0]),
        threads.submit(workers.wait_to_pull, 1, 1),
        threads.submit(workers.push_part, 2, 1, 1.0, None, print),
    ]
    for future in waits:
        assert_blocks(future)
    workers.close()
    for future in waits:
        with pytest.raises(Stopping):
            future.result(LATER)
    for call in (
        lambda: workers.wait_to_pull(1, 0),
        lambda: workers.push_part(0, 1, 1.0, None, print),
        lambda: workers.join(0, num_workers=3, name="w"),
    ):
        with pytest.raises(Stopping):
            call()
    workers.lose(members[0])  # streams break when a server stops: nobody is lost
    assert members[0].member.presence.name == "PRESENT"


def test_pull_waits_for_the_slowest_clock_that_runs(threads):
    workers = Workers()
    for rank in range(4):
        workers.join(rank, num_workers=4, name=f"w{rank}")
    workers.wait_to_pull(0, 100)  # nobody has begun
    for rank in range(3):
        workers.begin(rank, 5)
    workers.wait_to_pull(0, 5)
    pull = threads.submit(workers.wait_to_pull, 0, 6)
    workers.push(0, 6, nothing)
    workers.push(1, 6, nothing)
    workers.push(1, 7, nothing)
    assert_blocks(pull)
    workers.push(2, 6, nothing)
    assert pull.result(LATER) is None
    pull = threads.submit(workers.wait_to_pull, 1, 7)
    workers.push(2, 7, nothing)
    assert_blocks(pull)
    workers.end(0)
    assert pull.result(LATER) is None


def test_clock_moves_when_the_push_is_applied_and_not_before(threads):
    workers, _ = joined(2)
    workers.push(0, 1, nothing)
    may_apply = threading.Event()
    push = threads.submit(workers.push, 1, 1, lambda: may_apply.wait(LATER))
    pull = threads.submit(workers.wait_to_pull, 0, 1)
    assert_blocks(pull)
    may_apply.set()
    assert (push.result(LATER), pull.result(LATER)) == (None, None)


def test_push_that_failed_moves_no_clock_and_can_be_made_good():
    workers, _ = joined(1)

    def fail():
        raise TableNotFound("x")

    for _ in range(2):
        with pytest.raises(TableNotFound):
            workers.push(0, 1, fail)
    workers.push(0, 1, nothing)
    workers.wait_to_pull(0, 1)


@pytest.mark.parametrize("step", [0, 5, 7])
def test_step_that_is_not_the_workers_next_is_refused(step):
    workers, _ = joined(1, first_step=5)
    for push in (
        lambda step: workers.push(0, step, nothing),
        lambda step: workers.push_part(0, step, 1.0, None, print),
    ):
        with pytest.raises(ValueError, match=rf"worker 0 \(w0\) .* got step={step} after step 5"):
            push(step)
    workers.push(0, 6, nothing)


def test_same_step_again_is_refused_also_while_it_is_applied(threads):
    workers, _ = joined(2)
    may_apply, applying = threading.Event(), threading.Event()

    def apply(*_):
        applying.set()
        assert may_apply.wait(LATER)

    first = threads.submit(workers.push, 0, 1, apply)
    assert applying.wait(LATER)
    with pytest.raises(ValueError, match="each step once, in order, got step=1 after step 1"):
        workers.push(0, 1, nothing)
    may_apply.set()
    first.result(LATER)
    with pytest.raises(ValueError, match="got step=1 after step 1"):
        workers.push(0, 1, nothing)


def test_push_before_begin_and_after_end_is_refused():
    workers = Workers()
    workers.join(0, num_workers=1, name="w0")
    with pytest.raises(ValueError, match=r"worker 0 \(w0\) pushes after it has begun"):
        workers.push(0, 1, nothing)
    workers.begin(0, 0)
    workers.end(0)
    with pytest.raises(ValueError, match="pushes after it has begun"):
        workers.push_part(0, 1, 1.0, None, print)


def test_lost_worker_ends_the_pulls_that_wait_for_it_and_no_other(threads):
    workers, members = joined(3)
    pull = threads.submit(workers.wait_to_pull, 0, 1)
    workers.push(0, 1, nothing)
    workers.push(1, 1, nothing)
    assert_blocks(pull)
    workers.lose(members[2])
    with pytest.raises(WorkerLost, match=r"^worker 2 \(w2\) is lost: its connection broke before"):
        pull.result(LATER)
    workers.wait_to_pull(0, 0)  # misses nothing of it that it has pushed
    with pytest.raises(WorkerLost, match=r"worker 2 \(w2\)"):
        workers.wait_to_pull(1, 1)
    for call in (
        lambda: workers.begin(2, 0),
        lambda: workers.wait_to_pull(2, 0),
        lambda: workers.push(2, 1, nothing),
    ):
        with pytest.raises(WorkerLost, match=r"worker 2 \(w2\) is lost"):
            call()


def test_worker_that_is_lost_after_its_end_is_waited_for_by_nobody():
    workers, members = joined(2)
    workers.push(0, 1, nothing)
    workers.end(1)
    workers.lose(members[1])
    workers.wait_to_pull(0, 1)


def test_goodbye_ends_the_clock_too(threads):
    workers, _ = joined(2)
    workers.push(0, 1, nothing)
    pull = threads.submit(workers.wait_to_pull, 0, 1)
    assert_blocks(pull)
    workers.goodbye(1)
    assert pull.result(LATER) is None


def test_pull_ends_when_its_own_worker_is_lost(threads):
    """Nobody reads its answer: it would hold a thread of the server for nothing."""
    workers, members = joined(2)
    pull = threads.submit(workers.wait_to_pull, 0, 1)
    assert_blocks(pull)
    workers.lose(members[0])
    with pytest.raises(WorkerLost, match=r"worker 0 \(w0\)"):
        pull.result(LATER)


def test_silent_worker_is_named_by_pull_and_push():
    workers, _ = joined(2, first_step=7, wait_seconds=SOON)
    with pytest.raises(WorkerLost, match=r"step 8, got .*worker 1 \(w1\) at step 7 after 0.05 s"):
        workers.wait_to_pull(0, 8)
    with pytest.raises(WorkerLost, match=r"step 8 .* none of worker 1 \(w1\) within 0.05 s"):
        workers.push_part(0, 8, 1.0, None, print)
    workers = Workers(wait_seconds=SOON)
    workers.join(0, num_workers=2, name="w0")
    workers.begin(0, 0)
    with pytest.raises(WorkerLost, match=r"none of worker 1 \(has not joined\)"):
        workers.push_part(0, 1, 1.0, None, print)


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(4)))
def test_parts_are_applied_once_when_all_are_here_in_order_of_the_ranks(order):
    workers, _ = joined(4)
    applied = []
    with ThreadPoolExecutor(4) as threads:
        pushes = []
        for rank in order:
            assert applied == []
            part = (rank, 1, float(rank), f"part {rank}", applied.append)
            pushes.append(threads.submit(workers.push_part, *part))
            if rank != order[-1]:
                until(lambda rank=rank: is_waiting_for_parts(workers, rank))
        for push in pushes:
            assert push.result(LATER) is None
    assert applied == [[(float(rank), f"part {rank}") for rank in range(4)]]
    for rank in range(4):
        workers.wait_to_pull(rank, 1)


def until(holds):
    moment = threading.Event()
    for _ in range(30_000):
        if holds():
            return
        moment.wait(0.001)
    raise AssertionError("it never came true")


def test_failure_to_apply_is_that_of_every_worker_and_the_step_can_be_pushed_again(threads):
    workers, _ = joined(2)

    def fail(parts):
        raise TableNotFound("no table")

    for _ in range(2):
        pushes = [threads.submit(workers.push_part, rank, 1, 1.0, None, fail) for rank in range(2)]
        for push in pushes:
            with pytest.raises(TableNotFound, match="no table"):
                push.result(LATER)
    applied = []
    pushes = [
        threads.submit(workers.push_part, rank, 1, 1.0, rank, applied.append) for rank in range(2)
    ]
    for push in pushes:
        push.result(LATER)
    assert applied == [[(1.0, 0), (1.0, 1)]]


def test_parts_of_two_steps_at_once_are_refused(threads):
    workers, _ = joined(2)
    workers.begin(1, 4)
    first = threads.submit(workers.push_part, 0, 1, 1.0, None, print)
    until(lambda: is_waiting_for_parts(workers, 0))
    with pytest.raises(ValueError, match=r"got step=5 from worker 1 \(w1\) while others push step"):
        workers.push_part(1, 5, 1.0, None, print)
    workers.close()
    with pytest.raises(Stopping):
        first.result(LATER)


@pytest.mark.parametrize("how", ["lose", "goodbye"])
@pytest.mark.parametrize("who", ["pushed", "missing"])
def test_worker_gone_in_the_middle_of_a_step_leaves_nothing_of_it(threads, who, how):
    workers, members = joined(3)
    applied = []
    pushes = [threads.submit(workers.push_part, r, 1, 1.0, r, applied.append) for r in (0, 1)]
    until(lambda: all(is_waiting_for_parts(workers, r) for r in (0, 1)))
    gone = members[1 if who == "pushed" else 2]
    if how == "lose":
        workers.lose(gone)
    else:
        workers.goodbye(gone.member.rank)
    for push in pushes:
        with pytest.raises(
            WorkerLost, match=rf"worker {gone.member.rank} \(w{gone.member.rank}\) .*in the mid"
        ):
            push.result(LATER)
    for rank in {0, 1, 2} - {gone.member.rank}:
        with pytest.raises(WorkerLost, match=rf"worker {gone.member.rank} \(w{gone.member.rank}\)"):
            workers.push_part(rank, 1, 1.0, None, applied.append)
    assert applied == []


def test_worker_lost_while_a_whole_step_is_applied_has_no_say_in_it(threads):
    workers, members = joined(2)
    may_apply, applying = threading.Event(), threading.Event()

    def apply(parts):
        applying.set()
        assert may_apply.wait(LATER)

    pushes = [threads.submit(workers.push_part, r, 1, 1.0, r, apply) for r in range(2)]
    assert applying.wait(LATER)
    workers.lose(members[1])
    may_apply.set()
    for push in pushes:
        assert push.result(LATER) is None
    workers.wait_to_pull(0, 1)


def new_store(spec, num_workers, *, first_step=0):
    store = Store()
    store.workers._wait_seconds = LATER  # a test that fails ends too
    route = Route((ServerRef(store.id, "here"),))
    store.create_table(spec, route)
    members = [
        store.workers.join(r, num_workers=num_workers, name=f"w{r}") for r in range(num_workers)
    ]
    for rank in range(num_workers):
        store.workers.begin(rank, first_step)
    return store, route.fingerprint_of(store.id), members


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_pull_misses_more_than_k_steps_of_any_worker(data):
    """Whoever is delayed, and however long: that is the order in which workers may go on."""
    num_steps = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4), "steps")
    staleness = data.draw(st.integers(0, 3), "staleness")
    turns = [rank for rank, steps in enumerate(num_steps) for _ in range(2 * steps + 1)]
    turns = data.draw(st.permutations(turns), "turns")
    # Row w is how many pushes of worker w it has seen.
    spec = TableSpec("seen", 1, SGD(1.0), Constant(0.0))
    store, route, _ = new_store(spec, len(num_steps))
    keys = np.arange(len(num_steps), dtype=np.uint64)

    def pull(rank, after_step):
        (rows,) = store.pull(route, {"seen": keys}, insert=True, rank=rank, after_step=after_step)
        return rows[:, 0].astype(int).tolist()

    def push(rank, step):
        gradients = {"seen": (keys[rank : rank + 1], np.full((1, 1), -1, np.float32))}
        store.push(route, gradients, step=step, rank=rank)

    pulled = run_schedule(num_steps, staleness, turns, pull=pull, push=push, end=store.workers.end)
    for _, step, seen in pulled:
        for other, steps in enumerate(num_steps):
            assert min(step, steps) - staleness <= seen[other] <= steps
    assert pull(0, 0) == num_steps, "each push is applied once"


WEIGHTS = st.sampled_from([0, 0, 1, 3, 128])


def draw_part(data, rng):
    keys = KEYS[: data.draw(st.integers(0, 8))].copy()
    rng.shuffle(keys)
    return keys, rng.standard_normal((len(keys), 3)).astype(np.float32), data.draw(WEIGHTS)


def weighted_mean(parts):
    """Returns keys and gradients of one push: slow, a key at a time, in order of the ranks."""
    total = sum(weight for _, _, weight in parts)
    sums = {}
    for keys, gradients, weight in parts:
        for key, gradient in zip(keys.tolist(), gradients, strict=True):
            if weight:
                mine = gradient * np.float32(weight / total)
                sums[key] = sums[key] + mine if key in sums else mine
    return np.array(list(sums), np.uint64), np.array(list(sums.values())).reshape(-1, 3)


@pytest.mark.parametrize(
    "optimizer", [SGD(0.1), Adagrad(0.1), Adam(0.01)], ids=["SGD", "Adagrad", "Adam"]
)
def test_step_of_several_workers_is_one_push_of_the_weighted_mean(optimizer):
    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def check(data):
        num_workers = data.draw(st.integers(1, 4))
        rng = np.random.default_rng(data.draw(st.integers(0, 99)))
        spec = TableSpec("user", 3, optimizer)
        store, route, _ = new_store(spec, num_workers, first_step=2)
        oracle = DictTable(spec)
        with ThreadPoolExecutor(num_workers) as threads:
            for step in range(3, 3 + data.draw(st.integers(1, 4))):
                parts = [draw_part(data, rng) for _ in range(num_workers)]
                pushes = []
                for rank in data.draw(st.permutations(range(num_workers))):
                    keys, gradients, weight = parts[rank]
                    table = {"user": (keys, gradients)} if len(keys) else {}
                    push = {"step": step, "rank": rank, "weight": weight}
                    pushes.append(threads.submit(store.push, route, table, **push))
                for push in pushes:
                    push.result(LATER)
                if any(weight and len(keys) for keys, _, weight in parts):
                    oracle.push(*weighted_mean(parts), step=step)
        (rows,) = store.pull(route, {"user": KEYS}, insert=False)
        assert np.array_equal(rows, oracle.pull(KEYS, insert=False))
        assert store.stats()[0].num_rows == oracle.num_rows
        assert store.stats()[0].last_step == oracle.last_step

    check()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_whenever_a_worker_is_lost_the_rows_are_those_of_whole_steps_and_every_wait_ends(data):
    num_workers = data.draw(st.integers(2, 4))
    victim = data.draw(st.integers(0, num_workers - 1))
    num_whole = data.draw(st.integers(0, 3))
    pushed = data.draw(st.sets(st.integers(0, num_workers - 1), max_size=num_workers - 1))
    spec = TableSpec("user", 1, SGD(1.0), Constant(0.0))
    store, route, members = new_store(spec, num_workers)
    ones = {"user": (KEYS, np.full((8, 1), -1, np.float32))}

    def push(rank, step):
        store.push(route, ones, step=step, rank=rank, weight=1 + rank)

    with ThreadPoolExecutor(num_workers) as threads:
        for step in range(1, num_whole + 1):
            for done in [threads.submit(push, rank, step) for rank in range(num_workers)]:
                done.result(LATER)
        waiting = [threads.submit(push, rank, num_whole + 1) for rank in pushed]
        until(lambda: all(is_waiting_for_parts(store.workers, rank) for rank in pushed))
        late = sorted({*range(num_workers)} - pushed - {victim})
        store.workers.lose(members[victim])
        waiting += [threads.submit(push, rank, num_whole + 1) for rank in late]
        done, not_done = wait(waiting, LATER)
    assert not not_done
    for future in done:
        with pytest.raises(WorkerLost, match=rf"worker {victim} \(w{victim}\)"):
            future.result()
    (rows,) = store.pull(route, {"user": KEYS}, insert=False)
    assert (rows == num_whole).all()


def test_part_of_the_only_worker_with_data_is_taken_as_it_is():
    """Bit for bit: a share of 1 multiplies nothing."""
    spec = TableSpec("user", 2, Adam(0.1))
    alone, route, _ = new_store(spec, 1)
    plain, plain_route, _ = new_store(spec, 1)
    rng = np.random.default_rng(0)
    for step in range(1, 4):
        push = {"user": (KEYS, rng.standard_normal((8, 2)).astype(np.float32))}
        alone.push(route, push, step=step, rank=0, weight=77)
        plain.push(plain_route, push, step=step)
    rows = [
        each.pull(where, {"user": KEYS}, insert=False)[0]
        for each, where in ((alone, route), (plain, plain_route))
    ]
    assert np.array_equal(*rows)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_weight_that_is_none_is_refused(weight):
    store, route, _ = new_store(TableSpec("user", 1), 1)
    with pytest.raises(ValueError, match="weight of at least 0"):
        store.push(route, {}, step=1, rank=0, weight=weight)
    with pytest.raises(ValueError, match="got rank=None"):
        store.push(route, {}, step=1, weight=1.0)
    with pytest.raises(ValueError, match="names its rank, got after_step=3"):
        store.pull(route, {}, insert=True, after_step=3)


def test_malformed_part_is_refused_at_once_and_the_others_wait_on(threads):
    store, route, _ = new_store(TableSpec("user", 1, SGD(1.0), Constant(0.0)), 2)
    good = {"user": (KEYS, np.ones((8, 1), np.float32))}
    first = threads.submit(store.push, route, good, step=1, rank=0, weight=1)
    until(lambda: is_waiting_for_parts(store.workers, 0))
    for bad in ({"user": (KEYS, np.ones((7, 1), np.float32))}, {"nobody": good["user"]}):
        with pytest.raises((ValueError, TableNotFound)):
            store.push(route, bad, step=1, rank=1, weight=1)
    assert_blocks(first)
    store.push(route, good, step=1, rank=1, weight=1)
    assert first.result(LATER) is None
    (rows,) = store.pull(route, {"user": KEYS}, insert=False)
    assert (rows == -1).all()


def test_table_dropped_while_parts_wait_fails_the_step(threads):
    spec = TableSpec("user", 1, SGD(1.0), Constant(0.0))
    store, route, _ = new_store(spec, 2)
    held = store.route
    (stats,) = store.stats()
    push = {"user": (KEYS, np.ones((8, 1), np.float32))}
    first = threads.submit(
        store.push, route, push, step=1, rank=0, weight=1, ids={"user": stats.id}
    )
    until(lambda: is_waiting_for_parts(store.workers, 0))
    store.drop_table("user")
    store.create_table(spec, held)
    for future in (first, threads.submit(store.push, route, push, step=1, rank=1, weight=1)):
        with pytest.raises(TableNotFound, match="created since"):
            future.result(LATER)
    assert store.stats()[0].num_rows == 0
