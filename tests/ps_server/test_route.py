"""Routes: every bucket has one owner, whatever has moved."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps_server.route import (
    Move,
    Route,
    ServerRef,
    even_owners,
    plan_moves,
    share_fingerprint,
)
from ps_server.spec import NUM_BUCKETS


def refs(*ids):
    return tuple(ServerRef(name, f"host-{name}:7000") for name in ids)


def route_of(*ids, owners=()):
    return Route(refs(*ids), np.array(owners, np.uint16))


def counts_of(route):
    return [len(route.buckets_of(server.id)) for server in route.servers]


def uneven(ids, seed):
    """A route of these servers, each with any number of buckets, or none."""
    rng = np.random.default_rng(seed)
    some = rng.choice(len(ids), size=rng.integers(1, len(ids) + 1), replace=False)
    return route_of(*ids, owners=rng.choice(some, NUM_BUCKETS))


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
        assert set(route.owners[part].tolist()) == {index}
    assert route.owners.dtype == np.uint16


def test_bucket_b_of_n_servers_is_that_of_the_proto():
    route = route_of("a", "b", "c")
    assert all(route.owners[b] == b * 3 // 4096 for b in range(4096))
    assert route.is_even
    assert not route.versions.any()


def test_fingerprint_is_of_a_server_and_what_it_owns_alone():
    """So that a bucket that moves between two servers is nothing to a third."""
    route = route_of("a", "b", "c")
    moved = route.moved([0, 7], to=refs("b")[0])
    assert moved.fingerprint_of("c") == route.fingerprint_of("c")
    assert moved.fingerprint_of("a") != route.fingerprint_of("a")
    assert moved.fingerprint_of("b") != route.fingerprint_of("b")
    back = moved.moved([0, 7], to=refs("a")[0])
    assert back != route
    assert back.fingerprints == route.fingerprints
    renamed = Route((ServerRef("c", "x:1"), *refs("a", "b")), (even_owners(3) + 1) % np.uint16(3))
    assert renamed.fingerprint_of("c") == route.fingerprint_of("c")
    assert route.fingerprint_of("a") == share_fingerprint("a", route.buckets_of("a"))


def test_fingerprints_differ_by_server_and_by_every_bucket():
    prints = {route_of(name).fingerprint_of(name) for name in ("a", "b", "ab")}
    prints |= {share_fingerprint("a", np.delete(np.arange(4096), b)) for b in range(4096)}
    prints |= {share_fingerprint("a", np.arange(0))}
    assert all(0 <= number < 2**64 for number in prints)
    assert len(prints) == 3 + 4096 + 1


def test_routes_are_equal_where_all_they_say_is():
    base = route_of("a", "b")
    assert base == Route(refs("a", "b"), even_owners(2))
    assert hash(base) == hash(Route(refs("a", "b"), even_owners(2)))
    assert base != Route((ServerRef("a", "x:1"), ServerRef("b", "host-b:7000")))
    assert base != Route(base.servers, versions=np.ones(4096, np.uint32))
    assert base != base.moved([4095], to=refs("a")[0])
    assert base != "host-a:7000,host-b:7000"


def test_route_is_shown_by_its_addresses():
    assert str(route_of("a", "b")) == "host-a:7000,host-b:7000"


def test_moved_buckets_are_the_targets_and_all_others_stay():
    a, b, c = refs("a", "b", "c")
    base = route_of("a", "b", "c")
    route = base.moved([0, 4095], to=b)
    expected = [b * 3 // 4096 for b in range(4096)]
    assert base.owners.tolist() == expected, "a route never changes"
    expected[0] = expected[4095] = 1
    assert route.owners.tolist() == expected
    assert not route.is_even
    assert np.flatnonzero(route.versions).tolist() == [0, 4095]
    back = route.moved([0], to=a).moved([4095], to=c)
    assert back.is_even
    assert back.versions[[0, 1, 4095]].tolist() == [2, 0, 2]


def test_numbers_cannot_be_written_from_outside():
    given_owners = even_owners(2)
    route = Route(refs("a", "b"), given_owners)
    for array in (route.owners, route.versions):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    given_owners[0] = 1
    assert route.owners[0] == 0


def test_server_comes_without_buckets_and_leaves_without():
    (c,) = refs("c")
    base = route_of("a", "b")
    grown = base.with_server(c)
    assert counts_of(grown) == [2048, 2048, 0]
    assert grown.with_server(c) is grown
    assert grown.without_idle() == base
    left = base.moved(base.buckets_of("a"), to=c).without_idle()
    assert left.servers == refs("b", "c")
    assert left.buckets_of("c").tolist() == base.buckets_of("a").tolist()
    assert left.buckets_of("b").tolist() == base.buckets_of("b").tolist()
    assert left.versions.tolist() == [1] * 2048 + [0] * 2048


def wander(route, targets, rng):
    """Yields routes, each after a bucket of a few has moved once more."""
    for _ in range(6):
        route = route.moved([int(rng.integers(4))], to=targets[rng.integers(len(targets))])
        yield route


@given(seed=st.integers(0, 2**32 - 1))
def test_two_that_know_different_moves_know_together_the_last_of_each_bucket(seed):
    """Moves of one bucket are one after another; who hears of which is any of them."""
    rng = np.random.default_rng(seed)
    history = [route_of("a", "b"), *wander(route_of("a", "b"), refs("a", "b", "c", "d"), rng)]
    heard = [
        history[0],
        history[0],
    ]  # what two know, having merged some of the moves of some buckets
    expected = [{}, {}]
    for who in range(2):
        for bucket in range(4):
            latest = history[rng.integers(len(history))]
            number, version = latest.owners[bucket], latest.versions[bucket]
            owners, versions = heard[who].owners.copy(), heard[who].versions.copy()
            whole = heard[who].with_server(latest.servers[number])
            owners[bucket] = whole.servers.index(latest.servers[number])
            versions[bucket] = version
            heard[who] = Route(whole.servers, owners, versions)
            expected[who][bucket] = (int(version), latest.servers[number].id)
    for first, second in (heard, heard[::-1]):
        assert first.is_of_job(second)
        merged = first.merged(second)
        for bucket in range(4):
            owner = merged.servers[merged.owners[bucket]].id
            found = (int(merged.versions[bucket]), owner)
            assert found == max(expected[0][bucket], expected[1][bucket])
        assert merged.servers[: len(first.servers)] == first.servers
        assert {s.id for s in merged.servers} == {s.id for r in heard for s in r.servers}
        assert merged.owners[4:].tolist() == [b * 2 // 4096 for b in range(4, 4096)]
        assert merged.merged(first) == merged.merged(second) == merged


def test_merged_servers_keep_the_names_by_which_they_are_known_here():
    here = Route((ServerRef("a", "localhost:1"), ServerRef("b", "localhost:2")))
    there = Route((ServerRef("b", "far:2"), ServerRef("a", "far:1")), 1 - even_owners(2))
    assert here.merged(there) == here


def test_routes_of_two_jobs_cannot_be_merged():
    """Same servers in another order, one server more: two owners of a bucket from the start."""
    for other in (route_of("b", "a"), route_of("a", "b", "c"), route_of("a")):
        assert not route_of("a", "b").is_of_job(other)
        with pytest.raises(ValueError, match=r"got bucket \d+ in version 0 on host-"):
            route_of("a", "b").merged(other)


@pytest.mark.parametrize(
    "change",
    [
        lambda route: route.fingerprint_of("x"),
        lambda route: plan_moves(route, ["a", "x"]),
        lambda route: route.buckets_of("x"),
    ],
)
def test_stranger_is_refused(change):
    with pytest.raises(ValueError, match="server x is not in the route host-a:7000"):
        change(route_of("a"))


def test_three_servers_of_two_take_the_last_third_of_each():
    route = route_of("a", "b").with_server(*refs("c"))
    moves = plan_moves(route, ["a", "b", "c"])
    assert {move.target for move in moves} == {"c"}
    from_a = [move.bucket for move in moves if move.source == "a"]
    from_b = [move.bucket for move in moves if move.source == "b"]
    assert from_a == list(range(1366, 2048))
    assert from_b == list(range(2048 + 1365, 4096))
    assert moves[0] == Move(1366, "a", "c")
    assert [move.bucket for move in moves] == sorted(from_a + from_b)


def test_nothing_moves_where_shares_are_equal_already():
    assert plan_moves(route_of("a", "b", "c"), {"c", "a", "b"}) == []


def fewest_moves(route, targets):
    """All choices of who has one bucket more than others: what stays, at most, needs no move."""
    smaller, num_larger = divmod(NUM_BUCKETS, len(targets))
    stays = max(
        sum(min(len(route.buckets_of(t)), smaller + (t in larger)) for t in targets)
        for larger in combinations(targets, num_larger)
    )
    return NUM_BUCKETS - stays


@given(
    num_servers=st.integers(1, 7),
    targets=st.sets(st.integers(0, 6), min_size=1),
    seed=st.integers(0, 2**32 - 1),
)
def test_fewest_moves_lead_to_equal_shares_of_the_targets(num_servers, targets, seed):
    ids = [str(i) for i in range(num_servers)]
    targets = sorted({str(i % num_servers) for i in targets})
    route = uneven(ids, seed)
    moves = plan_moves(route, targets)
    assert len(moves) == fewest_moves(route, targets)
    assert len({move.bucket for move in moves}) == len(moves), "a bucket moves once"
    moved = route
    for target in targets:
        part = [move.bucket for move in moves if move.target == target]
        moved = moved.moved(part, to=refs(target)[0])
    for move in moves:
        assert move.bucket in route.buckets_of(move.source)
    counts = dict(zip(ids, counts_of(moved), strict=True))
    assert sum(counts[target] for target in targets) == NUM_BUCKETS
    assert max(counts[t] for t in targets) - min(counts[t] for t in targets) <= 1


def test_moves_are_a_function_of_the_sets_alone():
    route = uneven("abcd", 3)
    assert plan_moves(route, ["b", "d", "a"]) == plan_moves(route, ["a", "b", "d", "a"])


@pytest.mark.parametrize("targets", [[], [str(i) for i in range(4097)]])
def test_moves_to_no_server_or_more_than_buckets_are_refused(targets):
    with pytest.raises(ValueError, match=f"1 to 4096 servers, got {len(targets)}"):
        plan_moves(route_of("a"), targets)


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


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"owners": np.zeros(4095, np.uint16)}, r"one uint16 owner .*, got uint16 \[4095\]"),
        ({"owners": np.zeros((2, 2048), np.uint16)}, r"got uint16 \[2, 2048\]"),
        ({"owners": np.zeros(4096, np.int64)}, r"got int64 \[4096\]"),
        ({"versions": np.zeros(1, np.uint32)}, r"one uint32 version .*, got uint32 \[1\]"),
        ({"versions": np.zeros(4096, np.uint16)}, r"one uint32 version .*, got uint16 \[4096\]"),
        (
            {"owners": np.arange(4096, dtype=np.uint16) // 2000},
            "one of 2 servers, got server 2 for bucket 4000",
        ),
    ],
)
def test_numbers_of_another_shape_or_of_no_server_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        Route(refs("a", "b"), **numbers)
