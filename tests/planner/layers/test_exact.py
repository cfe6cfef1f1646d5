"""The exact scheduler: against brute force, and as any optimum must move."""

import random
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from hetero_pipe.errors import PlanError
from hetero_pipe.planner.layers import (
    Goal,
    Objective,
    StackLayer,
    brute_force,
    exact,
    genetic,
    greedy,
    heuristic,
    one_type,
    random_search,
)
from tests.planner.layers.stacks import draw_stack, two_layers


def loss_of(scheduler, stack, objective):
    try:
        return scheduler(stack, objective).loss
    except PlanError:
        return float("inf")


def draw_objective(rng):
    goal = rng.choice(list(Goal))
    throughput = 10 ** rng.uniform(3, 5)
    return Objective(
        goal, throughput if goal is Goal.PRICE_PER_HOUR else rng.choice([0, throughput])
    )


# Many small ones, and few of the greatest that brute force still tries all of in a second.
SIZES = (
    [(1, 4, 3)] * 40 + [(3, 3, 20)] * 120 + [(4, 3, 6)] * 60 + [(5, 3, 4)] * 6 + [(6, 2, 8)] * 14
)


def test_nothing_is_better_than_what_is_found():
    rng = random.Random(3)
    seen = {goal: [0, 0] for goal in Goal}
    for num_layers, num_types, most_units in SIZES:
        stack = draw_stack(rng, num_layers=num_layers, num_types=num_types, most_units=most_units)
        objective = draw_objective(rng)
        least = loss_of(brute_force, stack, objective)
        assert loss_of(exact, stack, objective) == pytest.approx(least, rel=1e-9)
        seen[objective.goal][least < float("inf")] += 1
    assert all(fitting > 30 for _, fitting in seen.values())
    assert seen[Goal.PRICE_PER_HOUR][0] > 20


def test_what_is_found_does_what_is_asked_and_is_proven():
    rng = random.Random(4)
    num_found = 0
    for _ in range(30):
        stack = draw_stack(rng, num_layers=8, num_types=4, most_units=30)
        objective = draw_objective(rng)
        try:
            found = exact(stack, objective)
        except PlanError:
            continue
        num_found += 1
        assert found.is_optimal
        assert found.loss == objective.loss(found.assignment)
        assert len(found.assignment.types) == 8
        if objective.goal is not Goal.TIME_PER_SAMPLE:
            assert found.assignment.throughput >= objective.throughput * (1 - 1e-9)
        for each in stack.types:
            assert found.assignment.num_units(each.name) <= each.count
        for stage, after in pairwise(found.assignment.stages):
            assert stage.type != after.type
    assert num_found > 15


@pytest.mark.parametrize("most_units", [4, 20, 200])
def test_a_large_stack_is_proven_where_all_limits_bind(most_units):
    rng = random.Random(most_units)
    stack = draw_stack(rng, num_layers=16, num_types=8, most_units=most_units)
    fastest = exact(stack, Objective(Goal.TIME_PER_SAMPLE))
    assert fastest.is_optimal
    almost = Objective(Goal.PRICE_PER_SAMPLE, 0.99 * fastest.assignment.throughput)
    assert exact(stack, almost).is_optimal


def test_a_lower_price_or_more_units_are_never_worse():
    rng = random.Random(5)
    num_better = 0
    for _ in range(40):
        stack = draw_stack(rng, num_layers=6, num_types=3, most_units=8)
        objective = draw_objective(rng)
        before = loss_of(exact, stack, objective)
        types = list(stack.types)
        at = rng.randrange(len(types))
        cheap = replace(types[at], price_per_hour=types[at].price_per_hour / 2)
        many = replace(types[at], count=types[at].count + 5)
        for better in (cheap, many):
            types[at] = better
            after = loss_of(exact, replace(stack, types=tuple(types)), objective)
            assert after <= before * (1 + 1e-9) or before == after
            num_better += after < before
    assert num_better > 20


def test_more_throughput_never_costs_less():
    rng = random.Random(6)
    for _ in range(10):
        stack = draw_stack(rng, num_layers=6, num_types=3, most_units=20)
        most = exact(stack, Objective(Goal.TIME_PER_SAMPLE)).assignment.throughput
        prices = [
            loss_of(exact, stack, Objective(Goal.PRICE_PER_HOUR, most * share))
            for share in (0.2, 0.5, 0.8, 1 - 1e-9)
        ]
        assert prices == sorted(prices)
        assert prices[-1] < float("inf")
        assert loss_of(exact, stack, Objective(Goal.PRICE_PER_HOUR, most * 1.001)) == float("inf")


SCHEDULERS = [heuristic, greedy, one_type, random_search, genetic]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_scheduler_is_never_better_and_never_says_what_is_not(scheduler):
    rng = random.Random(7)
    num_worse = num_found = 0
    if scheduler in (random_search, genetic):
        settings = {"num_tries": 20} if scheduler is random_search else {"num_generations": 2}
        scheduler = partial(scheduler, rng=rng, **settings)
    for _ in range(25):
        stack = draw_stack(rng, num_layers=6, num_types=3, most_units=8)
        objective = draw_objective(rng)
        try:
            found = scheduler(stack, objective)
        except PlanError:
            continue
        least = loss_of(exact, stack, objective)
        assert found.loss >= least * (1 - 1e-9)
        assert not found.is_optimal
        num_found += 1
        num_worse += found.loss > least * 1.001
    assert num_found > 3
    assert num_worse > 2


def test_the_heuristic_puts_sparse_layers_on_a_cpu():
    found = heuristic(two_layers(), Objective(Goal.PRICE_PER_HOUR, 1000))
    assert found.assignment.types == ("core", "gpu")
    assert exact(two_layers(), Objective(Goal.PRICE_PER_HOUR, 100)).assignment.types == (
        "core",
        "core",
    )


def test_a_cut_that_costs_more_than_it_saves_is_not_made():
    objective = Objective(Goal.PRICE_PER_HOUR, 1000)
    for cut_bytes, types in [(0.0, ("core", "gpu")), (1e9, ("core", "core"))]:
        stack = two_layers(price=0.5, cut_bytes=cut_bytes)
        stack = replace(stack, types=tuple(replace(t, bandwidth=1e9) for t in stack.types))
        assert exact(stack, objective).assignment.types == types


# ------------------------------------------------------------------ what is lacking


def test_units_that_are_lacking_are_counted_and_what_they_can_do_is_told():
    stack = two_layers(count=4, price=0.5)
    with pytest.raises(
        PlanError, match=r"takes 20 of 'gpu', of which there are 4 \(16 more\)"
    ) as told:
        exact(stack, Objective(Goal.PRICE_PER_HOUR, 10000))
    most = float(str(told.value).split("at most ")[1].split()[0])
    assert exact(stack, Objective(Goal.PRICE_PER_HOUR, most * 0.9999)).is_optimal
    with pytest.raises(PlanError):
        exact(stack, Objective(Goal.PRICE_PER_HOUR, most * 1.0001))


def test_memory_that_all_units_lack_is_told_whatever_the_throughput():
    stack = two_layers(shared_bytes=(3000.0, 3000.0))
    types = tuple(replace(each, memory=10.0) for each in stack.types)
    for goal in Goal:
        with pytest.raises(PlanError, match=r"hold needs the memory of .* takes 600 of 'core'"):
            exact(replace(stack, types=types), Objective(goal, 1000))


def test_a_layer_that_no_unit_makes_fast_enough_is_named():
    stack = two_layers(compute_fraction=0.5)
    with pytest.raises(PlanError, match=r"layer 'dense' takes 0.001 s .* at most 1000 samples/s"):
        exact(stack, Objective(Goal.PRICE_PER_SAMPLE, 1500))


def test_a_stage_that_no_unit_makes_fast_enough_is_named():
    # Each layer alone is fast enough, but all must run on the one type.
    stack = two_layers()
    halves = [StackLayer(f"half{i}", "dense", (1e-3,), (0.0,), 0.5) for i in range(2)]
    stack = replace(stack, layers=tuple(halves), types=stack.types[:1])
    with pytest.raises(PlanError, match=r"begins with layer 'half1' takes at least 0.0005 s"):
        exact(stack, Objective(Goal.PRICE_PER_HOUR, 1500))
