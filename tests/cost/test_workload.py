"""Workload: distinct rows of a batch against real draws, and what no workload may be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.data.zipf import BoundedZipf
from hetero_pipe.errors import ConfigError
from tests.cost.problems import ROWS, workload


def distinct_of_draws(law, batch, *, seed):
    """The oracle: the mean number of distinct ranks of real batches."""
    rng, num = np.random.default_rng(seed), max(8, 2**16 // batch)
    return float(np.mean([len(np.unique(law.sample(batch, rng))) for _ in range(num)]))


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05, 1.5])
def test_a_power_law_finds_the_distinct_rows_of_zipf_draws(exponent):
    law = BoundedZipf(10**6, exponent)
    points = [(2**k, distinct_of_draws(law, 2**k, seed=k)) for k in (6, 8, 10, 12)]
    found = workload(distinct={"users": points})
    for batch in (180, 1500, 3000):  # between points
        truth = distinct_of_draws(law, batch, seed=batch)
        assert found.distinct_rows("users", batch) == pytest.approx(truth, rel=0.03)
    # Four times beyond the last: the law bends, so the power law is a little high.
    truth = distinct_of_draws(law, 4 * 4096, seed=1)
    assert truth * 0.98 <= found.distinct_rows("users", 4 * 4096) <= truth * 1.1


POINTS = st.dictionaries(st.integers(1, 10**5), st.floats(0.5, 1e6), min_size=1, max_size=5).map(
    lambda found: sorted(found.items())
)


@given(POINTS, st.integers(1, 10**6), st.integers(1, 10**6))
def test_a_larger_batch_never_has_fewer_rows_and_never_more_than_its_share(points, one, other):
    found = workload(distinct={"users": points})
    few, many = sorted((one, other))
    less, more = (found.distinct_rows("users", batch) for batch in (few, many))
    assert less <= more * (1 + 1e-9)
    assert more <= min(less * many / few * (1 + 1e-9), many, ROWS["users"])
    assert found.at(many).values(many)["rows.users"] == pytest.approx(more)


@given(POINTS)
def test_no_row_that_a_sample_had_is_missed(points):
    found = workload(distinct={"users": points}, rows=ROWS | {"users": 1e9})
    for batch, rows in points:
        assert found.distinct_rows("users", batch) >= min(rows, batch) * (1 - 1e-9)


def test_no_batch_has_more_rows_than_there_are_even_of_a_table_nobody_sampled():
    found = workload(rows={"users": 50, "items": 10})
    assert found.distinct_rows("users", 1000) == 50
    assert found.at(1000).values(1000)["rows.items"] == pytest.approx(10)
    assert workload().distinct_rows("users", 1000) == 900  # as the table says: 0.9 of its keys


def test_hits_are_straight_between_what_was_measured():
    found = workload(hits={"users": [(100, 0.4), (1000, 0.6)]})
    shares = [found.hit_share("users", rows) for rows in (0, 50, 100, 550, 1000, 5000, 1e6)]
    assert shares == pytest.approx([0, 0.2, 0.4, 0.5, 0.6, 0.6, 1.0])
    # No row is hotter than another where nobody knows.
    assert found.hit_share("items", 1e4) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": {"users": 1}}, "got none of items"),
        ({"distinct": {"user": [(1, 1.0)]}}, "other tables user"),
        ({"hits": {"user": [(1, 1.0)]}}, "other tables user"),
        ({"distinct": {"users": []}}, "curve of table 'users'"),
        ({"distinct": {"users": [(1, 0.0)]}}, "points above 0"),
        ({"distinct": {"users": [(8, 1.0), (8, 2.0)]}}, "first number rises"),
        ({"distinct": {"users": [(8, math.inf)]}}, "points above 0"),
        ({"hits": {"users": [(1, 0.5), (2, 0.4)]}}, "shares of hits rise"),
        ({"hits": {"users": [(1, 1.5)]}}, "at most 1"),
        ({"skew": 0.5}, "skew is at least 1"),
        ({"skew": math.nan}, "skew is at least 1"),
    ],
)
def test_what_is_no_workload_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        workload(**changes)
