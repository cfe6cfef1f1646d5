"""Which cuts a Trainer runs, and the best of them."""

from dataclasses import replace
from itertools import product

import pytest

from hetero_pipe.errors import PlanError
from hetero_pipe.planner.layers import (
    DeviceType,
    Goal,
    Objective,
    StackLayer,
    is_trainable,
    provision,
    trainable,
)
from tests.planner.layers.stacks import two_layers

FASTEST = Objective(Goal.TIME_PER_SAMPLE)


def four_layers():
    """Returns two embeddings and two dense layers, for cores of two hosts and GPUs."""
    stack = two_layers()
    core, gpu = stack.types
    times = {"sparse": (1e-3, 1e-3, 1e-2), "dense": (2e-2, 2e-2, 2e-3)}
    layers = tuple(
        StackLayer(name, kind, times[kind], (0.0, 0.0, 0.0))
        for name, kind in [("a", "sparse"), ("b", "sparse"), ("c", "dense"), ("d", "dense")]
    )
    other = DeviceType("other core", "cpu", 0.2, count=50)
    return replace(stack, layers=layers, types=(core, other, gpu))


@pytest.mark.parametrize(
    ("types", "runs"),
    [
        (["core", "core", "gpu", "gpu"], True),
        (["core", "core", "other core", "other core"], True),
        (["core", "core", "core", "core"], True),
        (["core", "other core", "gpu", "gpu"], False),  # tables on servers of two hosts
        (["core", "core", "core", "gpu"], False),
        (["core", "core", "gpu", "core"], False),
        (["gpu", "gpu", "core", "core"], False),
        (["gpu", "gpu", "gpu", "gpu"], False),  # on four of them, rows shared out
    ],
)
def test_tables_are_on_one_host_and_the_dense_part_is_whole(types, runs):
    stack = four_layers()
    assert is_trainable(stack, provision(stack, types, FASTEST)) is runs


def test_one_accelerator_may_have_all():
    stack = four_layers()
    stack = replace(stack, types=(*stack.types[:2], replace(stack.types[2], count=1)))
    assert is_trainable(stack, provision(stack, ["gpu"] * 4, FASTEST))
    # It is the best where nothing else has a unit that is fast enough.
    slow = tuple(replace(layer, compute=(10.0, 10.0, layer.compute[2])) for layer in stack.layers)
    found = trainable(replace(stack, layers=slow), FASTEST)
    assert set(found.assignment.types) == {"gpu"}


@pytest.mark.parametrize("goal", Goal)
def test_it_is_the_best_of_all_cuts_that_run(goal):
    stack = four_layers()
    objective = Objective(goal, 100)
    losses = []
    for types in product([each.name for each in stack.types], repeat=4):
        found = provision(stack, types, objective)
        if is_trainable(stack, found):
            losses.append(objective.loss(found))
    best = trainable(stack, objective)
    assert best.loss == pytest.approx(min(losses))
    assert is_trainable(stack, best.assignment)
    assert 3 < len(losses) < 81


def test_what_no_cut_reaches_is_refused():
    with pytest.raises(PlanError, match="none of the assignments tried is enough"):
        trainable(four_layers(), Objective(Goal.PRICE_PER_HOUR, 1e9))
