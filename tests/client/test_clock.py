"""The offset of two clocks, told by round trips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.client import Client
from hetero_pipe.client.clock import offset_of

delays = st.floats(0.0, 1.0)


@given(st.floats(-1e6, 1e6), st.lists(st.tuples(delays, delays), min_size=1, max_size=20))
def test_offset_is_off_by_half_of_the_shortest_trip_at_most(ahead, trips):
    """Whatever each way takes, and however unlike the two are."""
    read, now = [], 100.0
    for there, back in trips:
        read.append((now, now + there + ahead, now + there + back))
        now += there + back + 0.5
    shortest = min(back - sent for sent, _, back in read)
    assert abs(offset_of(read) - ahead) <= shortest + 1e-6
    if abs(ahead) > shortest + 1e-6:
        assert abs(offset_of(read) - ahead) <= shortest / 2 + 1e-6


@given(st.lists(st.tuples(delays, delays), min_size=1, max_size=20))
def test_clocks_that_may_be_one_are_one(trips):
    assert offset_of([(10.0, 10.0 + there, 10.0 + there + back) for there, back in trips]) == 0


def test_the_clock_of_a_server_on_this_host_is_this_process_s(daemon):
    with Client([daemon().address]) as client:
        assert client.clock_ahead() == 0
    with Client(None) as client:
        assert client.clock_ahead() == 0


@pytest.mark.parametrize("trips", [[(0.0, 7.0, 0.0)], [(0.0, 7.5, 1.0), (3.0, 10.05, 3.1)]])
def test_the_shortest_trip_tells(trips):
    assert offset_of(trips) == pytest.approx(7.0)
