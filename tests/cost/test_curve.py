"""Curve: seconds of any size from those of a few."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.cost import Curve
from hetero_pipe.errors import ConfigError

POINTS = st.dictionaries(st.integers(1, 10**6), st.floats(0, 1e3), min_size=1, max_size=5).map(
    lambda found: list(found.items())
)


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(0, 0.0), (-1, 0.0), (50, 0.5), (100, 1.0), (150, 2.5), (200, 4.0), (400, 8.0)],
)
def test_it_is_straight_between_points_and_goes_on_at_the_last_rate(size, seconds):
    assert Curve.of([(200, 4.0), (100, 1.0)]).at(size) == seconds


@given(POINTS, st.floats(0, 2e6), st.floats(0, 2e6))
def test_more_never_takes_less(points, one, other):
    curve = Curve.of(points)
    assert curve.at(min(one, other)) <= curve.at(max(one, other)) * (1 + 1e-12)


@given(POINTS, st.floats(0, 2e6), st.floats(0.1, 1))
def test_faster_points_never_take_longer(points, size, factor):
    for i, (at, seconds) in enumerate(points):
        faster = [*points[:i], (at, seconds * factor), *points[i + 1 :]]
        assert Curve.of(faster).at(size) <= Curve.of(points).at(size) * (1 + 1e-12)


def test_a_point_below_the_one_before_is_lifted():
    assert Curve.of([(1, 3.0), (2, 1.0), (3, 5.0)]).points == ((1, 3.0), (2, 3.0), (3, 5.0))


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((2, 1.0), (1, 2.0)), ((1, 1.0), (1, 2.0))])
def test_sizes_rise_from_above_0(points):
    with pytest.raises(ConfigError, match="sizes above 0 that rise"):
        Curve(points)
