"""Batches that are leased are in the rows once, whoever dies, sleeps or comes late, and when.

Two stores, of which the first leases, and workers that take one request at a time in any order. A
worker that dies does nothing more. One that sleeps loses its ranges, wakes up and goes on as if it
knew nothing, at any point, also between the pushes of one batch to the two stores. Gradients and
the rate are 1, so weight and pushes of a row add up to what it began with. The oracle counts the
batches in which a key is.
"""

import numpy as np
import pytest

from ps_server.keys import bucket_of
from ps_server.route import Route, ServerRef
from ps_server.spec import SGD, Constant, TableSpec
from ps_server.store import Ask, LeaseKind, Origin, Store
from tests.oracles.list_log import ListLog

SPEC = TableSpec("user", 1, SGD(1.0), Constant(0.0))
KEYS = np.arange(24, dtype=np.uint64)
FIRST = 1000.0  # the weight that all rows of a run begin with, less the number of who opened it
SECONDS = 12.0  # of requests of all workers together
MAX_REQUESTS = 4000


class Cluster:
    """Two stores with one table. A request takes one second."""

    def __init__(self, rng):
        self.rng, self.now = rng, 0.0
        self.stores = [Store(server_id=f"s{i}", clock=lambda: self.now) for i in range(2)]
        self.route = Route(
            tuple(ServerRef(store.id, f"h:{i + 1}") for i, store in enumerate(self.stores))
        )
        self.logs = [ListLog() for _ in self.stores]
        for store, log in zip(self.stores, self.logs, strict=True):
            store.keep(log)
            store.create_table(SPEC, self.route)

    def restart(self, number):
        """Kills a store; one that made the same changes takes its place."""
        store = Store(server_id=f"s{number}", clock=lambda: self.now)
        for change in self.logs[number].changes:
            store.replay(change)
        store.keep(self.logs[number])
        self.stores[number] = store

    def keys_of(self, number, keys):
        """Returns those of the keys that a store owns."""
        owned = self.route.buckets_of(f"s{number}")
        return keys[[bucket in owned for bucket in bucket_of(keys)]]


def work(cluster, holder, batches, *, size, epochs):
    """Does what docs/parameter_server.md says of a worker; yields before each request."""
    held = set()
    while True:
        yield
        ask = Ask(holder, frozenset(held), size=size, seconds=SECONDS, epochs=epochs)
        lease, worker = cluster.stores[0].lease(
            cluster.route.fingerprints[0], SPEC.name, ask, wait_seconds=0
        )
        if lease.kind is LeaseKind.END:
            return
        if lease.kind is LeaseKind.WAIT:
            continue
        held.add(lease.number)
        num_batches = 0
        if lease.kind is LeaseKind.OPEN:
            yield from open_run(cluster, worker, lease.number)
        elif lease.kind is LeaseKind.TRAIN:
            found = batches[lease.first_batch : lease.first_batch + size]
            num_batches = len(found)
            yield from train(cluster, worker, found)
        for number in range(2):
            yield
            cluster.stores[number].finish(worker, worker)
        yield
        cluster.stores[0].leases.complete(SPEC.name, lease.number, num_batches=num_batches)
        held.discard(lease.number)


def open_run(cluster, worker, number):
    """Sets all rows on both stores, after those that have begun to can no more."""
    for store in range(2):
        yield
        if number:
            cluster.stores[store].finish(worker - number, worker - 1)
    for store in range(2):
        keys = cluster.keys_of(store, KEYS)
        weights = np.full(len(keys), FIRST - number, np.float32)
        yield
        cluster.stores[store].set_rows(
            cluster.route.fingerprints[store], SPEC.name, keys, weights, worker=worker
        )


def train(cluster, worker, batches):
    """Pushes the batches of a range to both stores, from where the one that is behind is."""
    done = len(batches)
    for store in range(2):
        yield
        progress = cluster.stores[store].progress(worker)
        if progress is None:
            return  # it has finished somewhere, so all of it is applied everywhere
        done = min(done, progress)
    for sequence, batch in enumerate(batches[done:], done + 1):
        for store in range(2):
            keys = cluster.keys_of(store, batch)
            yield
            cluster.stores[store].push(
                cluster.route.fingerprints[store],
                {SPEC.name: (keys, np.ones(len(keys), np.float32))},
                step=1,
                origin=Origin(worker, sequence),
            )


def batches_of(rng, number):
    return [np.unique(rng.choice(KEYS, 6)) for _ in range(number)]


def expected_pushes(batches, epochs):
    return {int(key): epochs * sum(key in batch for batch in batches) for key in KEYS}


@pytest.mark.parametrize("seed", range(40))
def test_each_batch_is_in_its_rows_once_per_epoch(seed):
    rng = np.random.default_rng(seed)
    cluster, epochs, size = Cluster(rng), int(rng.integers(1, 4)), int(rng.integers(1, 5))
    batches = batches_of(rng, int(rng.integers(0, 14)))
    num_workers, asleep = 0, []

    def start():
        nonlocal num_workers
        num_workers += 1
        return num_workers, work(cluster, num_workers, batches, size=size, epochs=epochs)

    awake = [start() for _ in range(3)]
    for _ in range(MAX_REQUESTS):
        cluster.now += 1.0
        if not awake:
            awake.append(start())  # the last one, who finds that all is over or goes on
        at = int(rng.integers(len(awake)))
        fate = rng.random()  # dies, falls asleep, wakes up; or else a server is killed
        if fate < 0.02:
            awake[at] = start()  # who was there is dead, another comes
        elif fate < 0.06:
            asleep.append(awake.pop(at))
        elif fate < 0.10 and asleep:
            awake.append(asleep.pop(int(rng.integers(len(asleep)))))
        elif fate < 0.12:
            cluster.restart(int(rng.integers(2)))
        else:
            holder, requests = awake[at]
            cluster.stores[0].leases.renew(holder, SECONDS)
            if next(requests, "over") == "over":
                break
    else:
        pytest.fail(f"no end after {MAX_REQUESTS} requests")
    for _, zombie in (*asleep, *awake):  # all who are left wake up, and push what they had begun to
        for _ in zombie:
            cluster.now += 1.0

    found, starts = {}, set()
    for store, share in zip(cluster.stores, cluster.route.fingerprints, strict=True):
        rows = store.export_rows(share, SPEC.name)
        found |= dict(zip(rows.keys.tolist(), rows.num_pushes.tolist(), strict=True))
        starts |= set((rows.weights[:, 0] + rows.num_pushes).tolist())
    assert found == expected_pushes(batches, epochs)
    assert len(starts) == 1, "all rows begin with what one worker set"


def test_a_range_costs_a_server_nothing_once_it_is_finished():
    rng = np.random.default_rng(0)
    cluster = Cluster(rng)
    for _ in work(cluster, 1, batches_of(rng, 50), size=1, epochs=2):
        pass
    for store in cluster.stores:
        state = store.applied.state()
        assert (len(state.workers), len(state.finished)) == (0, 1)
