"""Clients ride through: what is cut, lost or away for a while leaves no trace in the rows."""

import json
import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from hetero_pipe.client import Client
from hetero_pipe.client.patience import Patience, Retry, delays
from hetero_pipe.errors import (
    ConfigError,
    ServerError,
    ServerUnavailable,
    TableNotFound,
    WorkerLost,
)
from ps_server.server import Server
from ps_server.spec import Adagrad, TableSpec
from ps_server.store import Store
from tests.faults import Proxy

LATER = 30.0
SOON = 0.05
SPEC = TableSpec("user", 2, Adagrad(0.1))
KEYS = np.arange(100, dtype=np.uint64)


@pytest.fixture
def proxies(tmp_path):
    """Returns a function that starts n durable servers, each behind a proxy."""
    started = []
    with ExitStack() as stack:

        def start(number, *, rejoin_seconds=LATER):
            for _ in range(number):
                server = Server(
                    "127.0.0.1:0",
                    data_dir=tmp_path / f"server-{len(started)}",
                    journal_limit=1 << 30,
                    rejoin_seconds=rejoin_seconds,
                )
                started.append(Proxy(stack.enter_context(server).address))
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


def said_by(caplog):
    """What the client's connections said; servers of this process log too."""
    return [record for record in caplog.records if record.name == "hetero_pipe.client.link"]


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
        proxy.refuse()
        proxy.cut()
        with ThreadPoolExecutor(1) as threads:
            pushing = threads.submit(push, client, 1)
            assert away.wait(LATER)
            proxy.refuse(refuses=False)
            pushing.result(LATER)
        assert np.array_equal(rows_of(client), undisturbed(1))
    warning, info = said_by(caplog)
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
    assert [record.levelname for record in said_by(caplog)] == ["WARNING", "INFO"]


def test_every_call_whose_answer_is_lost_is_made_again(proxy, threads, away, caplog, tmp_path):
    with connect(proxy) as client:
        push(client, 1)

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
            lambda: client.join(rank=0, num_workers=1),
            lambda: client.begin(4),
            client.end,
            lambda: client.begin(1),
            lambda: push(client, 2),
            lambda: push(client, 3, weight=1),
            client.goodbye,
        ]
        for number, call in enumerate(calls, start=1):
            proxy.drop_replies()
            calling = threads.submit(call)
            proxy.wait_for_lost()
            proxy.cut()
            calling.result(LATER)
            assert [record.levelname for record in said_by(caplog)] == ["WARNING", "INFO"] * number
        assert np.array_equal(rows_of(client), undisturbed(3))
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
        assert said.startswith(
            f"server {proxy.address} must be back within 200 ms, got UNAVAILABLE"
        )
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
    client = connect(proxy, retry_seconds=15)
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
            wait.result(10)


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
        said = [record.getMessage() for record in said_by(caplog)]
        refused, goes_on = said  # once each, however often it was tried
        assert "refuses a call (RESOURCE_EXHAUSTED: no space left" in refused
        assert goes_on.startswith(f"server {proxy.address} goes on after ")
        rows_of(client)
        push(client, 2)
    assert [record.getMessage() for record in said_by(caplog)] == said


def test_a_disk_that_stays_full_is_named(proxy, monkeypatch):
    def full(self, *arguments, **options):
        raise MemoryError("no space left on device")

    monkeypatch.setattr(Store, "push", full)
    with connect(proxy, retry_seconds=0.2) as client, pytest.raises(ServerError, match="no space"):
        push(client, 1)


# ------------------------------------------------------------------ exactly once


def join(*proxies, rank=0, num_workers=1):
    client = connect(*proxies)
    client.join(rank=rank, num_workers=num_workers, name=f"w{rank}")
    return client


def last_steps(proxies):
    """Returns the last step that each server has applied, asked behind the proxies' backs."""
    with ExitStack() as stack:
        direct = [stack.enter_context(Client([proxy.target])) for proxy in proxies]
        stats = [client._connections[0].control.stats().result() for client in direct]
    return [held.tables["user"].last_step for held in stats]


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_rows_are_those_of_an_undisturbed_run_whatever_is_cut_or_lost(
    proxies, threads, wait_until, joined, seed
):
    rng = np.random.default_rng(seed)
    ways = proxies(3)
    num_steps = 10
    with (join if joined else connect)(*ways) as client:
        if joined:
            client.begin(0)
        for step in range(1, num_steps + 1):
            proxy = ways[rng.integers(3)]
            fault = rng.choice(["none", "cut before", "cut during", "lost", "delayed"])
            proxy.delay = 0.005 if fault == "delayed" else 0.0
            if fault == "cut before":
                proxy.cut()
            if fault == "lost":
                proxy.drop_replies()
            pushing = threads.submit(push, client, step)
            if fault == "lost":  # it is applied there, and nobody is told
                wait_until(lambda step=step: last_steps(ways) == [step] * 3)
            if fault in ("lost", "cut during"):
                proxy.cut()
            pushing.result(LATER)
            if rng.random() < 0.3:
                ways[rng.integers(3)].cut()
                client.pull({"user": client.route(KEYS)}, insert=True)
        assert np.array_equal(rows_of(client), undisturbed(num_steps))


def test_a_push_that_is_lost_on_a_server_without_its_keys_leaves_no_gap(proxies, threads):
    """All servers see every push, so that what is numbered is whole on each."""
    ways = proxies(2)
    with connect(*ways) as client:
        key = KEYS[:1]
        for step in (1, 2):
            ways[step % 2].drop_replies()
            routed = {"user": client.route(key)}
            gradients = {"user": np.ones((1, 2), np.float32)}
            pushing = threads.submit(client.push, routed, gradients, step=step)
            ways[step % 2].wait_for_lost()
            ways[step % 2].cut()
            pushing.result(LATER)
        push(client, 3)
        with Client(None) as alone:
            alone.attach([SPEC])
            for step in (1, 2):
                alone.push({"user": alone.route(key)}, gradients, step=step)
            push(alone, 3)
            assert np.array_equal(rows_of(client), rows_of(alone))


def test_a_pull_that_waits_for_another_worker_survives_a_cut(proxies, threads):
    ways = proxies(2)
    with join(*ways, num_workers=2) as one, join(*ways, rank=1, num_workers=2) as two:
        one.begin(0)
        two.begin(0)
        push(one, 1)
        pull = threads.submit(
            lambda: one.pull({"user": one.route(KEYS)}, insert=True, after_step=1)
        )
        with pytest.raises(TimeoutError):
            pull.result(SOON)
        for proxy in ways:
            proxy.cut()
        with pytest.raises(TimeoutError):
            pull.result(SOON)
        push(two, 1)
        assert len(pull.result(LATER)["user"]) == len(KEYS)


@pytest.mark.parametrize("cut_of", ["first", "last"])
def test_parts_of_a_step_survive_a_cut(proxies, threads, wait_until, cut_of):
    """Of the one that waits for the other's part, and of that."""
    ways = proxies(2)
    with join(*ways, num_workers=2) as one, join(*ways, rank=1, num_workers=2) as two:
        one.begin(0)
        two.begin(0)
        for step in range(1, 4):
            first = threads.submit(push, one, step, weight=1)
            with pytest.raises(TimeoutError):
                first.result(SOON)
            if cut_of == "first":
                ways[0].cut()
            else:
                ways[0].drop_replies()
            last = threads.submit(push, two, step, weight=1)
            if cut_of == "last":
                wait_until(lambda step=step: last_steps(ways) == [step] * 2)
                ways[0].cut()
            for part in (first, last):
                part.result(LATER)
        assert np.array_equal(rows_of(one), undisturbed(3))


def test_a_worker_that_is_busy_comes_back_by_itself(proxies, wait_until, away, caplog):
    """It makes no call, and its server would take it for lost."""
    (proxy,) = proxies(1)
    caplog.set_level(logging.INFO, logger="ps_server")
    with join(proxy):
        proxy.cut()
        wait_until(lambda: any("is back after" in text for text in caplog.messages))
        assert "worker 0 (w0) is back, 1 of 1" in caplog.messages


def test_a_worker_that_was_given_up_is_told_so(proxies):
    (proxy,) = proxies(1, rejoin_seconds=0.0)
    with join(proxy) as client:
        client.begin(0)
        proxy.refuse()
        proxy.cut()
        with Client([proxy.target]) as direct:  # its rank is free as soon as it is given up
            direct.join(rank=0, num_workers=1)
            direct.goodbye()
        proxy.refuse(refuses=False)
        with pytest.raises(WorkerLost, match=r"worker 0 \(w0\) must be known to server"):
            push(client, 1)


def test_a_push_that_failed_may_be_made_again_and_is_applied_once(proxies, monkeypatch):
    """One server refuses it, the other has it by then."""
    ways = proxies(2)
    push_of_store, fails = Store.push, threading.Event()

    def failing(self, *arguments, **options):
        if fails.is_set() and self.id == refusing:
            raise ValueError("not now")
        push_of_store(self, *arguments, **options)

    monkeypatch.setattr(Store, "push", failing)
    with join(*ways) as client:
        refusing = client._route.servers[1].id
        client.begin(0)
        fails.set()
        with pytest.raises(ServerError, match="not now"):
            push(client, 1)
        fails.clear()
        push(client, 1)
        push(client, 2)
        assert np.array_equal(rows_of(client), undisturbed(2))


def test_a_push_after_one_that_failed_is_no_gap_to_who_has_not_joined(proxies):
    ways = proxies(2)
    with connect(*ways) as client:
        push(client, 1)
        with pytest.raises(ServerError, match="needs a step from 1"):
            push(client, 0)
        push(client, 2)
        assert np.array_equal(rows_of(client), undisturbed(2))


def test_an_empty_push_goes_to_no_other_server(proxies):
    """The port of a server that died may be another's of the job: its clock is its own."""
    ways = proxies(2)
    with connect(*ways) as client:
        routed = {"user": client.route(KEYS[:1])}
        owner = int(np.flatnonzero(np.diff(routed["user"].bounds))[0])
        by_address = {proxy.address: proxy for proxy in ways}
        without, of_key = (by_address[client.addresses[at]] for at in (1 - owner, owner))
        right = without.target
        without.target = of_key.target
        without.cut()
        with ThreadPoolExecutor(1) as threads:
            pushing = threads.submit(
                client.push, routed, {"user": np.ones((1, 2), np.float32)}, step=1
            )
            with pytest.raises(ServerError, match="must be the one that holds the rows"):
                pushing.result(LATER)
        without.target = right
        assert client.num_rows() == {"user": 1}


# ------------------------------------------------------------------ a save


def content_of(pieces):
    return b"".join(pieces)


def test_a_save_goes_on_in_the_middle_of_a_snapshot(proxy, monkeypatch):
    monkeypatch.setattr("ps_server.service.CHUNK_BYTES", 1000)
    with connect(proxy) as client:
        push(client, 1)
        expected = {name: content_of(pieces) for name, pieces in client.save("user")}
        assert len(expected) > 1
        found = {}
        for name, pieces in client.save("user"):
            parts = [next(iter(pieces))]
            proxy.cut()
            parts.extend(pieces)
            found[name] = content_of(parts)
        assert found == expected


def test_a_save_of_rows_that_changed_meanwhile_is_refused(proxy, monkeypatch):
    monkeypatch.setattr("ps_server.service.CHUNK_BYTES", 1000)
    many = np.arange(100_000, dtype=np.uint64)  # more than waits in buffers on the way
    with connect(proxy) as client:
        client.pull({"user": client.route(many)}, insert=True)
        name, pieces = next(iter(client.save("user")))
        next(iter(pieces))
        proxy.cut()
        routed = client.route(many)
        client.push({"user": routed}, {"user": np.ones((len(many), 2), np.float32)}, step=1)
        with pytest.raises(ServerError, match=f"got others of {name} after .*; save again"):
            content_of(pieces)


# ------------------------------------------------------------------ where servers are


def write(path, *addresses):
    path.write_text(json.dumps({"servers": list(addresses)}))


def test_a_server_that_moves_is_found_by_its_file(proxies, tmp_path, servers):
    ways, file = proxies(2), tmp_path / "servers.json"
    write(file, *(proxy.address for proxy in ways))
    with Client([f"@{file}"]) as client:
        client.attach([SPEC])
        push(client, 1)
        moved = ways[0]
        with Proxy(moved.target) as elsewhere:
            moved.target = ways[1].target  # a file may name the place of another for a while
            moved.cut()
            write(file, elsewhere.address, ways[1].address)
            push(client, 2)
            assert elsewhere.num_connections > 0
            file.unlink()
            elsewhere.cut()
            push(client, 3)  # it is where it was
            assert np.array_equal(rows_of(client), undisturbed(3))


def test_a_file_that_is_older_than_a_move_is_read_again(proxies, tmp_path, threads, away):
    ways, file = proxies(2), tmp_path / "servers.json"
    write(file, *(proxy.address for proxy in ways))
    with Client([f"@{file}"]) as client:
        client.attach([SPEC])
        right = ways[0].target
        ways[0].target = ways[1].target
        ways[0].cut()
        pushing = threads.submit(push, client, 1)
        assert away.wait(LATER)
        with pytest.raises(TimeoutError):
            pushing.result(5 * SOON)
        ways[0].target = right
        pushing.result(LATER)
        assert np.array_equal(rows_of(client), undisturbed(1))


def test_a_file_that_is_not_there_yet_is_waited_for(server, tmp_path, threads):
    file = tmp_path / "servers.json"
    connecting = threads.submit(Client, [f"@{file}"])
    with pytest.raises(TimeoutError):
        connecting.result(SOON)
    write(file, server)
    with connecting.result(LATER) as client:
        assert client.addresses == (server,)


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[]", '{"servers": "host:1"}', '{"servers": []}', '{"servers": [7]}']
)
def test_what_is_no_servers_file_is_named(tmp_path, text):
    file = tmp_path / "servers.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"a servers file is JSON.*servers\.json; the supervisor"):
        Client([f"@{file}"], connect_timeout=0)


# ------------------------------------------------------------------ patience


def test_pauses_double_up_to_half_a_second_and_each_is_shortened_by_up_to_a_half():
    drawn = np.array(
        [[next(d) for _ in range(7)] for d in map(delays, map(np.random.default_rng, range(50)))]
    )
    longest = np.array([0.1, 0.2, 0.4, 0.5, 0.5, 0.5, 0.5])
    assert (drawn <= longest).all()
    assert (drawn >= longest / 2).all()
    assert (drawn.std(axis=0) > longest / 20).all()


def test_patience_ends_with_its_time():
    now = [0.0]
    patience = Patience(Retry(10.0, np.random.default_rng(0), clock=lambda: now[0]))
    assert 0.05 <= patience.next_delay() <= 0.1
    now[0] = 9.99
    assert patience.next_delay() == pytest.approx(0.01)
    now[0] = 10.0
    assert patience.next_delay() is None


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_retry_that_is_no_time_is_refused(server, seconds):
    with pytest.raises(ConfigError, match="retry_seconds is seconds, at least 0"):
        Client([server], retry_seconds=seconds)
