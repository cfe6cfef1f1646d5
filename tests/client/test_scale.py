"""Buckets move while clients pull and push: every row is as if they had stayed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice

import numpy as np
import pyarrow as pa
import pytest

from hetero_pipe.client import Client
from hetero_pipe.client.patience import Retry
from hetero_pipe.client.scale import move_buckets
from hetero_pipe.client.transport.grpc import GrpcTransport
from hetero_pipe.errors import ConfigError, ServerError
from ps_server.route import ServerRef
from ps_server.server import Server
from ps_server.spec import Adagrad, Adam, TableSpec
from ps_server.wire import ps_pb2, ps_pb2_grpc

LATER = 30.0
SPECS = [TableSpec("user", 2, Adagrad(0.1)), TableSpec("item", 3, Adam(0.01))]
KEYS = np.arange(20_000, dtype=np.uint64)
BATCH = 2_000


def patient():
    return Retry(LATER, np.random.default_rng(0))


@pytest.fixture
def durable(tmp_path):
    """Returns a function that starts a durable server, and stops those that were."""
    with ExitStack() as stack:
        started = []

        def start(number):
            for _ in range(number):
                server = Server(
                    "127.0.0.1:0",
                    data_dir=tmp_path / f"server-{len(started)}",
                    journal_limit=1 << 30,
                    rejoin_seconds=LATER,
                )
                started.append(stack.enter_context(server).address)
            return started

        yield start


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def step_of(client, step, *, rank=0, weight=None, after_step=None):
    """Pulls and pushes the batch of a step: gradients are a function of rows and step."""
    rng = np.random.default_rng([step, rank])
    keys = {spec.name: client.route(rng.choice(KEYS, BATCH)) for spec in SPECS}
    rows = client.pull(keys, insert=True, after_step=after_step)
    gradients = {name: 0.1 * rows[name] + np.float32(step) for name in rows}
    client.push(keys, gradients, step=step, weight=weight)


def rows_of(client):
    """Returns every row with all that it has, by table and key."""
    found, freeze = {}, client.freeze()
    for spec in SPECS:
        for _, pieces in client.save(spec.name, freeze=freeze):
            table = pa.ipc.open_file(pa.py_buffer(b"".join(pieces))).read_all()
            for row in table.to_pylist():
                key = (spec.name, row.pop("key"))
                assert key not in found, "a row is on two servers"
                found[key] = row
    return found


def undisturbed(num_steps):
    with Client(None) as client:
        client.attach(SPECS)
        for step in range(1, num_steps + 1):
            step_of(client, step)
        return rows_of(client)


class Training:
    """Steps of a client in a thread of its own, until it is told to stop."""

    def __init__(self, client, threads, **options):
        self.client = client
        self.num_steps = 0
        self.has_moved_on = threading.Condition()
        self.is_over = False
        self.options = options
        self.done = threads.submit(self.run)

    def run(self):
        while not self.is_over:
            step_of(self.client, self.num_steps + 1, **self.options)
            with self.has_moved_on:
                self.num_steps += 1
                self.has_moved_on.notify_all()
        return self.num_steps

    def go_on(self, number):
        """Waits until it has made so many steps more."""
        wanted = self.num_steps + number
        with self.has_moved_on:
            assert self.has_moved_on.wait_for(
                lambda: self.done.done() or self.num_steps >= wanted, LATER
            )
        assert not self.done.done(), self.done.result()

    def stop(self):
        self.is_over = True
        return self.done.result(LATER)


def test_rows_are_as_if_buckets_had_stayed_while_servers_come_and_go(durable, threads):
    addresses = durable(2)
    with Client(addresses) as client:
        client.attach(SPECS)
        training = Training(client, threads)
        training.go_on(3)
        addresses = durable(1)
        out = move_buckets(addresses, 3, retry=patient())
        training.go_on(3)
        assert set(client.addresses) == set(addresses)
        back = move_buckets(addresses, 2, retry=patient())
        training.go_on(3)
        last = move_buckets(addresses[:2], 1, retry=patient())
        training.go_on(3)
        num_steps = training.stop()
        assert client.addresses == (addresses[0],)
        assert (out.num_buckets, back.num_buckets, last.num_buckets) == (1365, 1365, 2048)
        assert rows_of(client) == undisturbed(num_steps)
        assert sum(client.num_rows().values()) == len(undisturbed(num_steps))
    with Client(addresses) as late:  # that names servers which own nothing
        late.attach(SPECS)
        assert rows_of(late) == undisturbed(num_steps)


def in_step(addresses, threads, *, num_steps, meanwhile=lambda wait: None):
    """Trains by two workers that push the parts of each step together; returns all rows."""
    reached = threading.Condition()
    at = [0, 0]
    begun = threading.Barrier(2)

    def work(rank):
        with Client(addresses) as client:
            client.attach(SPECS)
            client.join(rank=rank, num_workers=2)
            client.begin(0)
            begun.wait(LATER)
            for step in range(1, num_steps + 1):
                step_of(client, step, rank=rank, weight=1.0 + rank, after_step=step - 1)
                with reached:
                    at[rank] = step
                    reached.notify_all()
            client.end()
            rows = rows_of(client) if rank == 0 else None
            client.goodbye()
            return rows

    def wait(step):
        with reached:
            assert reached.wait_for(lambda: min(at) >= step or first.done(), LATER)

    with Client(addresses) as client:
        client.attach(SPECS)
    first, second = threads.submit(work, 0), threads.submit(work, 1)
    meanwhile(wait)
    second.result(LATER)
    return first.result(LATER)


def test_workers_that_push_parts_of_a_step_keep_step_while_buckets_move(durable, servers, threads):
    addresses = durable(2)

    def scale(wait):
        wait(3)
        move_buckets(durable(1), 3, retry=patient())
        wait(10)
        move_buckets(addresses, 1, retry=patient())

    expected = in_step(servers(2), threads, num_steps=60)
    assert in_step(addresses, threads, num_steps=60, meanwhile=scale) == expected


class Drive:
    """The calls of a move, made one by one, by a driver that may die after any of them."""

    def __init__(self, source, target, num_buckets):
        self.source, self.target = GrpcTransport(source), GrpcTransport(target)
        self.moves = {t: ps_pb2_grpc.MovesStub(t.channel) for t in (self.source, self.target)}
        self.route = self.source.stats().result().route
        ref = self.target.stats().result()
        self.ref = ps_pb2.ServerRef(id=ref.id, address=target)
        self.route = self.route.with_server(ServerRef(ref.id, target))
        for stats in self.source.stats().result().tables.values():
            self.target.create_table(stats.spec, self.route).result()
        me = self.source.stats().result().id
        owned = self.route.buckets_of(me)[:num_buckets]
        self.buckets = owned.astype(np.uint16).tobytes()
        self.share = self.route.fingerprint_of(me)

    def __iter__(self):
        source, target = self.moves[self.source], self.moves[self.target]
        pieces = list(source.Copy(ps_pb2.CopyRequest(route=self.share, buckets=self.buckets)))
        move = pieces[0].move
        yield
        staged = [ps_pb2.StageRequest(table=p.table, name=p.name, data=p.data) for p in pieces[1:]]
        first = ps_pb2.StageRequest(move=move, buckets=self.buckets)
        target.Stage(iter([first, *staged, ps_pb2.StageRequest()]))
        yield
        tail = source.CatchUp(ps_pb2.CatchUpRequest(move=move, start=0))
        target.StagePushes(ps_pb2.StagePushesRequest(move=move, start=0, pushes=tail.pushes))
        num = len(tail.pushes)
        yield
        tail = source.Hold(ps_pb2.HoldRequest(move=move, start=num, seconds=0.2))
        yield
        target.Prepare(ps_pb2.PrepareRequest(start=num, pushes=tail.pushes, prepared=tail.prepared))
        yield
        source.Give(ps_pb2.GiveRequest(move=move, target=self.ref))
        yield

    def close(self):
        for transport in self.moves:
            transport.close()


@pytest.mark.parametrize(
    "num_calls", [pytest.param(n, marks=[pytest.mark.long] * (n in (1, 3))) for n in range(1, 7)]
)
def test_a_driver_that_dies_after_any_call_is_begun_again_and_training_goes_on(
    durable, threads, num_calls
):
    addresses = durable(2)
    with Client(addresses[:1]) as client:
        client.attach(SPECS)
        training = Training(client, threads)
        training.go_on(2)
        drive = Drive(*addresses, 100)
        for _ in islice(drive, num_calls):
            pass
        drive.close()
        training.go_on(2)  # nobody has to come back for that
        done = move_buckets(addresses, 2, retry=patient())
        training.go_on(2)
        num_steps = training.stop()
        assert rows_of(client) == undisturbed(num_steps)
        assert done.num_buckets == 2048 - 100 * (num_calls == 6)  # what was given is taken
        shares = [len(done.route.buckets_of(server.id)) for server in done.route.servers]
        assert shares == [2048, 2048]


def test_what_was_given_while_all_others_slept_is_taken_by_the_next_driver(durable):
    addresses = durable(2)
    with Client(addresses[:1]) as client:
        client.attach(SPECS)
        step_of(client, 1)
        drive = Drive(*addresses, 100)
        for _ in drive:
            pass
        drive.close()
        assert move_buckets(addresses, 2, retry=patient()).num_buckets == 1948
        step_of(client, 2)
        assert rows_of(client) == undisturbed(2)


def test_a_client_that_had_not_heard_goes_on_without_a_server_that_has_left(tmp_path):
    """It has not joined, so nobody waited for it; and what it knows of is not there any more."""
    with ExitStack() as stack:
        servers = [
            Server("127.0.0.1:0", data_dir=tmp_path / name, journal_limit=1 << 30)
            for name in ("stays", "leaves")
        ]
        stays = stack.enter_context(servers[0]).address
        with Client([stays, servers[1].__enter__().address]) as client:
            client.attach(SPECS)
            step_of(client, 1)
            try:
                move_buckets([stays, servers[1].address], 1, retry=patient())
            finally:
                servers[1].__exit__(None, None, None)
            step_of(client, 2)
            assert client.addresses == (stays,)
            assert rows_of(client) == undisturbed(2)


def test_servers_that_are_missing_or_hold_nothing_are_named(durable):
    addresses = durable(3)
    with pytest.raises(ConfigError, match=r"got none on .*; wait until training has begun"):
        move_buckets(addresses[:1], 1, retry=patient())
    with Client(addresses[:2]) as client:
        client.attach(SPECS)
    with pytest.raises(ConfigError, match=f"got none for {addresses[1]} among {addresses[0]}"):
        move_buckets(addresses[:1], 1, retry=patient())
    with pytest.raises(ConfigError, match="1 to 2 servers, got num_owners=3"):
        move_buckets(addresses[:2], 3, retry=patient())


def test_a_server_without_a_journal_gives_nothing(servers):
    addresses = servers(2)
    with Client(addresses[:1]) as client:
        client.attach(SPECS)
        impatient = Retry(0.0, np.random.default_rng(0))
        with pytest.raises(ServerError, match="--durability process"):
            move_buckets(addresses, 2, retry=impatient)
        step_of(client, 1)
