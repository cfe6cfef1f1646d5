"""The cheapest path within limits: against all paths there are, where cost and use disagree."""

from functools import cache

import numpy as np
import pytest

from hetero_pipe.planner.layers.cheapest_path import any_path, cheapest_path, lower_bound

NUM_LAYERS, NUM_TYPES = 9, 3


def draw(rng):
    """Returns costs, uses and limits; what is cheap uses as much as what is not."""
    first, end = np.indices((NUM_LAYERS + 1, NUM_LAYERS + 1))
    length = np.maximum(end - first, 0)[:, :, None]
    costs = length * rng.uniform(1, 10, (*first.shape, NUM_TYPES))
    uses = np.ceil(length * rng.uniform(0.2, 1.5, costs.shape))
    costs[(first >= end) | (rng.random(first.shape) < 0.1)] = np.inf
    return costs, uses, rng.integers(2, 6, NUM_TYPES).astype(float)


def cheapest_of_all(costs, uses, limits):
    """Every way on from every boundary with every number of units left."""

    @cache
    def rest(first, last, left):
        if first == NUM_LAYERS:
            return 0.0
        best = np.inf
        for end in range(first + 1, NUM_LAYERS + 1):
            for number in set(range(NUM_TYPES)) - {last}:
                used = [0.0] * NUM_TYPES
                used[number] = uses[first, end, number]
                if costs[first, end, number] < np.inf and used[number] <= left[number]:
                    after = tuple(a - b for a, b in zip(left, used, strict=True))
                    best = min(best, costs[first, end, number] + rest(end, number, after))
        return best

    return rest(0, None, tuple(limits))


@pytest.mark.parametrize("num_rounds", [1, 24])
@pytest.mark.parametrize("seed", range(30))
def test_no_path_within_the_limits_is_cheaper(seed, num_rounds):
    costs, uses, limits = draw(np.random.default_rng(seed))
    least = cheapest_of_all(costs, uses, limits)
    found = cheapest_path(costs, uses, limits, below=1000.0, num_rounds=num_rounds)
    assert found.is_closed
    assert found.cost == pytest.approx(least)
    assert bool(any_path(np.where(costs < np.inf, uses, np.inf), limits).runs) == (least < np.inf)
    assert lower_bound(costs, uses, limits, below=1000.0) <= least * (1 + 1e-9)
    # What is not wanted is not found; what is just cheap enough is.
    if least < np.inf:
        assert not cheapest_path(costs, uses, limits, below=least * (1 - 1e-6)).runs
        assert cheapest_path(costs, uses, limits, below=least * (1 + 1e-6)).runs
