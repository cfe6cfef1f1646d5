"""Any sequence of operations on a table, wherever it lives, against the dict of arrays.

One state machine, four subjects: the native table, a store, a client with the store in its own
process, a client of real server processes. What a subject is asked, the oracle is asked as well,
and bits are compared. Only where threads race is the order not ours: there a row must be what
some order of the pushes gives.
"""

import threading
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hetero_pipe.client import Client, RoutedKeys
from ps_server import _native
from ps_server.keys import bucket_of
from ps_server.route import Route, ServerRef
from ps_server.spec import NUM_BUCKETS, SGD, Adagrad, Adam, Constant, Normal, TableSpec, Uniform
from ps_server.store import Store
from ps_server.table import Rows, Table
from tests.oracles.dict_table import DictTable, first_weights, key_of

LATER = 60.0

EXACT = SGD(0.5), Constant(0.25)  # with whole gradients no sum is ever rounded
KINDS = [
    EXACT,
    (SGD(0.1), Normal()),
    (Adagrad(0.1), Uniform(-3.0, 5.0)),
    (Adagrad(0.3, 1e-3, 0.1), Constant(-1.5)),
    (Adam(0.01), Uniform()),
    (Adam(0.1, 0.0, 0.5), Normal(2.0, 0.5)),
]
EDGE_KEYS = [0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
KEYS = st.lists(
    st.integers(0, 30) | st.sampled_from(EDGE_KEYS) | st.integers(0, 2**64 - 1), max_size=60
)
SEEDS = st.integers(0, 2**32)
SIDES = st.integers(0, 1)
SPREADS = st.runner().flatmap(lambda machine: st.sampled_from(machine.spreads))


def u64(keys):
    return np.array(keys, np.uint64)


def start_of(spec):
    """Returns what gives a new row's weights. Only of `Normal` has the oracle not every bit:
    there it asks a table that holds nothing (test_table.py compares that with the formula).
    """
    if not isinstance(spec.initializer, Normal):
        return cache(first_weights)
    empty = Table(spec)
    return cache(lambda spec, key: empty.pull(u64([key]), insert=False)[0])


def keys_of_one_stripe(seed, num_shared_bits, size=2_500):
    """Keys that fill an index: of one bucket and stripe, so that its segments split, their
    hashes alike in the first bits below, so that its directory doubles.
    """
    rng = np.random.default_rng(seed)
    free = 46 - num_shared_bits
    places = rng.choice(2**30, size, replace=False).astype(np.uint64) << np.uint64(free - 30)
    fixed = (seed << 46) | ((seed % 2**num_shared_bits) << free)
    return u64([key_of(int(place) | fixed) for place in places])


def run_together(*tasks):
    """Runs the tasks at the same time and raises what they raised."""
    at_once, errors = threading.Barrier(len(tasks)), []

    def run(task):
        try:
            at_once.wait(LATER)
            task()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATER)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


# What is tested. A subject has two sides, which may be used at the same time.


class TableSubject:
    """The table. It may be spread over any number of stripes."""

    spreads = (1, 2, 64, 1024)

    def __init__(self, spec, spread):
        self.table = Table(spec)
        self.move(spread)

    def move(self, spread):
        """Becomes an empty one."""
        fields = self.table.spec.to_dict()
        self.table._native = _native.Table(
            dim=fields["dim"],
            optimizer=fields["optimizer"],
            initializer=fields["initializer"],
            seed=_native.hash_bytes(fields["name"].encode(), fields["seed"]),
            num_stripes=spread,
        )

    def pull(self, keys, *, insert, side=0):
        return self.table.pull(keys, insert=insert)

    def push(self, keys, gradients, *, step, side=0):
        self.table.push(keys, gradients, step=step)

    def counts(self):
        """Rows, and the last step."""
        return self.table.num_rows, self.table.last_step

    def rows(self):
        return self.table.export_rows(0, NUM_BUCKETS)

    def save(self, folder):
        cuts = [0, 1, 700, 700, 4000, NUM_BUCKETS]
        return [self.table.export_rows(*buckets) for buckets in pairwise(cuts)]

    def load(self, saved):
        self.table.clear()
        for rows in reversed(saved):
            self.table.import_rows(rows)

    def clear(self):
        self.table.clear()

    def close(self):
        """It is memory."""


class StoreSubject:
    """A store that owns all buckets."""

    spreads = (1,)

    def __init__(self, spec, spread):
        self.spec = spec
        self.move(spread)

    def move(self, spread):
        self.store = Store()
        self.route = Route((ServerRef(self.store.id, "here:1"),))
        self.share = self.route.fingerprint_of(self.store.id)
        self.store.create_table(self.spec, self.route)

    def pull(self, keys, *, insert, side=0):
        return self.store.pull(self.share, {"t": keys}, insert=insert)[0]

    def push(self, keys, gradients, *, step, side=0):
        self.store.push(self.share, {"t": (keys, gradients)}, step=step)

    def counts(self):
        (stats,) = self.store.stats()
        return stats.num_rows, stats.last_step

    def rows(self):
        return read(data for _, data in self.store.save(self.share, "t"))

    def save(self, folder):
        return write(folder, self.store.save(self.share, "t"))

    def load(self, saved):
        assert self.store.load(self.share, "t", saved) == self.counts()[0]

    def clear(self):
        self.store.drop_table("t")
        self.store.create_table(self.spec, self.route)

    def close(self):
        """It is memory."""


class ClientSubject:
    """Two clients of the servers of a spread; None is the store of one client's own process."""

    def __init__(self, spreads, spec, spread):
        self.spreads, self.spec, self.clients = spreads, spec, []
        self.move(spread)

    def move(self, spread):
        self.close()
        self.clients = [Client(spread) for _ in range(1 if spread is None else 2)]
        self.clear()

    def pull(self, keys, *, insert, side=0):
        client = self.client(side)
        routed = client.route(keys)
        return client.pull({"t": routed}, insert=insert)["t"][routed.inverse]

    def push(self, keys, gradients, *, step, side=0):
        # Not merged, as `Client.route` does: a server gets a key as often as it is there.
        client = self.client(side)
        owner = client._route.owners[bucket_of(keys)]
        order = np.argsort(owner, kind="stable")
        bounds = np.searchsorted(owner[order], np.arange(len(client.addresses) + 1))
        routed = RoutedKeys(keys[order], np.argsort(order), bounds)
        client.push({"t": routed}, {"t": gradients[order]}, step=step)

    def client(self, side):
        return self.clients[side % len(self.clients)]

    def counts(self):
        last_step = self.clients[0].attach([self.spec])
        return self.clients[-1].num_rows()["t"], last_step

    def rows(self):
        return read(b"".join(pieces) for _, pieces in self.clients[-1].save("t"))

    def save(self, folder):
        files = self.clients[0].save("t")
        return write(folder, ((name, b"".join(pieces)) for name, pieces in files))

    def load(self, saved):
        assert self.clients[-1].load("t", saved) == self.counts()[0]

    def clear(self):
        for client, fresh in zip(self.clients, (True, False), strict=False):
            client.attach([self.spec], fresh=fresh)

    def close(self):
        for client in self.clients:
            for connection in client._connections:  # or its route would bind the server
                connection.control.drop_table("t").result()
            client.close()


def write(folder, files):
    for name, data in files:
        assert not (folder / name).exists()
        (folder / name).write_bytes(data)
    return sorted(folder.iterdir())


def read(files):
    """Returns the rows in snapshots, by key; reads them with Arrow alone."""
    tables = [pa.ipc.open_file(pa.BufferReader(data)).read_all() for data in files]
    if not tables:
        return Rows(*(np.empty((0, 0)) for _ in range(5)))
    whole = pa.concat_tables([table.replace_schema_metadata(None) for table in tables])
    columns = whole.sort_by("key").combine_chunks()
    lists = {
        name: columns[name].combine_chunks().flatten().to_numpy().reshape(len(whole), -1)
        for name in ("weights", "state")
        if name in columns.column_names
    }
    return Rows(
        columns["key"].to_numpy(),
        lists["weights"],
        lists.get("state", np.empty((len(whole), 0), np.float32)),
        columns["num_pushes"].to_numpy(),
        columns["step"].to_numpy(),
    )


# What is done


@dataclass
class Push:
    keys: np.ndarray
    gradients: np.ndarray
    step: int

    def to(self, table, **side):
        table.push(self.keys, self.gradients, step=self.step, **side)


class TableMachine(RuleBasedStateMachine):
    saves = Bundle("saves")
    pulled = Bundle("pulled")
    frozen = Bundle("frozen")

    def __init__(self, subject_of, spreads, kinds, folder):
        super().__init__()
        self.subject_of, self.spreads, self.kinds = subject_of, spreads, kinds
        self.exact, self.folder = kinds == EXACT, folder
        self.subject = None

    @initialize(dim=st.integers(1, 70), seed=st.integers(0, 2**64 - 1), spread=SPREADS)
    def create(self, dim, seed, spread):
        spec = TableSpec("t", dim, *self.kinds, seed)
        self.oracle = DictTable(spec, start_of(spec))
        self.subject = self.subject_of(spec, spread)

    def push_of(self, keys, seed, ahead=0):
        """Returns a push of random gradients, `ahead` of the next step."""
        rng, keys = np.random.default_rng(seed), u64(keys)
        gradients = (
            rng.integers(-8, 9, (len(keys), self.oracle.spec.dim)).astype(np.float32)
            if self.exact
            else rng.standard_normal((len(keys), self.oracle.spec.dim), np.float32)
            * np.float32(rng.choice([1, 1e-3, 1e3, 1e-20]))
        )
        return Push(keys, gradients, max(1, self.oracle.last_step + 1 + ahead))

    def expect(self, push):
        push.to(self.oracle)

    def check_pull(self, keys, *, insert, side=0):
        pulled = self.subject.pull(keys, insert=insert, side=side)
        assert np.array_equal(pulled, self.oracle.pull(keys, insert=insert))

    @rule(target=pulled, keys=KEYS, insert=st.booleans(), side=SIDES)
    def pull(self, keys, insert, side):
        self.check_pull(u64(keys), insert=insert, side=side)
        return keys

    @rule(keys=pulled, seed=SEEDS, side=SIDES)
    def push_what_was_pulled(self, keys, seed, side):
        self.push(keys, seed, 0, side)

    @rule(keys=KEYS, seed=SEEDS, ahead=st.integers(-3, 3), side=SIDES)
    def push(self, keys, seed, ahead, side):
        push = self.push_of(keys, seed, ahead)
        push.to(self.subject, side=side)
        self.expect(push)

    @rule(seed=SEEDS, side=SIDES)
    def ask_for_rows_that_are_not_there(self, seed, side):
        keys = np.random.default_rng(seed).integers(0, 2**64, 50, np.uint64)
        before = self.subject.counts()
        for _ in range(2):
            self.check_pull(keys, insert=False, side=side)
        assert self.subject.counts() == before

    @rule(shared=st.lists(st.integers(0, 30), min_size=1), keys=KEYS, more=KEYS, seed=SEEDS)
    def push_the_same_keys_from_two_sides_at_once(self, shared, keys, more, seed):
        one, other = self.push_of(shared + keys, seed), self.push_of(more + shared, seed + 1, 1)
        run_together(
            lambda: one.to(self.subject, side=0),
            lambda: other.to(self.subject, side=1),
        )
        touched = {*one.keys.tolist(), *other.keys.tolist()}
        orders = self.oracle.copy(touched), self.oracle.copy(touched)
        for push in (one, other):
            push.to(orders[0])
        for push in (other, one):
            push.to(orders[1])
        rows = self.subject.rows()
        position = {key: i for i, key in enumerate(rows.keys.tolist())}
        for key in touched:
            fits = [o.rows[key] for o in orders if is_row(rows, position[key], o.rows[key])]
            assert fits, f"row {key} is of neither order of its two pushes"
            self.oracle.rows[key] = fits[0]
        self.oracle.last_step = orders[0].last_step

    @rule(num_threads=st.integers(2, 4), seed=SEEDS)
    def train_in_threads_on_keys_of_their_own(self, num_threads, seed):
        """Each thread must see what it would see alone."""
        rng, plans = np.random.default_rng(seed), []
        for thread in range(num_threads):
            plans.append([])
            for _ in range(10):
                keys = rng.integers(0, 12, rng.integers(0, 30)) * num_threads + thread
                push = self.push_of(keys, rng.integers(2**32), rng.integers(4))
                plans[-1].append(push if rng.random() < 0.5 else push.keys)
        seen = [[] for _ in plans]

        def train(thread):
            for work in plans[thread]:
                if isinstance(work, Push):
                    work.to(self.subject, side=thread % 2)
                else:
                    seen[thread].append(self.subject.pull(work, insert=True, side=thread % 2))

        run_together(*(lambda thread=thread: train(thread) for thread in range(num_threads)))
        for plan, pulled in zip(plans, seen, strict=True):
            found = iter(pulled)
            for work in plan:
                if isinstance(work, Push):
                    self.expect(work)
                else:
                    assert np.array_equal(next(found), self.oracle.pull(work))

    @precondition(lambda self: self.exact)
    @rule(num_threads=st.integers(2, 4), seed=SEEDS)
    def train_in_threads_on_shared_keys(self, num_threads, seed):
        """Sums that are exact come out equal in any order, and a row is seen whole."""
        rng, keys = np.random.default_rng(seed), np.arange(40, dtype=np.uint64)
        self.check_pull(keys, insert=True)
        before = self.oracle.pull(keys)
        plans = []
        for _ in range(num_threads):
            pushes = [self.push_of(rng.integers(0, 40, 60), i, i) for i in range(8)]
            for push in pushes:
                push.gradients[:] = push.gradients[:, :1]
            plans.append(pushes)

        def train(thread):
            for push in plans[thread]:
                push.to(self.subject, side=thread % 2)
                moved = self.subject.pull(keys, insert=False, side=thread % 2) - before
                assert (moved == moved[:, :1]).all(), "a row was seen half written"

        run_together(*(lambda thread=thread: train(thread) for thread in range(num_threads)))
        for pushes in plans:
            for push in pushes:
                self.expect(push)

    @rule(seed=st.integers(0, 2), num_shared_bits=st.sampled_from([0, 0, 1, 5]), side=SIDES)
    def grow(self, seed, num_shared_bits, side):
        keys = keys_of_one_stripe(seed, num_shared_bits)
        self.check_pull(keys[500:], insert=True, side=side)
        push = self.push_of(keys[:1_000], seed)
        push.to(self.subject, side=side)
        self.expect(push)
        self.check_pull(keys, insert=False, side=side)

    @rule(target=saves)
    def save(self):
        saved = self.subject.save(Path(mkdtemp(dir=self.folder)))
        kept = self.oracle.copy()
        kept.last_step = max((row.step for row in kept.rows.values()), default=0)
        return saved, kept

    @rule(save=saves)
    def load(self, save):
        saved, kept = save
        self.subject.load(saved)
        self.oracle = kept.copy()

    @rule(save=saves, spread=SPREADS)
    def load_elsewhere(self, save, spread):
        self.subject.move(spread)
        self.load(save)

    @precondition(lambda self: isinstance(self.subject, TableSubject))
    @rule(target=frozen)
    def freeze(self):
        return self.subject.table.freeze(), self.oracle.copy()

    @rule(state=frozen)
    def compare_frozen(self, state):
        table, oracle = state
        assert (table.num_rows, table.last_step) == (oracle.num_rows, oracle.last_step)
        self.compare_rows(table.export_rows(0, NUM_BUCKETS), oracle)

    @rule(state=consumes(frozen))
    def release(self, state):
        self.compare_frozen(state)
        state[0].release()

    @precondition(lambda self: isinstance(self.subject, TableSubject))
    @rule(buckets=st.tuples(*2 * [st.integers(0, NUM_BUCKETS)]).map(sorted))
    def drop_buckets(self, buckets):
        self.subject.table.drop_buckets(*buckets)
        self.oracle.drop_buckets(*buckets)

    @rule()
    def clear(self):
        self.subject.clear()
        self.oracle.clear()

    @rule()
    def compare(self):
        self.compare_rows(self.subject.rows(), self.oracle)

    def compare_rows(self, rows, oracle):
        expected = oracle.rows
        assert rows.keys.tolist() == sorted(expected)
        held = [expected[key] for key in sorted(expected)]
        if held:
            assert np.array_equal(rows.weights, np.stack([row.weights for row in held]))
            assert np.array_equal(rows.state, np.stack([row.state.ravel() for row in held]))
        assert rows.num_pushes.tolist() == [row.num_pushes for row in held]
        assert rows.steps.tolist() == [row.step for row in held]

    @invariant()
    def counts(self):
        if self.subject is not None:
            assert self.subject.counts() == (self.oracle.num_rows, self.oracle.last_step)

    def teardown(self):
        if self.subject is not None:
            try:
                self.compare()
            finally:
                self.subject.close()


def is_row(rows, i, row):
    return (
        np.array_equal(rows.weights[i], row.weights)
        and np.array_equal(rows.state[i], row.state.ravel())
        and (rows.num_pushes[i], rows.steps[i]) == (row.num_pushes, row.step)
    )


def check(subject_of, spreads, folder, *, num_examples):
    for kinds in KINDS:
        run_state_machine_as_test(
            lambda kinds=kinds: TableMachine(subject_of, spreads, kinds, folder),
            settings=settings(
                max_examples=num_examples,
                stateful_step_count=20,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_any_sequence_of_operations_on_a_table_equals_the_dict(tmp_path):
    check(TableSubject, TableSubject.spreads, tmp_path, num_examples=8)


def test_any_sequence_of_operations_on_a_store_equals_the_dict(tmp_path):
    check(StoreSubject, StoreSubject.spreads, tmp_path, num_examples=3)


def test_any_sequence_of_operations_on_an_embedded_client_equals_the_dict(tmp_path):
    check(lambda *spec: ClientSubject([None], *spec), [None], tmp_path, num_examples=2)


@pytest.mark.timeout(120)
def test_any_sequence_of_operations_on_server_processes_equals_the_dict(daemon, tmp_path):
    one, two, three = (daemon().address for _ in range(3))
    spreads = [[one], [two, three], [three, one, two]]
    check(lambda *spec: ClientSubject(spreads, *spec), spreads, tmp_path, num_examples=2)
