"""Bounds of a step against pipelines that are run, item by item, and cores that are shared."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.cost import cores_time, gate_time, pipelined_step_time, step_bounds
from hetero_pipe.cost.step import queued_step_time
from hetero_pipe.plan import Breakdown

NAMES = ("read", "route", "pull", "dense", "push")
TIMES = st.lists(st.integers(0, 9), min_size=5, max_size=5)


def step_of_a_bounded_pipeline(times, *, capacities, staleness, num_steps=400):
    """The oracle: when each stage takes, ends and hands on each item (max-plus).

    An item is handed on when there is room, which is when the stage behind has taken
    the item `capacity` before it; a pull starts when the push of `1 + staleness` steps
    before has ended.
    """
    last = len(times) - 1
    pull = NAMES.index("pull")
    taken = [[0] * num_steps for _ in times]
    handed = [[0] * num_steps for _ in times]

    def room(stage, t):
        before = t - capacities[stage]
        return taken[stage + 1][before] if stage < last and before >= 0 else 0

    for t in range(num_steps):
        for stage, seconds in enumerate(times):
            free = handed[stage][t - 1] if t else 0
            there = handed[stage - 1][t] if stage else 0
            taken[stage][t] = max(free, there)
            start = taken[stage][t]
            if stage == pull and t > staleness:
                start = max(start, handed[last][t - 1 - staleness])
            handed[stage][t] = max(start + seconds, room(stage, t))
    half = num_steps // 2
    return (handed[last][-1] - handed[last][half - 1]) / half


@given(TIMES, st.lists(st.integers(1, 4), min_size=5, max_size=5), st.sampled_from([0, 1, 3]))
def test_the_largest_bound_is_the_step_of_a_bounded_pipeline(times, capacities, staleness):
    bounds = dict(zip(NAMES, times, strict=True)) | {"gate": gate_time(times[2:], staleness)}
    found = step_of_a_bounded_pipeline(times, capacities=capacities, staleness=staleness)
    # Half of the steps: a cycle of 1 + staleness steps may be cut once.
    assert found == pytest.approx(max(bounds.values()), abs=sum(times) / 200)


def test_a_serial_run_is_the_sum_of_its_cycle():
    assert step_of_a_bounded_pipeline([0, 0, 2, 3, 1], capacities=[1] * 5, staleness=0) == 6
    assert gate_time([2, 3, 1], 0) == 6


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 6))
def test_micro_batches_follow_each_other_through_stages(times, num):
    ends = [0] * len(times)
    for _ in range(num):
        for i, seconds in enumerate(times):
            ends[i] = max(ends[i], ends[i - 1] if i else 0) + seconds
    assert pipelined_step_time(times, num) == ends[-1]


@pytest.mark.parametrize(("times", "num"), [([], 1), ([1.0], 0)])
def test_a_pipeline_has_a_stage_and_a_micro_batch(times, num):
    with pytest.raises(ValueError, match="has a stage and a micro-batch"):
        pipelined_step_time(times, num)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 4))
def test_cores_that_take_what_is_next_are_as_fast_as_the_bound(pieces, cores):
    num_steps = 50
    costs = [(Breakdown.of("x", float(each), "worker"), 1.0, ("worker",)) for each in pieces]
    free = [0] * cores
    for each in pieces * num_steps:  # the oracle: a core that is free takes the next piece
        heapq.heapreplace(free, free[0] + each)
    bound = cores_time(costs, cores)
    assert bound * num_steps <= max(free) + 1e-9
    assert max(free) <= bound * num_steps + max(pieces)


def test_cores_count_only_what_is_on_them_and_as_often_as_it_runs():
    cost = Breakdown.of("a", 1.0, "worker") + Breakdown.of("b", 5.0, "network")
    other = Breakdown.of("c", 2.0, "server") + Breakdown.of("d", 9.0, "worker")
    assert cores_time([(cost, 3.0, ("worker",)), (other, 2.0, ("server",))], 2) == (3 + 4) / 2


def test_bounds_come_largest_first_and_none_is_nothing():
    found = step_bounds({"a": 1.0, "b": 3.0, "c": 0.0, "d": 2.0})
    assert [(part.label, part.amount) for part in found] == [("b", 3.0), ("d", 2.0), ("a", 1.0)]


# ---------------------------------------------------------------- batches that meet by chance

SECONDS = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=7)
CHANCE = st.floats(0.0, 1.0)


@given(SECONDS, st.integers(0, 5), CHANCE)
def test_by_chance_a_step_is_never_shorter_than_always_in_time(cycle, staleness, chance):
    found = queued_step_time(cycle, staleness, chance=chance)
    in_time = max(gate_time(cycle, staleness), *cycle)
    assert found >= in_time * (1 - 1e-9)
    assert queued_step_time(cycle, staleness, chance=0.0) == pytest.approx(in_time)
    if staleness == 0:  # nobody else is there
        assert found == pytest.approx(sum(cycle))
    # Nor is it longer than if a batch waited for all others everywhere.
    assert found <= sum(cycle) * (1 + 1e-9)


@given(SECONDS, st.integers(0, 5), CHANCE, st.floats(0.0, 5.0), st.data())
def test_by_chance_a_longer_stage_is_never_a_shorter_step(cycle, staleness, chance, more, data):
    place = data.draw(st.integers(0, len(cycle) - 1))
    longer = [t + more * (i == place) for i, t in enumerate(cycle)]
    before, after = (queued_step_time(each, staleness, chance=chance) for each in (cycle, longer))
    assert after >= before * (1 - 1e-6)


@given(SECONDS, st.integers(0, 5), CHANCE)
def test_by_chance_more_staleness_is_never_slower(cycle, staleness, chance):
    found = [queued_step_time(cycle, k, chance=chance) for k in (staleness, staleness + 1)]
    assert found[1] <= found[0] * (1 + 1e-6)


def test_two_batches_in_two_equal_stages_by_hand():
    # Alone, each holds half of a step of 2; so a batch finds the other with 1/2 where it comes,
    # of which 1/4 is served already.
    assert queued_step_time([1.0, 1.0], 1, chance=1.0) == pytest.approx(1.25)
