"""Provisioning: against every number of units tried, and no unit too many."""

import math
import random
from dataclasses import replace

import pytest

from hetero_pipe.errors import PlanError
from hetero_pipe.planner.layers import (
    DeviceType,
    Goal,
    LayerStack,
    Objective,
    StackLayer,
    provision,
)
from tests.oracles.provision import fits, least_loss, stages_of, time_of
from tests.planner.layers.stacks import draw_stack, two_layers


def objectives(rng):
    throughput = 10 ** rng.uniform(3, 5)
    return [
        Objective(Goal.PRICE_PER_HOUR, throughput),
        Objective(Goal.PRICE_PER_SAMPLE, throughput),
        Objective(Goal.PRICE_PER_SAMPLE),
        Objective(Goal.TIME_PER_SAMPLE),
    ]


def test_the_units_are_the_best_of_all_there_are():
    rng = random.Random(1)
    num_fitting = num_lacking = 0
    for _ in range(120):
        stack = draw_stack(rng, num_layers=rng.randint(1, 4), num_types=2, most_units=6)
        numbers = [rng.randrange(2) for _ in stack.layers]
        for objective in objectives(rng):
            least = least_loss(stack, numbers, objective)
            try:
                found = provision(stack, [stack.types[i].name for i in numbers], objective)
            except PlanError:
                assert math.isinf(least)
                num_lacking += 1
                continue
            assert objective.loss(found) == pytest.approx(least, rel=1e-9)
            num_fitting += 1
    assert min(num_fitting, num_lacking) > 50


def test_a_unit_less_of_any_stage_is_too_slow_or_lacks_memory():
    rng = random.Random(2)
    num_slow = num_full = 0
    for _ in range(200):
        stack = draw_stack(rng, num_layers=4, num_types=3, most_units=50)
        numbers = [rng.randrange(3) for _ in stack.layers]
        throughput = 10 ** rng.uniform(3, 5)
        try:
            found = provision(
                stack,
                [stack.types[i].name for i in numbers],
                Objective(Goal.PRICE_PER_HOUR, throughput),
            )
        except PlanError:
            continue
        assert found.throughput >= throughput * (1 - 1e-9)
        for stage, layers in zip(found.stages, stages_of(stack, numbers), strict=True):
            assert stage.time == pytest.approx(time_of(stack, layers, stage.num_units))
            if stage.num_units > 1:
                is_slow = time_of(stack, layers, stage.num_units - 1) > 1 / throughput
                is_full = not fits(stack, layers, stage.num_units - 1)
                assert is_slow or is_full
                num_slow += is_slow
                num_full += is_full
    assert num_slow > 50
    assert num_full > 10


def test_rows_take_as_many_units_as_hold_them():
    stack = two_layers()
    core, gpu = stack.types
    objective = Objective(Goal.PRICE_PER_HOUR, 1000)
    full = replace(stack.layers[0], shared_bytes=(950.0, 950.0), own_bytes=20.0)
    for memory, num_units in [(1000.0, 1), (210.0, 5), (209.0, 6)]:
        held = replace(
            stack, layers=(full, stack.layers[1]), types=(replace(core, memory=memory), gpu)
        )
        found = provision(held, ["core", "gpu"], objective)
        assert [stage.num_units for stage in found.stages] == [num_units, 2]


def test_a_layer_that_no_unit_has_room_for_is_named():
    stack = two_layers()
    types = tuple(replace(each, memory=2**30) for each in stack.types)
    large = replace(stack.layers[1], own_bytes=2.0**31)
    with pytest.raises(PlanError, match=r"layer 'dense' holds 2 GiB .* one of 'core' has 1 GiB"):
        provision(
            replace(stack, layers=(stack.layers[0], large), types=types),
            ["core", "gpu"],
            Objective(Goal.TIME_PER_SAMPLE),
        )


def test_units_that_are_just_enough_are_enough():
    # 0.003 / 30 and 1 / 10000 are the same number only on paper.
    for time, num_units, throughput in [(3e-3, 30, 1e4), (7e-4, 7, 1e4), (1.1e-3, 33, 3e4)]:
        layers = (StackLayer("layer", "dense", (time,), (0.0,)),)
        stack = LayerStack("one", layers, (DeviceType("core", "cpu", 1.0, count=100),))
        found = provision(stack, ["core"], Objective(Goal.PRICE_PER_HOUR, throughput))
        assert found.num_units("core") == num_units


def test_stages_of_a_type_share_its_units():
    stack = two_layers(count=4)
    stack = replace(
        stack,
        layers=(*stack.layers, replace(stack.layers[0], name="last", compute=(1e-3, 2e-3))),
    )
    found = provision(stack, ["gpu", "core", "gpu"], Objective(Goal.TIME_PER_SAMPLE))
    assert [stage.num_units for stage in found.stages] == [3, 6, 1]
    assert found.bottleneck.layers == ("embedding",)
    assert found.throughput == pytest.approx(300)


def test_a_number_says_what_it_costs():
    found = provision(two_layers(), ["core", "gpu"], Objective(Goal.PRICE_PER_HOUR, 1000))
    assert [(stage.type, stage.num_units) for stage in found.stages] == [("core", 1), ("gpu", 2)]
    assert found.price_per_hour == pytest.approx(4.1)
    assert found.price_per_sample * 1000 * 3600 == pytest.approx(4.1)
    assert found.types == ("core", "gpu")


def test_units_that_are_lacking_are_counted():
    with pytest.raises(PlanError, match=r"5000 samples/s .*: 6 more than 4 of 'gpu'; add them"):
        provision(two_layers(count=4), ["core", "gpu"], Objective(Goal.PRICE_PER_HOUR, 5000))


def test_a_stage_that_no_unit_makes_fast_enough_is_named():
    stack = two_layers(compute_fraction=0.5)
    with pytest.raises(PlanError, match=r"stage 'dense' to 'dense' on 'gpu' takes 0.001 s"):
        provision(stack, ["core", "gpu"], Objective(Goal.PRICE_PER_HOUR, 1500))


def test_types_are_those_of_the_stack():
    objective = Objective(Goal.TIME_PER_SAMPLE)
    with pytest.raises(PlanError, match="one of core, gpu, got 'tpu'"):
        provision(two_layers(), ["core", "tpu"], objective)
    with pytest.raises(PlanError, match="each of 2 layers has a type, got 1"):
        provision(two_layers(), ["core"], objective)
