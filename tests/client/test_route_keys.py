"""A batch's keys by server, against sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.client.route import route_keys
from ps_server.keys import bucket_of
from ps_server.route import Route, ServerRef

KEYS = st.lists(st.integers(0, 20) | st.integers(0, 2**64 - 1), max_size=200)


def route_of(num_servers):
    return Route(tuple(ServerRef(f"id{i}", f"host:{7000 + i}") for i in range(num_servers)))


@given(keys=KEYS, num_servers=st.integers(1, 7))
def test_each_key_is_once_at_the_server_that_owns_it(keys, num_servers):
    keys, route = np.array(keys, np.uint64), route_of(num_servers)
    routed = route_keys(keys, route)
    assert sorted(routed.keys.tolist()) == sorted(set(keys.tolist()))
    assert np.array_equal(routed.keys[routed.inverse], keys)
    assert len(routed.bounds) == num_servers + 1
    assert (routed.bounds[0], routed.bounds[-1]) == (0, len(routed.keys))
    for server in range(num_servers):
        mine = routed.keys[routed.slice_of(server)]
        assert all(route.owners[bucket] == server for bucket in bucket_of(mine))


@pytest.mark.parametrize("num_servers", [1, 3])
def test_no_keys_are_no_keys_of_every_server(num_servers):
    routed = route_keys(np.empty(0, np.uint64), route_of(num_servers))
    assert len(routed.keys) == len(routed.inverse) == 0
    assert routed.bounds.tolist() == [0] * (num_servers + 1)


@pytest.mark.parametrize("keys", [np.zeros(3, np.int64), np.zeros((2, 2), np.uint64), [1, 2]])
def test_keys_of_another_type_are_refused(keys):
    with pytest.raises((TypeError, ValueError)):
        route_keys(keys, route_of(1))
