"""The catalog: what a server owns, beside what it knows of others."""

import numpy as np
import pytest

from ps_server.catalog import NO_IDS, Catalog, RouteMismatch
from ps_server.route import Route, ServerRef, share_fingerprint
from ps_server.spec import TableSpec

A, B, C = (ServerRef(name, f"host-{name}:7000") for name in "abc")
EVEN = Route((A, B))
SPEC = TableSpec("user", 4)


def create(catalog, spec, route):
    if not catalog.holds(spec, route):
        catalog.create(spec, route, table_id=1)


def catalog_of(ref, route=EVEN):
    catalog = Catalog(ref.id)
    create(catalog, SPEC, route)
    return catalog


def owned_by(catalog, route, ref):
    """What the catalog serves to one who knows this route, in which the server is `ref`."""
    _, owned = catalog.find(route.fingerprint_of(ref.id), ["user"], NO_IDS)
    return owned.tolist()


def test_share_is_that_of_the_first_tables_route():
    assert owned_by(catalog_of(A), EVEN, A) == list(range(2048))
    assert owned_by(catalog_of(B), EVEN, B) == list(range(2048, 4096))


def test_bucket_that_is_given_is_refused_and_one_that_is_taken_served():
    source, target = catalog_of(A), catalog_of(B)
    source.give([5], to=B)
    moved = EVEN.moved([5], to=B)
    assert source.route == moved
    with pytest.raises(RouteMismatch, match=r"for the 2047 buckets that this server owns .* moved"):
        owned_by(source, EVEN, A)
    assert owned_by(source, moved, A) == [b for b in range(2048) if b != 5]
    target.take([5], source.route)
    with pytest.raises(RouteMismatch, match="for the 2049 buckets"):
        owned_by(target, EVEN, B)
    assert owned_by(target, moved, B) == [5, *range(2048, 4096)]


def test_third_server_serves_whoever_has_heard_of_the_move_or_not():
    route = Route((A, B, C))
    third = catalog_of(C, route)
    moved = route.moved([5], to=B)
    assert owned_by(third, route, C) == owned_by(third, moved, C)


def test_server_that_is_told_of_a_bucket_has_it_only_once_it_has_taken_it():
    """Its rows may be on their way still."""
    target = catalog_of(B)
    moved = EVEN.moved([5], to=B)
    with pytest.raises(RouteMismatch, match="for the 2048 buckets"):
        create(target, TableSpec("item", 4), moved)
    assert [stats.spec.name for stats in target.stats()] == ["user"]
    with pytest.raises(RouteMismatch):
        owned_by(target, moved, B)
    target.take([5], moved)
    target.take([5], moved)
    assert owned_by(target, moved, B) == [5, *range(2048, 4096)]


def test_new_server_owns_nothing_until_it_takes():
    new = catalog_of(C, EVEN.with_server(C))
    assert owned_by(new, EVEN.with_server(C), C) == []
    moved = EVEN.moved([5, 4095], to=C)
    new.take([5], moved)
    assert owned_by(new, EVEN.moved([5], to=C), C) == [5], "the rows of the other are on their way"
    new.take([4095], moved)
    assert owned_by(new, moved, C) == [5, 4095]


def test_only_what_is_owned_is_given_and_only_what_was_given_taken():
    catalog = catalog_of(A)
    for buckets in ([2048], [0, 2048]):
        with pytest.raises(RouteMismatch, match="a server gives what it owns"):
            catalog.give(buckets, to=B)
    with pytest.raises(RouteMismatch, match="a server takes what it was given"):
        catalog.take([2048], EVEN)
    assert catalog.route == EVEN
    assert owned_by(catalog, EVEN, A) == list(range(2048))


def test_route_of_other_servers_is_refused_and_forgotten():
    catalog = catalog_of(A)
    other = Route((A, B, C))
    with pytest.raises(RouteMismatch, match="got the servers host-a:7000,host-b:7000,host-c:7000"):
        catalog.take([0], other)
    catalog.drop("user")
    assert catalog.route is None
    create(catalog, SPEC, other)
    assert owned_by(catalog, other, A) == np.flatnonzero(other.owners == 0).tolist()


def test_moves_that_others_tell_of_are_learned_with_a_table():
    catalog = catalog_of(A)
    moved = EVEN.moved([4095], to=C)
    create(catalog, TableSpec("item", 4), moved)
    assert catalog.route == moved
    create(catalog, TableSpec("third", 4), EVEN)
    assert catalog.route == moved, "what one does not know yet is not unlearned"
    assert share_fingerprint("a", np.arange(2048)) == moved.fingerprint_of("a")
