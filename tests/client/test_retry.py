"""Clients ride through: what is cut, lost or away for a while leaves no trace in the rows."""

import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from hetero_pipe.client import Client
from hetero_pipe.errors import ServerError, ServerUnavailable, TableNotFound
from ps_server.server import Server
from ps_server.spec import Adagrad, TableSpec
from ps_server.store import Store
from tests.faults import Proxy

LATER = 30.0
SOON = 0.05
SPEC = TableSpec("user", 2, Adagrad(0.1))
KEYS = np.arange(100, dtype=np.uint64)


@pytest.fixture
def durable(monkeypatch):
    """Servers of this process that say that they come back: their connections break, not they."""
    monkeypatch.setattr(Store, "is_durable", True)


@pytest.fixture
def proxies(durable, servers):
    """Returns a function that starts n servers, each behind a proxy."""
    started = []

    def start(number):
        started.extend(Proxy(address) for address in servers(number))
        return started

    yield start
    for proxy in started:
        proxy.close()


@pytest.fixture
def proxy(proxies):
    return proxies(1)[0]


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def away(caplog):
    """Returns an event that is set when a client has said what it waits for."""
    caplog.set_level(logging.INFO, logger="hetero_pipe.client")
    told = threading.Event()
    handler = logging.Handler()
    handler.emit = lambda record: told.set() if record.levelno == logging.WARNING else None
    logger = logging.getLogger("hetero_pipe.client")
    logger.addHandler(handler)
    yield told
    logger.removeHandler(handler)


def connect(*proxies, **options):
    client = Client([proxy.address for proxy in proxies], **options)
    client.attach([SPEC])
    return client


def gradients_of(step, keys=KEYS):
    values = np.random.default_rng(step).standard_normal((len(KEYS), 2)).astype(np.float32)
    return values[keys.astype(int)]


def push(client, step, **options):
    routed = client.route(KEYS)
    gradients = gradients_of(step, routed.keys)
    client.push({"user": routed}, {"user": gradients}, step=step, **options)


def rows_of(client):
    routed = client.route(KEYS)
    return client.pull({"user": routed}, insert=False)["user"][routed.inverse]


def undisturbed(num_steps):
    with Client(None) as client:
        client.attach([SPEC])
        for step in range(1, num_steps + 1):
            push(client, step)
        return rows_of(client)


def test_a_cut_connection_is_made_anew_and_said(proxy, away, caplog):
    with connect(proxy) as client:
        proxy.cut()
        proxy.refuse()
        with ThreadPoolExecutor(1) as threads:
            pushing = threads.submit(push, client, 1)
            assert away.wait(LATER)
            proxy.refuse(refuses=False)
            pushing.result(LATER)
        assert np.array_equal(rows_of(client), undisturbed(1))
    warning, info = caplog.records
    assert warning.levelname == "WARNING"
    assert warning.getMessage().startswith(f"server {proxy.address} is away (UNAVAILABLE: ")
    assert warning.getMessage().endswith("): training waits up to 120 s for it")
    assert info.getMessage().startswith(f"server {proxy.address} is back after ")


def test_calls_under_way_at_once_share_one_new_connection(proxy, threads, away, caplog):
    with connect(proxy) as client:
        proxy.drop_replies()
        pulls = [threads.submit(rows_of, client) for _ in range(6)]
        proxy.wait_for_lost()
        proxy.cut()
        for pull in pulls:
            assert pull.result(LATER).shape == (len(KEYS), 2)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_every_call_whose_answer_is_lost_is_made_again(proxy, threads, away, caplog, tmp_path):
    with connect(proxy) as client:
        push(client, 1)
        expected = rows_of(client)

        def save():
            tmp_path.joinpath("saved").mkdir(exist_ok=True)
            for name, pieces in client.save("user"):
                tmp_path.joinpath("saved", name).write_bytes(b"".join(pieces))

        calls = [
            save,
            lambda: client.load("user", sorted(tmp_path.joinpath("saved").iterdir())),
            lambda: client.attach([SPEC]),
            client.num_rows,
            client.start_trace,
            client.stop_trace,
            client.clock_ahead,
        ]
        for number, call in enumerate(calls, start=1):
            proxy.drop_replies()
            calling = threads.submit(call)
            proxy.wait_for_lost()
            proxy.cut()
            calling.result(LATER)
            assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * number
        assert np.array_equal(rows_of(client), expected)
        client.attach([SPEC], fresh=True)
        assert client.num_rows() == {"user": 0}


def test_a_table_keeps_its_identity_over_a_cut(proxies):
    """One that another trainer dropped meanwhile, and created anew, is not taken for it."""
    (proxy,) = proxies(1)
    with connect(proxy) as client, Client([proxy.target]) as other:
        other.attach([SPEC], fresh=True)
        proxy.cut()
        with pytest.raises(TableNotFound):
            push(client, 1)


def test_a_server_that_is_not_durable_fails_at_once(servers):
    with Proxy(servers(1)[0]) as proxy, connect(proxy) as client:
        proxy.refuse()
        proxy.cut()
        with pytest.raises(ServerUnavailable, match="if it was lost, so are its rows"):
            rows_of(client)


def test_without_seconds_to_retry_a_durable_one_does_too(proxy):
    with connect(proxy, retry_seconds=0) as client:
        proxy.refuse()
        proxy.cut()
        with pytest.raises(ServerUnavailable, match="ps-server --listen"):
            rows_of(client)


def test_a_server_that_stays_away_is_given_up(proxy):
    with connect(proxy, retry_seconds=0.2) as client:
        proxy.refuse()
        proxy.cut()
        with pytest.raises(ServerUnavailable) as raised:
            rows_of(client)
        said = str(raised.value)
        assert said.startswith(f"server {proxy.address} must be back within 200 ms, got UNAVAILABLE")
        assert "--data-dir" in said
        assert "--retry-seconds" in said
        proxy.refuse(refuses=False)
        rows_of(client)  # each call has its own patience


def test_a_server_that_lost_its_rows_is_not_taken_for_itself(proxy, servers):
    with connect(proxy) as client:
        proxy.target = servers(1)[0]
        proxy.cut()
        with pytest.raises(ServerError, match=r"must be the one that holds the rows.*got id") as it:
            rows_of(client)
        assert not isinstance(it.value, ServerUnavailable)


def test_a_reply_that_never_comes_is_asked_for_again(proxy, monkeypatch):
    """The connection lives and is silent, as that of a process that is stopped."""
    monkeypatch.setattr("hetero_pipe.client.link.ATTEMPT_SECONDS", 0.3)
    with connect(proxy) as client:
        proxy.drop_replies()
        assert rows_of(client).shape == (len(KEYS), 2)
        assert proxy.num_connections == 2


@pytest.mark.parametrize("moment", ["away", "silent"])
def test_close_ends_the_wait(proxy, threads, away, moment):
    client = connect(proxy)
    if moment == "away":
        proxy.refuse()
        proxy.cut()
        waits = [threads.submit(rows_of, client) for _ in range(3)]
        assert away.wait(LATER)
    else:
        proxy.drop_replies()
        waits = [threads.submit(rows_of, client) for _ in range(3)]
        proxy.wait_for_lost()
    client.close()
    for wait in waits:
        with pytest.raises(ServerUnavailable):
            wait.result(LATER)


def test_ctrl_c_ends_the_wait(proxy, away):
    main = threading.main_thread()

    def interrupt():
        assert away.wait(LATER)
        signal.pthread_kill(main.ident, signal.SIGINT)

    with connect(proxy) as client:
        proxy.refuse()
        proxy.cut()
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            rows_of(client)
        thread.join(LATER)


def test_a_full_disk_is_waited_for_on_the_same_connection(proxy, monkeypatch, away, caplog):
    push_of_store, refusals = Store.push, iter(range(2))

    def full(self, *arguments, **options):
        if next(refusals, None) is not None:
            raise MemoryError("no space left on device")
        return push_of_store(self, *arguments, **options)

    monkeypatch.setattr(Store, "push", full)
    with connect(proxy) as client:
        push(client, 1)
        assert proxy.num_connections == 1
        assert np.array_equal(rows_of(client), undisturbed(1))
    assert "refuses a call (RESOURCE_EXHAUSTED: no space left" in caplog.messages[0]


def test_a_disk_that_stays_full_is_named(proxy, monkeypatch):
    def full(self, *arguments, **options):
        raise MemoryError("no space left on device")

    monkeypatch.setattr(Store, "push", full)
    with connect(proxy, retry_seconds=0.2) as client, pytest.raises(ServerError, match="no space"):
        push(client, 1)
