"""Steps whose threads share cores, against sums over who is there and steps tried one by one."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.cluster import Cluster, Device, Host, Rate, Spread
from hetero_pipe.cost import Constants, CostModel
from hetero_pipe.cost.sharing import Thread, expected_share, shared_step_time, stretches
from tests.cost.problems import plan, workers, workload

SECONDS = st.floats(0.01, 10.0)
THREADS = st.lists(
    st.builds(Thread, st.just("a"), SECONDS, st.integers(1, 3), st.booleans()),
    min_size=1,
    max_size=5,
)


def step_of(threads, cores):
    """Returns the step of stages that are one thread each."""

    def at_least(step):
        longer = stretches(threads, step, {"a": cores})
        return max(t.seconds * each for t, each in zip(threads, longer, strict=True))

    total = sum(thread.seconds * thread.count for thread in threads)
    bound = max(total / cores, *(thread.seconds for thread in threads))
    return shared_step_time(bound, at_least), bound, at_least


@given(st.integers(1, 8), st.floats(0, 1), st.integers(1, 4))
def test_a_share_is_the_mean_over_all_who_may_be_there(others, share, cores):
    mean = 0.0
    for there in product([False, True], repeat=others):
        probability = 1.0
        for each in there:
            probability *= share if each else 1 - share
        mean += probability * min(1.0, cores / (sum(there) + 1))
    (found,) = expected_share(others, np.array([others * share]), cores)
    assert found == pytest.approx(mean)


def test_a_thread_alone_takes_what_it_takes():
    assert step_of([Thread("a", 3.0)], 1)[0] == 3.0


def test_on_one_core_threads_take_turns():
    # Of the longer one's 5 s, the shorter is there for 4: each second has 2 of its own.
    found, bound, _ = step_of([Thread("a", 3.0), Thread("a", 2.0)], 1)
    assert (found, bound) == (pytest.approx(5.0, rel=1e-5), 5.0)


def test_as_many_threads_as_cores_never_wait():
    threads = [Thread("a", 3.0), Thread("a", 2.0), Thread("b", 9.0)]
    assert stretches(threads, 3.0, {"a": 2, "b": 1}) == [1.0, 1.0, 1.0]


def test_who_is_always_there_has_its_share_of_the_cores():
    threads = [Thread("a", 1.0, count=4)]
    assert stretches(threads, 1.0, {"a": 2}) == [pytest.approx(2.0)]


def test_what_is_in_the_cycle_may_be_there_for_a_part():
    threads = [Thread("a", 2.0), Thread("a", 2.0, is_in_cycle=True)]
    assert stretches(threads, 1.0, {"a": 1}) == [pytest.approx(2.0)] * 2
    # Of itself, the second is no more there for the first.
    assert stretches(threads, 1.0, {"a": 1}, of_cycle=0.0) == pytest.approx([1.0, 2.0])


@given(THREADS, st.integers(1, 4), st.floats(0.5, 50.0), st.floats(0, 1))
def test_times_are_as_long_as_they_make_each_other(threads, cores, step, of_cycle):
    found = stretches(threads, step, {"a": cores}, of_cycle=of_cycle)
    number = sum(thread.count for thread in threads)
    there = [
        min(t.seconds * each / step, 1.0) * (of_cycle if t.is_in_cycle else 1.0)
        for t, each in zip(threads, found, strict=True)
    ]
    present = sum(t.count * each for t, each in zip(threads, there, strict=True))
    shares = expected_share(number - 1, present - np.array(there), cores)
    assert found == pytest.approx(1 / shares, rel=1e-3)


@given(THREADS, st.integers(1, 4))
def test_it_is_the_least_step_that_is_long_enough(threads, cores):
    found, bound, at_least = step_of(threads, cores)
    assert at_least(found) <= found * (1 + 1e-9)
    assert found == bound or at_least(found * (1 - 1e-6)) > found * (1 - 1e-6)


@given(THREADS, st.integers(1, 4), SECONDS)
def test_more_cores_or_less_work_are_never_slower(threads, cores, less):
    before = step_of(threads, cores)[0]
    assert step_of(threads, cores + 1)[0] <= before * (1 + 1e-6)
    first, *others = threads
    lighter = Thread(first.host, first.seconds / (1 + less), first.count, first.is_in_cycle)
    assert step_of([lighter, *others], cores)[0] <= before * (1 + 1e-6)


def test_what_takes_longer_beside_others_is_longer_by_its_factor():
    cluster = Cluster((Host("a", (Device("cpu", memory=10**12, cores=8),)),))
    chosen = plan(workers(host="a"))
    model = CostModel(cluster, workload(), Constants())
    alone = model.predict(chosen).stage("route").cost.total
    rate = Rate("beside", "a", Spread.of([3.0]), device="cpu", kind="route")
    beside = CostModel(cluster.with_rates([rate]), workload(), Constants()).predict(chosen)
    assert beside.stage("route").cost.total == pytest.approx(3 * alone)
    assert beside.stage("pull").cost == model.predict(chosen).stage("pull").cost
