"""Bounds of a step against where each batch is."""

from itertools import product

import pytest

from hetero_pipe.cluster import Cluster, Device, Host, Rate, Spread
from hetero_pipe.cost import Constants, CostModel
from tests.cluster.clusters import known
from tests.cost.problems import plan, servers, workers, workload

SHAPES = list(product((1, 2, 3, 8), (1, 3, 4), (0, 1, 2)))


def dense_bound(readers, dense, **more):
    """Returns the bound of dense workers, in times of one batch."""
    chosen = plan(
        servers(),
        workers("sparse", host="server", per_machine=readers),
        workers("dense", per_machine=dense),
        **more,
    )
    predicted = CostModel(known(), workload()).predict(chosen)
    bound = next(each.amount for each in predicted.bounds if each.label == "dense")
    return bound / next(s.cost.total for s in predicted.stages if s.name == "dense")


@pytest.mark.parametrize(("readers", "dense", "staleness"), SHAPES)
def test_no_more_dense_workers_are_at_work_than_batches_go_to(readers, dense, staleness):
    under_way = product(range(readers), range(staleness + 1))
    at_work = {(rank + step) % dense for rank, step in under_way}
    bound = dense_bound(readers, dense, staleness=staleness)
    assert bound == pytest.approx(readers / len(at_work))


@pytest.mark.parametrize("readers", [1, 2, 5])
def test_in_async_batches_of_any_step_are_under_way(readers):
    assert dense_bound(readers, 4, staleness=0, mode="async") == pytest.approx(readers / 4)


# ---------------------------------------------------------------- what is done aside of stages

ONE = Cluster((Host("a", (Device("cpu", memory=10**12, cores=3),)),))


def calls(aside):
    """Rates of a pull and a push of 1 MB: 1 ms on a core of each end, and so much aside."""
    sides = {"worker": 1e-3, "server": 1e-3, "wait": 1e-9, "aside": aside}
    return [
        Rate(f"grpc_{what}", "a", Spread.of([seconds]), side=side, size=10**6)
        for what in ("pull", "push")
        for side, seconds in sides.items()
    ]


def test_what_is_aside_holds_cores_and_is_no_time_of_its_stage():
    chosen = plan(servers("a"), workers(host="a"))
    without, found = (
        CostModel(ONE.with_rates(calls(aside)), workload()).predict(chosen)
        for aside in (1e-9, 1e-3)
    )
    for name in ("pull", "push"):
        assert found.stage(name).cost == without.stage(name).cost
        aside = found.stage(name).aside
        assert aside.on("worker") == pytest.approx(aside.on("server"))
        assert aside.total > 1e5 * without.stage(name).aside.total
    bounds = {bound.label: bound.amount for bound in found.bounds}
    held = sum(stage.whole_cost.on("worker", "server") for stage in found.stages)
    assert bounds["cores of a"] == pytest.approx(held / 3)


def test_who_waits_for_a_device_holds_a_core_for_a_part_of_it():
    found = CostModel(known(), workload(device_seconds=0.1)).predict(
        plan(servers(), workers(device="gpu"))
    )
    aside = {part.label: part.amount for part in found.stage("dense").aside.parts}
    assert aside["look"] == pytest.approx(Constants().look * found.stage("dense").cost.on("device"))
