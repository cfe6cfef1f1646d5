"""Breakdowns: amounts that add and keep their parts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.errors import PlanError
from hetero_pipe.plan import RESOURCES, Breakdown, Part

PARTS = st.builds(Part, st.sampled_from("abc"), st.floats(0, 1e6), st.sampled_from(RESOURCES))
BREAKDOWNS = st.lists(PARTS, max_size=6).map(
    lambda parts: Breakdown.sum(Breakdown((p,)) for p in parts)
)


@given(BREAKDOWNS, BREAKDOWNS)
def test_a_sum_has_the_parts_of_both(one, other):
    both = one + other
    assert both.total == pytest.approx(one.total + other.total)
    for resource in RESOURCES:
        assert both.on(resource) == pytest.approx(one.on(resource) + other.on(resource))
    keys = [(part.label, part.resource) for part in both.parts]
    assert len(set(keys)) == len(keys)


@given(BREAKDOWNS, st.floats(0, 100))
def test_a_multiple_is_that_of_each_part(breakdown, factor):
    assert breakdown.times(factor).total == pytest.approx(factor * breakdown.total)


@pytest.mark.parametrize("amount", [-1.0, math.inf, math.nan])
def test_an_amount_is_finite(amount):
    with pytest.raises(PlanError, match="amount"):
        Part("table", amount)


def test_a_second_is_spent_on_what_there_is():
    with pytest.raises(PlanError, match="resource"):
        Part("table", 1.0, "disk")
