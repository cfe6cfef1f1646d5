"""What is shaved off has no plan that is better, by trying each plan."""

import math
import random

import pytest

from hetero_pipe.planner import Aim, Judge, Space, box_of, strategies
from hetero_pipe.planner.least import least
from hetero_pipe.planner.shave import shaved
from hetero_pipe.planner.thin import thinned
from tests.planner.problems import problem_of

SPACE = Space((64,), max_staleness=1, max_per_machine=2)


def boxes_of(model):
    graph, cluster = model.workload.graph, model.cluster
    return [box_of(each, SPACE, cluster, graph) for each in strategies(SPACE, cluster, graph)]


def singles(box):
    """Yields each plan of a box as a box of its own."""
    if box.is_single:
        yield box
        return
    for part in box.parts([]):
        yield from singles(part)


@pytest.mark.parametrize("seed", range(6))
def test_no_plan_that_is_better_is_shaved_off_and_of_others_some_are(seed):
    rng = random.Random(seed)
    model = problem_of(seed, most_machines=5)
    boxes = rng.sample(boxes_of(model), 6)
    most = max(Judge(model, Aim()).promise(box).speed for box in boxes)
    num_off = 0
    for box, what in zip(boxes, ("money", "epoch", "throughput") * 2, strict=True):
        judge = Judge(model, Aim(what, rng.choice([0.01, 0.1, 0.3]) * most))
        losses = {each: judge.promise(each).loss for each in singles(box)}
        finite = sorted(loss for loss in losses.values() if loss < math.inf)
        below = finite[len(finite) // 2] if finite else math.inf
        less = shaved(box, judge, below=below)
        left = set() if less is None else set(singles(less))
        assert all(each in left for each, loss in losses.items() if loss < below)
        assert left <= losses.keys()
        num_off += len(losses) - len(left)
    assert num_off > 0


def test_the_fewest_machines_that_are_left_may_do():
    model = problem_of(0, most_machines=8)
    box = max(boxes_of(model), key=lambda each: each.num_plans)
    judge = Judge(model, Aim("money", 0.5 * Judge(model, Aim()).promise(box).speed))
    less = shaved(box, judge, below=math.inf)
    assert less.num_plans < box.num_plans
    before = box
    for index, numbers in enumerate(less.ranges):
        fewest = before.with_range(index, range(numbers[0], numbers[0] + 1))
        assert judge.promise(fewest).loss < math.inf
        before = before.with_range(index, numbers)


@pytest.mark.parametrize("seed", range(6))
def test_a_thinned_plan_still_does_and_has_no_more(seed):
    model = problem_of(seed, most_machines=6)
    for box in boxes_of(model):
        plan = box.high(model.workload.graph)
        loss = Judge(model, Aim()).loss(plan)
        if math.isinf(loss):
            continue
        judge = Judge(model, Aim("money", 0.2 / loss))
        found = thinned(plan, judge)
        assert judge.loss(found) <= judge.loss(plan)
        for one, other in zip(found.processes, plan.processes, strict=True):
            assert one.machines <= other.machines


@pytest.mark.parametrize("first", [1, 2, 3, 7, 8, 9, 20, 21])
def test_the_least_number_that_does_is_found(first):
    tried = []

    def does(number):
        tried.append(number)
        return number >= first

    assert least(20, does) == (first if first <= 20 else None)
    assert set(tried) <= set(range(1, 21))
    assert len(tried) <= 2 * math.log2(first) + 3
    assert least(0, does) is None
