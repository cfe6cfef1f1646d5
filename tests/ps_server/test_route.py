"""Routes: every bucket has one owner."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_server.route import Route, ServerRef
from ps_server.spec import NUM_BUCKETS


def route_of(*ids):
    return Route(tuple(ServerRef(name, f"host-{name}:7000") for name in ids))


@given(num_servers=st.integers(1, 64) | st.integers(4000, NUM_BUCKETS))
def test_each_bucket_has_one_owner_and_shares_differ_by_one_at_most(num_servers):
    ids = [str(i) for i in range(num_servers)]
    route = route_of(*ids)
    owned = [route.buckets_of(name) for name in ids[:64]]
    assert [b for part in owned for b in part] == list(range(sum(map(len, owned))))
    counts = np.bincount(route.owners, minlength=num_servers)
    assert counts.sum() == NUM_BUCKETS
    assert counts.max() - counts.min() <= 1
    for index, part in enumerate(owned):
        assert set(route.owners[part.start : part.stop].tolist()) == {index}
    assert route.owners.dtype == np.uint16


def test_bucket_b_of_n_servers_is_that_of_the_proto():
    route = route_of("a", "b", "c")
    assert all(route.owners[b] == b * 3 // 4096 for b in range(4096))


def test_fingerprint_is_of_ids_in_order_alone():
    assert (
        route_of("a", "b").fingerprint
        == Route((ServerRef("a", "x:1"), ServerRef("b", "y:2"))).fingerprint
    )
    others = [("b", "a"), ("a",), ("a", "b", "c"), ("ab",)]
    prints = {route_of(*ids).fingerprint for ids in [("a", "b"), *others]}
    assert all(0 <= number < 2**64 for number in prints)
    assert len(prints) == len(others) + 1


def test_route_is_shown_by_its_addresses():
    assert str(route_of("a", "b")) == "host-a:7000,host-b:7000"


def test_no_server_is_refused():
    with pytest.raises(ValueError, match="at least one server, got none"):
        Route(())


def test_server_twice_is_refused_by_both_names():
    with pytest.raises(ValueError, match="x:1 and y:2, which are the same server"):
        Route((ServerRef("a", "x:1"), ServerRef("b", "z:3"), ServerRef("a", "y:2")))


def test_more_servers_than_buckets_are_refused():
    assert len(route_of(*map(str, range(4096))).servers) == 4096
    with pytest.raises(ValueError, match="at most 4096 servers, one bucket each, got 4097"):
        route_of(*map(str, range(4097)))


def test_buckets_of_a_stranger_are_refused():
    with pytest.raises(ValueError, match="server x is not in the route host-a:7000"):
        route_of("a").buckets_of("x")
