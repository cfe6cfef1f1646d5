"""Buckets move while clients pull and push: every row is as if they had stayed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pyarrow as pa
import pytest

from hetero_pipe.client import Client
from hetero_pipe.client.patience import Retry
from hetero_pipe.client.scale import rebalance
from hetero_pipe.errors import ConfigError, ServerError
from ps_server.keys import bucket_of
from ps_server.server import Server
from ps_server.spec import Adagrad, Adam, TableSpec

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
    found = {}
    for spec in SPECS:
        for _, pieces in client.save(spec.name):
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
        out = rebalance(addresses, 3, retry=patient())
        training.go_on(3)
        assert client.addresses == tuple(client.addresses) and len(client.addresses) == 3
        back = rebalance(addresses, 2, retry=patient())
        training.go_on(3)
        last = rebalance(addresses[:2], 1, retry=patient())
        training.go_on(3)
        num_steps = training.stop()
        assert client.addresses == (addresses[0],)
        assert (out.num_buckets, back.num_buckets, last.num_buckets) == (1365, 1365, 2048)
        assert rows_of(client) == undisturbed(num_steps)
        assert sum(client.num_rows().values()) == len(undisturbed(num_steps))
    with Client(addresses) as late:  # that names servers which own nothing
        late.attach(SPECS)
        assert rows_of(late) == undisturbed(num_steps)
