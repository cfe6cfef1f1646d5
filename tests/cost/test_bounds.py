"""Bounds of a step against where each batch is."""

from itertools import product

import pytest

from hetero_pipe.cost import CostModel
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
