"""The store: named tables under one route, from any thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ps_server.route import Route, ServerRef
from ps_server.spec import SGD, Adagrad, Constant, TableSpec
from ps_server.store import (
    FreezeError,
    RouteMismatch,
    SnapshotError,
    SpecMismatch,
    Store,
    TableNotFound,
)

LATER = 30.0
SPEC = TableSpec("user", 4, SGD(1.0), Constant(0.5))
KEYS = np.arange(2000, dtype=np.uint64)
ONES = np.ones((2000, 4), np.float32)


def route_of(store, *others):
    return Route((ServerRef(store.id, "here:1"), *(ServerRef(o, f"{o}:1") for o in others)))


@pytest.fixture
def store():
    store = Store()
    store.create_table(SPEC, route_of(store))
    return store


@pytest.fixture
def route(store):
    return store.route.fingerprint_of(store.id)


def write(store, route, folder, name="user"):
    paths = []
    for file, data in store.save(route, name):
        paths.append(folder / file)
        paths[-1].write_bytes(data)
    return paths


def test_new_store_is_empty_and_has_no_route():
    store = Store()
    assert store.stats() == []
    assert store.route is None
    assert store.id != Store().id


def test_stats_are_by_name_and_count(store, route):
    store.create_table(TableSpec("item", 8), store.route)
    store.push(route, {"user": (KEYS, ONES)}, step=7)
    item, user = store.stats()
    assert (item.spec.name, item.num_rows, item.last_step) == ("item", 0, 0)
    assert (user.spec, user.num_rows, user.last_step) == (SPEC, 2000, 7)
    assert user.memory_bytes > 2000 * 4 * 4


def test_creating_twice_attaches(store, route):
    store.push(route, {"user": (KEYS, ONES)}, step=1)
    assert store.create_table(SPEC, store.route).num_rows == 2000


def test_differing_spec_is_refused_by_its_fields(store):
    with pytest.raises(SpecMismatch) as raised:
        store.create_table(TableSpec("user", 4, Adagrad(0.1), Constant(0.5), 8), store.route)
    assert str(raised.value) == (
        "table 'user' has optimizer=SGD(learning_rate=1.0), seed=0 here, got "
        "optimizer=Adagrad(learning_rate=0.1, epsilon=1e-06, initial_accumulator=0.0), seed=8; "
        "drop it (fresh=True, --fresh) or rename the new one"
    )


def test_other_route_is_refused_until_the_last_table_is_dropped(store):
    other = route_of(store, "there")
    store.create_table(TableSpec("item", 8), store.route)
    for name in ("user", "item"):
        with pytest.raises(RouteMismatch, match=r"servers here:1, got the servers here:1,there:1"):
            store.create_table(TableSpec("new", 4), other)
        store.drop_table(name)
    assert store.route is None
    store.create_table(SPEC, other)
    assert store.route is other


def test_refused_route_creates_no_table(store):
    with pytest.raises(ValueError, match="is not in the route there:1"):
        store.create_table(TableSpec("new", 4), Route((ServerRef("there", "there:1"),)))
    assert [stats.spec.name for stats in store.stats()] == ["user"]


def test_same_servers_under_other_addresses_are_the_same_route(store):
    store.create_table(TableSpec("item", 4), Route((ServerRef(store.id, "alias:9"),)))


CALLS = {
    "pull": lambda store, route, name: store.pull(route, {name: KEYS}, insert=True),
    "push": lambda store, route, name: store.push(route, {name: (KEYS, ONES)}, step=1),
    "save": lambda store, route, name: store.save(route, name),
    "load": lambda store, route, name: store.load(route, name, []),
}


@pytest.mark.parametrize("call", CALLS)
def test_unknown_table_and_other_route_are_refused_at_the_call(store, route, call):
    with pytest.raises(TableNotFound, match=r"'nobody' must be created first, .* holds user;"):
        CALLS[call](store, route, "nobody")
    with pytest.raises(RouteMismatch, match=f"here:1, got {route ^ 1:#x}; some have moved"):
        CALLS[call](store, route ^ 1, "user")
    assert store.stats()[0].num_rows == 0
    with pytest.raises(TableNotFound, match="holds none; a server that was restarted"):
        CALLS[call](Store(), route, "user")


def test_push_that_is_wrong_in_one_table_changes_none(store, route):
    store.create_table(TableSpec("item", 8), store.route)
    good = (KEYS, ONES)
    for bad in [(KEYS, ONES), (KEYS, np.ones((1999, 8), np.float32)), (KEYS, np.ones(9))]:
        with pytest.raises(ValueError, match=r"'item' must have shape \[2000, 8\]"):
            store.push(route, {"user": good, "item": bad}, step=1)
    assert [stats.num_rows for stats in store.stats()] == [0, 0]


@pytest.mark.parametrize("step", [-1, 0, 2**32, 2**64])
def test_step_out_of_range_is_refused_also_without_keys(store, route, step):
    for part in ((KEYS, ONES), (KEYS[:0], ONES[:0])):
        with pytest.raises(ValueError, match=f"from 1 to 4294967295, got step={step}"):
            store.push(route, {"user": part}, step=step)
    assert store.stats()[0].num_rows == 0


def test_flat_gradients_are_rows(store, route):
    store.push(route, {"user": (KEYS, ONES.ravel())}, step=1)
    (rows,) = store.pull(route, {"user": KEYS}, insert=False)
    assert (rows == -0.5).all()


def test_load_takes_the_rows_of_its_own_buckets_alone(store, route, tmp_path):
    store.push(route, {"user": (KEYS, ONES)}, step=3)
    paths = write(store, route, tmp_path)
    halves = []
    for position in range(2):
        half = Store()
        servers = [ServerRef("other", "other:1")]
        servers.insert(position, ServerRef(half.id, "half:1"))
        half.create_table(SPEC, Route(tuple(servers)))
        halves.append(half.load(half.route.fingerprint_of(half.id), "user", paths))
        assert half.stats()[0].last_step == 3
    assert sum(halves) == 2000
    assert min(halves) > 800


def test_broken_snapshot_among_good_ones_changes_no_row(store, route, tmp_path):
    store.push(route, {"user": (KEYS, ONES)}, step=1)
    paths = write(store, route, tmp_path)
    store.push(route, {"user": (KEYS, ONES)}, step=2)
    before = list(store.save(route, "user"))
    paths[-1].write_bytes(paths[-1].read_bytes()[:-1])
    with pytest.raises(SnapshotError, match=paths[-1].name):
        store.load(route, "user", paths)
    assert list(store.save(route, "user")) == before


def test_two_loads_at_once_are_one_after_the_other(store, route, tmp_path):
    contents = []
    for step in (1, 2):
        store.push(route, {"user": (KEYS + np.uint64(500 * step), ONES)}, step=step)
        (tmp_path / str(step)).mkdir()
        contents.append(list(store.save(route, "user")))
        write(store, route, tmp_path / str(step))
    paths = [sorted((tmp_path / str(step)).iterdir()) for step in (1, 2)]
    at_once = threading.Barrier(2)

    def load(part):
        at_once.wait(LATER)
        return store.load(route, "user", part)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            for future in [threads.submit(load, part) for part in paths]:
                future.result(LATER)
            assert list(store.save(route, "user")) in contents


def test_tables_come_and_go_beside_requests(store):
    """Each request is served whole, or refused for what it is."""
    route, num_served, is_over = store.route, [0], threading.Event()
    share = route.fingerprint_of(store.id)

    def use():
        while not is_over.is_set():
            try:
                store.push(share, {"user": (KEYS, ONES)}, step=1)
                rows = store.pull(share, {"user": KEYS}, insert=True)
                assert rows[0].shape == (2000, 4)
                for _ in store.save(share, "user"):
                    pass
                num_served[0] += 1
            except TableNotFound:
                pass

    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(use) for _ in range(2)]
        for _ in range(300):
            store.drop_table("user")
            store.create_table(SPEC, route)
        while num_served[0] == 0 and not any(future.done() for future in futures):
            pass
        is_over.set()
        for future in futures:
            future.result(LATER)
    assert num_served[0] > 0


# ------------------------------------------------------------------ frozen rows


def saved(store, route, name="user", **options):
    return dict(store.save(route, name, **options))


def test_what_was_frozen_is_saved_while_pushes_go_on(store, route):
    store.push(route, {"user": (KEYS, ONES)}, step=1)
    before = saved(store, route)
    freeze = store.freeze(route)
    store.push(route, {"user": (KEYS, ONES)}, step=2)
    store.pull(route, {"user": KEYS + np.uint64(10_000)}, insert=True)  # rows made since
    reading = store.save(route, "user", freeze=freeze)
    found = [next(reading)]
    store.push(route, {"user": (KEYS, ONES)}, step=3)
    assert dict(found + list(reading)) == before
    assert saved(store, route) != before


def test_a_freeze_comes_between_two_pushes(store, route):
    """A push changes two tables, one after the other: what is frozen has it in both or in none."""
    store.create_table(TableSpec("item", 4, SGD(1.0), Constant(0.5)), store.route)
    is_over = threading.Event()

    def push_on():
        step = 0
        while not is_over.is_set():
            step += 1
            store.push(route, {"user": (KEYS, ONES), "item": (KEYS, ONES)}, step=step)

    with ThreadPoolExecutor() as threads:
        pushing = threads.submit(push_on)
        try:
            seen = set()
            while len(seen) < 30:
                store.freeze(route)
                _, held = store._frozen
                steps = {frozen.last_step for frozen in held.values()}
                assert len(steps) == 1
                seen |= steps
        finally:
            is_over.set()
        pushing.result(LATER)


def test_the_latest_freeze_alone_is_kept_until_it_is_released(store, route):
    store.push(route, {"user": (KEYS, ONES)}, step=1)
    first = store.freeze(route)
    reading = store.save(route, "user", freeze=first)
    next(reading)
    second = store.freeze(route)
    with pytest.raises(FreezeError, match=f"got freeze {first}, which is kept no longer"):
        list(reading)
    with pytest.raises(FreezeError, match="'user' must be frozen while it is saved"):
        saved(store, route, freeze=first)
    store.release(first)  # no error, and not the other one
    assert saved(store, route, freeze=second) == saved(store, route)
    store.release(second)
    with pytest.raises(FreezeError, match="kept no longer"):
        saved(store, route, freeze=second)
    assert Store().freeze(0) not in (first, second)  # as after a restart


def test_a_table_that_came_later_or_is_another_is_not_in_a_freeze(store, route):
    freeze = store.freeze(route)
    store.create_table(TableSpec("item", 4), store.route)
    with pytest.raises(FreezeError, match="'item'"):
        saved(store, route, "item", freeze=freeze)
    old = store.route
    for name in ("user", "item"):
        store.drop_table(name)
    store.create_table(SPEC, old)
    with pytest.raises(FreezeError, match="'user'"):
        saved(store, route, freeze=freeze)


def test_another_route_does_not_freeze(store, route):
    with pytest.raises(RouteMismatch):
        store.freeze(route + 1)
