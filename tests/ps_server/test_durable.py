"""A store that comes back: what it had, to the bit, however its process ended."""

import json
import logging
import os
import re
import resource
import shutil
import signal
import threading
from contextlib import contextmanager, suppress

import grpc
import numpy as np
import pytest

from ps_server.change import NotLogged, Origin
from ps_server.checkpoint import (
    CheckpointError,
    Contents,
    checkpoint_numbers,
    newest_checkpoint,
    write_checkpoint,
)
from ps_server.daemon import run
from ps_server.durable import Durable, Identity, refuse_data
from ps_server.journal import JournalError
from ps_server.keys import bucket_of
from ps_server.route import Route, ServerRef
from ps_server.snapshot import SnapshotError
from ps_server.spec import SGD, Adagrad, Adam, TableSpec
from ps_server.store import Ask, Stopping, Store
from ps_server.wire import ps_pb2, ps_pb2_grpc, route_to_message, spec_to_message

LATER = 30.0
SPECS = {
    "user": TableSpec("user", 3, Adagrad(0.1)),
    "item": TableSpec("item", 2, Adam()),
    "ad": TableSpec("ad", 1, SGD(0.1)),
}
NO_LIMIT = 1 << 40
HOLDER = 2**64 - 1
LONG = 1000  # epochs


@contextmanager
def life(folder, *, journal_limit=NO_LIMIT):
    """One life of a server: a store that goes on from its folder."""
    folder.mkdir(exist_ok=True)
    identity = Identity(folder)
    store = Store(server_id=identity.id, rejoin_seconds=LATER)
    with Durable(store, folder, identity, journal_limit=journal_limit) as durable:
        store.durable = durable  # for the tests
        try:
            yield store
        finally:
            store.workers.close()


def state_of(store):
    """All that a store must have again."""
    applied, route, moves = store.applied.state(), store.route, store.moves.state()
    whole = [each for each in moves.incoming if each.prepared is not None]
    return {
        "share": store.share[1],
        "moves": (
            moves.versions.tobytes(),
            [
                (
                    *(each.move, each.buckets, each.prepared.versions, each.prepared.roster),
                    *(each.prepared.workers.tolist(), each.prepared.sequences.tobytes()),
                )
                for each in whole
            ],
        ),
        "id": store.id,
        "route": route,
        "tables": [(stats.spec, stats.id) for stats in store.stats()],
        "rows": {
            stats.spec.name: {
                column: array.tobytes()
                for column, array in vars(pushed_rows(store, stats.spec.name)).items()
            }
            for stats in store.stats()
        },
        "applied": (applied.workers.tolist(), applied.sequences.tobytes()),
        "finished": applied.finished.tolist(),
        "ranges": store.leases.state(),
        "roster": store.workers.state(),
    }


def pushed_rows(store, name):
    """The rows but for those that were only pulled, which start the same whenever they are.

    And for those of a move that has not come whole, which a kill erases.
    """
    rows = store.export_rows(store.share[1], name)
    coming = [b for each in store.moves.incoming if not each.prepared for b in each.buckets]
    is_kept = (rows.num_pushes > 0) & ~np.isin(bucket_of(rows.keys), coming)
    return type(rows)(*(column[is_kept] for column in vars(rows).values()))


def after_a_kill(folder, copy):
    """What a store is that goes on from the files as they are now."""
    shutil.copytree(folder, copy)
    with life(copy) as store:
        return state_of(store)


class Traffic:
    """Random requests to a store, some of them repeated, by a seed."""

    def __init__(self, store, seed, folder):
        self.rng = np.random.default_rng(seed)
        self.store = store
        self.folder = folder
        self.sequence = 0
        self.clock = None
        self.last = None

    @property
    def route(self):
        other = ServerRef("other", "there:1")
        even = Route((ServerRef(self.store.id, "here:1"), other))
        return even.moved([0, 7, 2000], to=other)  # what is left is no range

    def request(self):
        """Makes one request; each is one change at most."""
        ways = [self.push] * 6 + [self.repeat, self.join, self.begin, self.goodbye, self.create]
        ways += [self.drop, self.load, self.pull]
        ways += [self.lease, self.complete, self.give_back, self.finish]
        ways[self.rng.integers(len(ways))]()

    def names(self):
        return [stats.spec.name for stats in self.store.stats()]

    def push(self):
        if names := self.names():
            gradients = {}
            for name in names:
                keys = self.rng.integers(0, 120, self.rng.integers(0, 80)).astype(np.uint64)
                keys = keys[np.isin(bucket_of(keys), self.route.buckets_of(self.store.id))]
                shape = (len(keys), SPECS[name].dim)
                gradients[name] = keys, self.rng.standard_normal(shape, dtype=np.float32)
            self.sequence += 1
            rank = None if self.clock is None else 0
            self.clock = None if self.clock is None else self.clock + 1
            step = self.sequence if self.clock is None else self.clock
            origin = Origin(7, self.sequence)
            self.last = gradients, {"step": step, "rank": rank, "origin": origin}
            self.repeat()

    def repeat(self):
        if self.last is not None and self.names() == list(self.last[0]):
            self.store.push(self.route.fingerprints[0], self.last[0], **self.last[1])

    def lease(self):
        if names := self.names():
            asked = Ask(HOLDER, self.held(names[0]), size=4, seconds=LATER, epochs=LONG)
            self.store.lease(self.route.fingerprints[0], names[0], asked, wait_seconds=0)

    def held(self, name):
        runs = self.store.leases.state()
        return frozenset(runs[name].held) if name in runs else frozenset()

    def complete(self):
        for name, ranges in self.store.leases.state().items():
            for number in list(ranges.held)[:1]:
                self.store.leases.complete(name, number, num_batches=int(self.rng.integers(5)))
                return

    def give_back(self):
        for name, ranges in self.store.leases.state().items():
            for number in list(ranges.held)[-1:]:
                self.store.leases.give_back(name, number, holder=HOLDER)
                return

    def finish(self):
        first = int(self.rng.integers(100, 200))
        self.store.finish(first, first + int(self.rng.integers(3)))

    def join(self):
        with suppress(ValueError):  # it is there
            self.store.workers.join(0, num_workers=1, name="here:1", worker=7)
            self.clock = None

    def begin(self):
        if self.store.workers.state().members:
            self.clock = int(self.rng.integers(0, 100))
            self.store.workers.begin(0, self.clock)

    def goodbye(self):
        if self.store.workers.state().members:
            self.store.workers.goodbye(0)
            self.clock = None

    def create(self):
        self.store.create_table(SPECS[self.rng.choice(list(SPECS))], self.route)

    def drop(self):
        self.store.drop_table(self.rng.choice(list(SPECS)))

    def pull(self):
        for name in self.names():
            keys = self.rng.integers(0, 200, 20).astype(np.uint64)
            self.store.pull(self.route.fingerprints[0], {name: keys}, insert=True)

    def load(self):
        for name in self.names()[:1]:
            other = Store()
            route = Route((ServerRef(other.id, "elsewhere:1"),))
            other.create_table(SPECS[name], route)
            keys = self.rng.integers(0, 2**64, 50, dtype=np.uint64)
            ones = np.ones((50, SPECS[name].dim), np.float32)
            other.push(route.fingerprints[0], {name: (keys, ones)}, step=3)
            paths = []
            for file, data in other.save(route.fingerprints[0], name):
                paths.append(self.folder / file)
                paths[-1].write_bytes(data)
            self.store.load(self.route.fingerprints[0], name, paths)


@pytest.mark.parametrize("seed", range(3))
def test_a_store_comes_back_from_any_moment(tmp_path, seed):
    folder, files = tmp_path / "data", tmp_path / "files"
    files.mkdir()
    with life(folder) as store:
        traffic = Traffic(store, seed, files)
        for moment in range(60):
            traffic.request()
            if moment == 35:
                store.durable._write_checkpoint()
            if moment % 6 == 5:
                assert after_a_kill(folder, tmp_path / f"{moment}") == state_of(store)
        expected = state_of(store)
    with life(folder) as store:  # also after an end in peace
        assert state_of(store) == expected


def test_a_journal_that_is_cut_anywhere_gives_what_its_whole_records_made(tmp_path):
    folder, files = tmp_path / "data", tmp_path / "files"
    files.mkdir()
    with life(folder) as store:
        traffic = Traffic(store, 1, files)
        path = folder / "journal" / "journal-00000000000000000001.log"
        states = {0: state_of(store)}
        while len(states) < 40:
            traffic.request()
            states[path.stat().st_size] = state_of(store)
    ends = sorted(states)
    rng = np.random.default_rng(2)
    for number, end in enumerate(ends):
        size = int(rng.integers(end, [*ends, end + 1][number + 1]))
        for cut in {end, size}:  # at the record's end, and within the next
            copy = tmp_path / f"{cut}"
            shutil.copytree(folder, copy)
            os.truncate(copy / path.relative_to(folder), cut)
            with life(copy) as store:
                assert state_of(store) == states[end]


def gradients_of(sequence, dim=3, num_keys=50):
    """What a client pushes as its push of this number."""
    rng = np.random.default_rng(sequence)
    keys = rng.integers(0, 300, num_keys).astype(np.uint64)
    return keys, rng.standard_normal((num_keys, dim), dtype=np.float32)


def alone(store):
    return Route((ServerRef(store.id, "here:1"),))


def test_a_checkpoint_is_written_when_the_journal_is_long_and_cuts_it(tmp_path, wait_until):
    folder = tmp_path / "data"
    with life(folder, journal_limit=50_000) as store:
        store.create_table(SPECS["user"], alone(store))
        route = store.route.fingerprint_of(store.id)
        for sequence in range(1, 201):
            store.push(
                route,
                {"user": gradients_of(sequence)},
                step=sequence,
                origin=Origin(7, sequence),
            )
            if sequence % 50 == 0:
                wait_until(lambda: checkpoint_numbers(folder / "checkpoints"))
        wait_until(lambda: not store.durable.is_due)
        expected = state_of(store)
    numbers = checkpoint_numbers(folder / "checkpoints")
    assert 1 <= len(numbers) <= 2
    if len(numbers) == 2:  # the journal goes back to the older one
        assert min(int(p.stem[-20:]) for p in (folder / "journal").iterdir()) == numbers[0]
    with life(folder) as store:
        assert state_of(store) == expected


def test_a_trainers_freeze_has_the_server_write_a_checkpoint(tmp_path, wait_until):
    folder = tmp_path / "data"
    with life(folder, journal_limit=4000) as store:
        store.create_table(SPECS["user"], alone(store))
        route = store.route.fingerprint_of(store.id)
        store.release(store.freeze(route))
        assert checkpoint_numbers(folder / "checkpoints") == [], "there is little to cut off"
        store.push(route, {"user": gradients_of(1)}, step=1)
        store.release(store.freeze(route))
        wait_until(lambda: checkpoint_numbers(folder / "checkpoints") == [3])


def damaged(folder, pattern):
    (path, *_) = sorted(folder.rglob(pattern), reverse=True)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    return path


def two_checkpoints(folder):
    """A server with two checkpoints and some records behind them; returns its state."""
    with life(folder) as store:
        store.create_table(SPECS["user"], alone(store))
        for sequence in range(1, 7):
            store.push(
                store.route.fingerprint_of(store.id),
                {"user": gradients_of(sequence)},
                step=sequence,
                origin=Origin(7, sequence),
            )
            if sequence in (2, 4):
                store.durable._write_checkpoint()
        return state_of(store)


def test_an_older_checkpoint_and_the_journal_make_up_for_one_that_is_damaged(tmp_path, caplog):
    expected = two_checkpoints(tmp_path / "data")
    assert checkpoint_numbers(tmp_path / "data" / "checkpoints") == [4, 6]
    path = damaged(tmp_path / "data" / "checkpoints", "*.arrow")
    assert "checkpoint-00000000000000000006" in str(path)
    with life(tmp_path / "data") as store:
        assert state_of(store) == expected
    assert str(path) in caplog.text


def test_all_tables_come_back_from_all_files_of_a_checkpoint(tmp_path):
    folder = tmp_path / "data"
    with life(folder) as store:
        for name in ("user", "item"):
            store.create_table(SPECS[name], alone(store))
        keys = np.arange(300, dtype=np.uint64)
        gradients = {n: (keys, np.ones((300, SPECS[n].dim), np.float32)) for n in ("user", "item")}
        store.push(store.share[1], gradients, step=5)
        store.durable._write_checkpoint()
        expected = state_of(store)
    assert {len(list(path.iterdir())) for path in folder.rglob("tables/*")} == {16}
    with life(folder) as store:
        assert state_of(store) == expected
        assert [stats.last_step for stats in store.stats()] == [5, 5]


def test_of_equal_keys_in_a_load_the_last_one_stays_also_after_a_kill(tmp_path):
    paths = []
    for number in range(3):
        other = Store()
        other.create_table(SPECS["ad"], alone(other))
        gradients = np.full((1, 1), number, np.float32)
        other.push(other.share[1], {"ad": (np.zeros(1, np.uint64), gradients)}, step=1)
        ((_, data),) = other.save(other.share[1], "ad")
        paths.append(tmp_path / f"{number}")
        paths[-1].write_bytes(data)
        last = pushed_rows(other, "ad").weights
    with life(tmp_path / "data") as store:
        store.create_table(SPECS["ad"], alone(store))
        store.load(store.share[1], "ad", paths)
        np.testing.assert_array_equal(pushed_rows(store, "ad").weights, last)
    with life(tmp_path / "data") as store:
        np.testing.assert_array_equal(pushed_rows(store, "ad").weights, last)


def test_a_snapshot_that_was_never_one_is_an_error_that_names_it(tmp_path):
    folder = tmp_path / "data"
    two_checkpoints(folder)
    found = newest_checkpoint(folder / "checkpoints", first_record=1)
    tables = [("user", [("buckets-0000-4095.arrow", b"it is as it was written")])]
    write_checkpoint(folder / "checkpoints", 8, Contents(found.state, found.arrays, tables))
    with pytest.raises(SnapshotError, match="0008/tables/user/buckets-0000"), life(folder):
        pass


def test_what_nothing_makes_up_for_is_an_error_that_names_the_file(tmp_path):
    folder = tmp_path / "data"
    two_checkpoints(folder)
    first = damaged(folder / "checkpoints", "*.arrow")
    copy = shutil.copytree(folder, tmp_path / "copy")
    second = damaged(copy / "checkpoints" / "checkpoint-00000000000000000004", "manifest.json")
    assert second.exists()
    with pytest.raises(CheckpointError, match=first.name), life(copy):
        pass
    segment = damaged(folder / "journal", "journal-*4.log")
    with pytest.raises(JournalError, match=str(segment)), life(folder):
        pass


@pytest.mark.parametrize("missing", ["journal", "server.json", "both"])
def test_a_folder_with_a_part_missing_is_refused(tmp_path, missing):
    folder = tmp_path / "data"
    two_checkpoints(folder)
    if missing in ("journal", "both"):
        shutil.rmtree(folder / "journal")
    if missing in ("server.json", "both"):
        (folder / "server.json").unlink()
    with pytest.raises(JournalError, match=r"put (it )?back.*empty --data-dir"), life(folder):
        pass


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "x", "id": "y"}', '{"id": 3}'])
def test_a_damaged_identity_is_refused(tmp_path, text):
    two_checkpoints(tmp_path / "data")
    (tmp_path / "data/server.json").write_text(text)
    with pytest.raises(JournalError, match=r"must be in .*server\.json"):
        Identity(tmp_path / "data")


def test_the_id_is_kept_where_a_human_reads_it(tmp_path):
    with life(tmp_path / "data") as store:
        first = store.id
    assert json.loads((tmp_path / "data/server.json").read_text())["id"] == first
    with life(tmp_path / "data") as store:
        assert store.id == first


def test_recovery_says_what_it_did(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    two_checkpoints(tmp_path / "data")
    caplog.clear()
    with life(tmp_path / "data"):
        pass
    (said,) = [r.getMessage() for r in caplog.records if "recovered" in r.getMessage()]
    assert re.fullmatch(
        r"recovered server \w+, \d+ rows: checkpoint 6 in \d\.\d+ s, 2 records in \d\.\d+ s", said
    )


def test_full_disk_refuses_a_push_and_takes_it_when_there_is_room(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with life(tmp_path / "data") as store:
        store.create_table(SPECS["user"], alone(store))
        route, origin = store.route.fingerprint_of(store.id), Origin(7, 1)
        expected = state_of(store)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(NotLogged, match="make room on the disk"):
                store.push(route, {"user": gradients_of(1)}, step=1, origin=origin)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert state_of(store) == expected
        store.push(route, {"user": gradients_of(1)}, step=1, origin=origin)
        assert store.stats()[0].num_rows > 0
        expected = state_of(store)
    with life(tmp_path / "data") as store:
        assert state_of(store) == expected


def test_a_push_that_outlives_the_stop_is_told_so_and_is_nowhere(tmp_path):
    with life(tmp_path / "data") as store:
        store.create_table(SPECS["user"], alone(store))
        expected = state_of(store)
    with pytest.raises(Stopping):  # UNAVAILABLE: its disk is not full
        store.push(
            store.route.fingerprint_of(store.id),
            {"user": gradients_of(1)},
            step=1,
            origin=Origin(7, 1),
        )
    with life(tmp_path / "data") as store:
        assert state_of(store) == expected


@pytest.mark.parametrize("name", ["server.json", "journal", "checkpoints"])
def test_what_a_durable_server_left_is_refused_to_one_without_a_journal(tmp_path, name):
    refuse_data(tmp_path)
    (tmp_path / "lock").touch()
    refuse_data(tmp_path)
    two_checkpoints(tmp_path / "data")
    (tmp_path / "data" / name).rename(tmp_path / name)
    with pytest.raises(JournalError, match=f"got {name} in {tmp_path}; go on with them by --dur"):
        refuse_data(tmp_path)


def test_checkpoint_that_fails_leaves_the_journal_and_is_tried_again(tmp_path, caplog, wait_until):
    folder = tmp_path / "data"
    with life(folder, journal_limit=10_000) as store:
        store.create_table(SPECS["user"], alone(store))
        route = store.route.fingerprint_of(store.id)
        (folder / "checkpoints").write_text("no folder")
        sequence = 0
        while "no checkpoint could be written" not in caplog.text:
            sequence += 1
            store.push(route, {"user": gradients_of(sequence)}, step=1)
        (folder / "checkpoints").unlink()
        while not checkpoint_numbers(folder / "checkpoints"):
            sequence += 1
            store.push(route, {"user": gradients_of(sequence)}, step=1)
        expected = state_of(store)
    with life(folder) as store:
        assert state_of(store) == expected


# Real processes


class Cluster:
    """A server that is killed and started again, on another port each time."""

    def __init__(self, daemon, folder, *arguments):
        self.start = lambda: daemon(
            "--data-dir", str(folder), "--durability", "process", *arguments
        )
        self.changed = threading.Condition()
        self.daemon = self.start()
        self.life = 1

    def kill(self):
        self.daemon.process.kill()
        self.daemon.process.wait()
        following = self.start()
        with self.changed:
            self.daemon, self.life = following, self.life + 1
            self.changed.notify_all()

    def after(self, life):
        """Waits for another life than this; returns it and its address."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.life > life, LATER)
            return self.life, self.daemon.address


class Worker:
    """A client that repeats what was not answered, by its number and sequence."""

    def __init__(self, cluster, number, rank=None, num_workers=1):
        self.cluster, self.number, self.rank, self.num_workers = cluster, number, rank, num_workers
        self.life, self.stream = 0, None
        self.channel = None
        self.is_back = []
        self.connect()

    def connect(self):
        self.life, address = self.cluster.after(self.life)
        self.close()
        self.channel = grpc.insecure_channel(address)
        self.stub = ps_pb2_grpc.ParameterServerStub(self.channel)
        if self.rank is not None:
            self.stream = self.stub.Join(
                ps_pb2.JoinRequest(
                    rank=self.rank,
                    num_workers=self.num_workers,
                    name=f"here:{self.rank}",
                    worker=self.number,
                )
            )
            self.is_back.append(next(self.stream).is_back)

    def call(self, method, request):
        while True:
            try:
                return getattr(self.stub, method)(request, timeout=LATER)
            except grpc.RpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                    raise
            with suppress(grpc.RpcError):  # it may be killed again meanwhile
                self.connect()

    def create(self, spec):
        self.server_id = self.call("Stats", ps_pb2.StatsRequest()).server_id
        route = Route((ServerRef(self.server_id, "here:1"),))
        self.route = route.fingerprints[0]
        self.call(
            "CreateTable",
            ps_pb2.CreateTableRequest(spec=spec_to_message(spec), route=route_to_message(route)),
        )

    def push(self, sequence, keys, gradients, **fields):
        part = ps_pb2.TableGradients(
            table="user", keys=keys.tobytes(), gradients=gradients.tobytes()
        )
        request = ps_pb2.PushRequest(
            route=self.route,
            step=sequence,
            tables=[part],
            rank=self.rank,
            worker=self.number,
            sequence=sequence,
            **fields,
        )
        self.call("Push", request)

    def pull(self, keys, **fields):
        part = ps_pb2.TableKeys(table="user", keys=keys.tobytes())
        request = ps_pb2.PullRequest(route=self.route, insert=True, tables=[part], **fields)
        if self.rank is not None:
            request.rank = self.rank
        (data,) = self.call("Pull", request).rows
        return data

    def close(self):
        if self.channel is not None:
            self.channel.close()


def in_threads(*works):
    """Runs them at once; the first exception is raised."""
    failures = []

    def run(work):
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LATER)
    if failures:
        raise failures[0]


ALL_KEYS = np.arange(300, dtype=np.uint64)


def killed_at(cluster, moments, answered):
    """Kills the server each time that so many pushes have been answered."""

    def run():
        for moment in moments:
            for _ in range(moment):
                assert answered.acquire(timeout=LATER)
            cluster.kill()

    return run


def test_kills_at_random_moments_lose_nothing_and_double_nothing(daemon, tmp_path):
    cluster = Cluster(daemon, tmp_path / "data", "--journal-limit", "200KiB")
    worker, answered = Worker(cluster, number=11), threading.Semaphore(0)
    worker.create(SPECS["user"])

    def push():
        for sequence in range(1, 401):
            worker.push(sequence, *gradients_of(sequence))
            answered.release()

    moments = np.random.default_rng(3).integers(20, 110, 4).tolist()
    in_threads(push, killed_at(cluster, moments, answered))
    found = worker.pull(ALL_KEYS)
    undisturbed = Store()
    undisturbed.create_table(SPECS["user"], alone(undisturbed))
    route = undisturbed.route.fingerprint_of(undisturbed.id)
    for sequence in range(1, 401):
        undisturbed.push(route, {"user": gradients_of(sequence)}, step=sequence)
    (expected,) = undisturbed.pull(route, {"user": ALL_KEYS}, insert=True)
    assert found == expected.tobytes()
    assert cluster.life == 5
    stats = worker.call("Stats", ps_pb2.StatsRequest())
    assert stats.is_durable
    assert stats.server_id == worker.server_id
    worker.close()


def run_job(daemon, tmp_path, spec, push):
    """Two workers push 60 steps each while the server is killed twice; returns all rows."""
    cluster = Cluster(daemon, tmp_path / "data")
    answered = threading.Semaphore(0)
    workers = [Worker(cluster, 21 + rank, rank, num_workers=2) for rank in range(2)]
    for worker in workers:
        worker.create(spec)
        worker.call("SetClock", ps_pb2.SetClockRequest(rank=worker.rank, first_step=0))

    def train(worker):
        for step in range(1, 61):
            push(worker, step)
            answered.release()

    in_threads(
        lambda: train(workers[0]),
        lambda: train(workers[1]),
        killed_at(cluster, [31, 45], answered),
    )
    found = workers[0].pull(ALL_KEYS)
    for worker in workers:
        assert worker.is_back[0] is False
        assert worker.is_back[1:] == [True, True]
        worker.close()
    cluster.daemon.signal(signal.SIGTERM)
    assert cluster.daemon.process.wait(LATER) == 0
    return found


def test_two_bounded_workers_come_back_with_their_clocks(daemon, tmp_path):
    spec = TableSpec("user", 1, SGD(1.0))

    def whole(rank, step):  # sums of integers are exact: the same in any order
        keys = ALL_KEYS[(rank + step) % 7 :: 3]
        return keys, np.full((len(keys), 1), step % 5 + 1, np.float32)

    def push(worker, step):
        worker.pull(ALL_KEYS[:5], after_step=max(step - 3, 0))
        worker.push(step, *whole(worker.rank, step))

    found = run_job(daemon, tmp_path, spec, push)
    undisturbed = Store()
    undisturbed.create_table(spec, alone(undisturbed))
    route = undisturbed.route.fingerprint_of(undisturbed.id)
    (start,) = undisturbed.pull(route, {"user": ALL_KEYS}, insert=True)
    expected = start.astype(np.float64)
    for step in range(1, 61):
        for rank in range(2):
            keys, gradients = whole(rank, step)
            expected[keys] -= gradients
    assert np.allclose(np.frombuffer(found, np.float32), expected.ravel(), rtol=0, atol=1e-4)
    assert len({*expected.ravel().round(2)}) > 5


def test_parts_of_a_step_are_applied_once(daemon, tmp_path):
    def push(worker, step):
        worker.push(step, *gradients_of(1000 * worker.rank + step), weight=1.0 + worker.rank)

    found = run_job(daemon, tmp_path, SPECS["user"], push)
    undisturbed = Store()
    undisturbed.create_table(SPECS["user"], alone(undisturbed))
    route = undisturbed.route.fingerprint_of(undisturbed.id)
    for step in range(1, 61):
        parts = [gradients_of(1000 * rank + step) for rank in range(2)]
        shares = [np.float32(1 / 3), np.float32(2 / 3)]
        keys = np.concatenate([keys for keys, _ in parts])
        scaled = [g * share for (_, g), share in zip(parts, shares, strict=True)]
        undisturbed.push(route, {"user": (keys, np.concatenate(scaled))}, step=step)
    (expected,) = undisturbed.pull(route, {"user": ALL_KEYS}, insert=True)
    assert found == expected.tobytes()


def test_full_disk_of_a_process_is_resource_exhausted(daemon, tmp_path):
    cluster = Cluster(daemon, tmp_path / "data")
    worker = Worker(cluster, number=11)
    worker.create(SPECS["user"])
    process = cluster.daemon.process.pid
    worker.push(1, *gradients_of(1))
    _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (4000, hard))
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        worker.push(2, *gradients_of(2, num_keys=500))
    resource.prlimit(process, resource.RLIMIT_FSIZE, (hard, hard))
    worker.push(2, *gradients_of(2, num_keys=500))
    found = worker.pull(ALL_KEYS)
    cluster.kill()
    assert worker.pull(ALL_KEYS) == found
    worker.close()


def test_durability_needs_a_folder(spawn):
    daemon = spawn("--durability", "process")
    assert daemon.process.wait(LATER) == 2
    assert "--durability process needs a folder that the next start finds again" in daemon.stderr()


def test_a_server_without_a_journal_leaves_a_durable_ones_folder_alone(spawn, tmp_path):
    folder = tmp_path / "data"
    two_checkpoints(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    daemon = spawn("--data-dir", str(folder), "--listen", "127.0.0.1:0")
    assert daemon.process.wait(LATER) == 1
    assert "ps-server: error: a server without a journal needs a folder" in daemon.stderr()
    after = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {**before, folder / "lock": b""} == after


def test_damaged_journal_ends_the_process_with_file_and_byte(spawn, tmp_path):
    folder = tmp_path / "data"
    two_checkpoints(folder)
    segment = folder / "journal" / "journal-00000000000000000006.log"
    data = bytearray(segment.read_bytes())
    data[100] ^= 1  # of the first of two records
    segment.write_bytes(data)
    daemon = spawn("--data-dir", str(folder), "--durability", "process", "--listen", "127.0.0.1:0")
    assert daemon.process.wait(LATER) == 1
    where = f"number 6 at byte 0 of {segment}"
    assert "ps-server: error: a journal must hold whole records, got a damaged" in daemon.stderr()
    assert where in daemon.stderr()


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--journal-limit", "3parsecs"], "a size is a number and B, KiB, MiB, GiB, TiB"),
        (["--journal-limit", "GiB"], "a size is a number and B, KiB, MiB, GiB, TiB"),
        (["--rejoin-seconds", "-1"], "seconds are a number from 0 on, got '-1'"),
        (["--rejoin-seconds", "inf"], "seconds are a number from 0 on, got 'inf'"),
        (["--durability", "power"], "invalid choice: 'power'"),
    ],
)
def test_wrong_flags_are_refused(capsys, flags, text):
    with pytest.raises(SystemExit) as raised:
        run(flags)
    assert raised.value.code == 2
    assert text in capsys.readouterr().err
