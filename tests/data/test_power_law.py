"""PowerLaw: right at its points, a power law between and beyond them, and never falling."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.data import PowerLaw
from hetero_pipe.errors import ConfigError

STEPS = st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 100)), min_size=1, max_size=6)


def rising(steps):
    x, y, points = 0.0, 0.5, []
    for dx, dy in steps:
        x, y = x + dx, y + dy
        points.append((x, y))
    return PowerLaw(tuple(points))


@given(STEPS, st.lists(st.floats(0, 1e4), min_size=2, max_size=2))
def test_more_is_never_less(steps, places):
    curve, (less, more) = rising(steps), sorted(places)
    assert curve.at(less) <= curve.at(more)
    for x, y in curve.points:
        assert curve.at(x) == y


@pytest.mark.parametrize("x", [0.5, 1.0, 1.7, 9.0, 10.0, 400.0])
def test_a_power_law_is_itself_everywhere(x):
    def law(x):
        return 3.0 * x if x < 1 else 3.0 * x**0.7

    curve = PowerLaw(tuple((each, law(each)) for each in (1.0, 2.0, 10.0, 30.0)))
    assert curve.at(x) == pytest.approx(law(x), rel=1e-12)


def test_one_point_says_nothing_of_more_and_none_says_nothing():
    assert [PowerLaw(((2.0, 3.0),)).at(x) for x in (0, 1, 2, 4)] == [0.0, 1.5, 3.0, 3.0]
    assert PowerLaw().at(5) == PowerLaw().last == 0.0


@pytest.mark.parametrize(
    "points", [((1.0, 2.0), (2.0, 1.0)), ((2.0, 1.0), (2.0, 2.0)), ((0.0, 1.0),), ((1.0, 0.0),)]
)
def test_points_that_do_not_rise_are_refused(points):
    with pytest.raises(ConfigError, match="a curve has points above 0 that rise"):
        PowerLaw(points)
