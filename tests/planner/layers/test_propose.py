"""The best assignment of a model's layers, beside what others find."""

import json
from dataclasses import replace

import pytest

from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.planner import Aim
from hetero_pipe.planner.layers import (
    Goal,
    LayerStack,
    Objective,
    Solution,
    assumed_of,
    exact,
    explain_layers,
    layers_told,
    propose_layers,
    provision,
    stack_of,
)
from tests.planner.layers.problems import cluster, model

BATCHES = (256, 1024)


def test_the_best_batch_is_taken_and_nothing_is_better():
    found = propose_layers(model(), Aim(), batch_sizes=BATCHES)
    losses = {
        batch: exact(stack_of(model(), batch=batch), Objective(Goal.TIME_PER_SAMPLE)).loss
        for batch in BATCHES
    }
    assert found.batch == min(losses, key=losses.__getitem__)
    assert found.solution.loss == min(losses.values())
    assert found.solution.is_optimal
    solved = [rival.solution for rival in found.rivals if rival.solution is not None]
    assert len(solved) == len(found.rivals)
    assert all(each.loss >= found.solution.loss * (1 - 1e-9) for each in solved)
    assert any(each.loss > found.solution.loss * 1.01 for each in solved)


def test_a_report_tells_who_runs_what_and_whether_it_runs_today():
    found = propose_layers(model(), Aim("money", 1e5), batch_sizes=BATCHES)
    told = explain_layers(found, samples=10**6, assumed=assumed_of(model(), batch=256))
    best = found.solution.assignment
    for stage in best.stages:
        assert f"{stage.num_units} of " in told
        assert ", ".join(stage.layers) in told
    for part in (
        f"throughput: {best.throughput:,.0f} samples/s",
        f"money: {best.price_per_hour:,.2f} an hour, ",
        "proof: none of the 27 assignments of 3 layers to 3 types is better",
        "assumed, not measured: the rate of a matmul on server/cpu; ",
        "all on trainer/gpu",
    ):
        assert part in told
    cut = next(line for line in told.splitlines() if line.startswith("cut: "))
    assert ("no Trainer runs this cut yet" in cut) is not layers_told(found)["is_trainable"]
    assert "money: not known" in explain_layers(found, has_prices=False)


@pytest.mark.parametrize(
    ("places", "told"),
    [
        (["server/cpu", "server/cpu", "trainer/gpu"], "a Trainer runs it: tables on servers, the"),
        (["server/cpu"] * 3, "a Trainer runs it: tables on servers, the dense part whole"),
        (["server/cpu", "trainer/gpu", "trainer/gpu"], "no Trainer runs this cut yet: one runs"),
        (["trainer/gpu"] * 3, "no Trainer runs this cut yet: rows are shared out over devices"),
    ],
)
def test_a_cut_that_no_trainer_runs_is_told(places, told):
    found = propose_layers(model(), Aim(), batch_sizes=(1024,))
    objective = Objective(Goal.TIME_PER_SAMPLE)
    assignment = provision(found.stack, places, objective)
    other = replace(found, solution=Solution(assignment, objective.loss(assignment)))
    assert f"cut: {told}" in explain_layers(other)


def test_json_has_the_stack_and_all_that_was_found():
    found = propose_layers(model(), Aim("epoch"), batch_sizes=(512,))
    told = json.loads(json.dumps(layers_told(found)))
    stack = LayerStack.from_json(json.dumps(told["stack"]))
    assert stack == found.stack
    again = exact(stack, Objective(Goal.PRICE_PER_SAMPLE))
    assert told["loss"] == told["price_per_sample"] == again.loss
    assert told["is_optimal"] is True
    assert [name for stage in told["stages"] for name in stage["layers"]] == [
        "users",
        "items",
        "deep",
    ]
    assert sum(stage["price_per_hour"] for stage in told["stages"]) == pytest.approx(
        told["price_per_hour"]
    )
    assert {each["scheduler"] for each in told["instead"]} >= {"greedy", "all on server/cpu"}


def test_what_cannot_be_reached_is_told():
    most = propose_layers(model(), Aim(), batch_sizes=(1024,)).solution.assignment.throughput
    for what in ("throughput", "money"):
        reachable = Aim(what, 0.99 * most)
        assert propose_layers(model(), reachable, batch_sizes=BATCHES).solution.is_optimal
        with pytest.raises(PlanError, match=r"with batches of 1024: .* samples/s"):
            propose_layers(model(), Aim(what, 1.01 * most), batch_sizes=BATCHES)


def test_a_scheduler_that_finds_nothing_says_why():
    hosts = cluster().hosts
    lone = replace(cluster(), hosts=(replace(hosts[0], count=1),), links=(), switches=())
    found = propose_layers(model(cluster=lone), Aim(), batch_sizes=(256,))
    rivals = {rival.name.partition(":")[0]: rival for rival in found.rivals}
    assert rivals["heuristic"].solution is None
    assert "no assignment of this sort" in rivals["heuristic"].reason
    assert rivals["heuristic"].reason in explain_layers(found)


def test_money_needs_prices():
    free = model(cluster=cluster(price=None))
    with pytest.raises(ConfigError, match="got none of trainer; give price_per_hour"):
        propose_layers(free, Aim("epoch"), batch_sizes=(256,))
    assert propose_layers(free, Aim(), batch_sizes=(256,)).solution.is_optimal
