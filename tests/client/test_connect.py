"""Finding servers: who they are, whose tables they hold, and whether they are there."""

import logging
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from grpc import _channel as grpc_channel

from hetero_pipe.client import Client
from hetero_pipe.errors import (
    ConfigError,
    RouteMismatch,
    ServerError,
    ServerUnavailable,
    SpecMismatch,
    TableNotFound,
)
from ps_server.route import Route
from ps_server.server import Server
from ps_server.spec import SGD, Adagrad, Constant, TableSpec
from ps_server.wire import ps_pb2, ps_pb2_grpc, route_to_message, spec_to_message

LATER = 30.0
SPEC = TableSpec("user", 4, Adagrad(0.1))
KEYS = np.arange(1, 500, dtype=np.uint64)


def push_some(client, step=1):
    keys = {"user": client.route(KEYS)}
    gradients = np.random.default_rng(step).standard_normal((len(KEYS), 4)).astype(np.float32)
    client.push(keys, {"user": gradients}, step=step)


def rows_of(client):
    routed = client.route(KEYS)
    return client.pull({"user": routed}, insert=False)["user"][routed.inverse]


def as_localhost(address):
    return address.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize(
    "servers",
    [["7000"], ["host"], ["host:"], [":7000"], ["host:0"], ["host:65536"], ["host:x"], ["h:²"]],
)
def test_malformed_address_is_refused(servers):
    with pytest.raises(ConfigError, match="HOST:PORT with a port from 1 to 65535, got"):
        Client(servers)


def test_no_servers_are_refused():
    with pytest.raises(ConfigError, match="at least one HOST:PORT, got none; None is embedded"):
        Client([])


@pytest.mark.parametrize("other_name", [lambda address: address, as_localhost])
def test_one_server_named_twice_is_refused(server, other_name):
    with pytest.raises(ConfigError, match="the same server") as raised:
        Client([server, other_name(server)])
    assert other_name(server) in str(raised.value)


@pytest.mark.parametrize(
    "rename",
    [
        lambda addresses: addresses,
        lambda addresses: addresses[::-1],
        lambda addresses: [addresses[1], addresses[2], addresses[0]],
        lambda addresses: [as_localhost(address) for address in addresses],
        lambda addresses: [addresses[2], as_localhost(addresses[0]), addresses[1]],
    ],
)
def test_same_servers_attach_in_any_order_and_by_any_name(servers, rename):
    addresses = servers(3)
    with Client(addresses) as first:
        assert first.attach([SPEC]) == 0
        push_some(first, step=7)
        expected = rows_of(first)
    with Client(rename(addresses)) as second:
        assert second.attach([SPEC]) == 7
        assert np.array_equal(rows_of(second), expected)
        push_some(second, step=8)
        assert second.num_rows() == {"user": len(KEYS)}


def test_workers_that_start_at_once_agree_whatever_they_call_the_servers(servers):
    addresses = servers(3)
    names = [addresses, [as_localhost(addresses[0]), *addresses[1:]], addresses[::-1]]
    clients = [Client(name) for name in names]  # all have looked before the first creates a table
    for client in clients:
        client.attach([SPEC])
        push_some(client)
    for client in clients:
        client.close()


def test_route_that_the_servers_hold_is_taken_whatever_its_order_and_owners(servers):
    """They are ours to choose for new tables alone: rows are where the held one says."""
    with Client(servers(3)) as client:
        held = Route(client._route.servers[::-1])
        held = held.moved(range(0, 4096, 3), to=held.servers[1])
        for connection in client._connections:
            connection.control.create_table(SPEC, held).result()
    with Client(client.addresses) as other:
        other.attach([SPEC])
        assert other.addresses == client.addresses[::-1]
        assert other._route == held
        push_some(other)
        assert other.num_rows() == {"user": len(KEYS)}


def test_another_set_of_servers_is_refused_by_naming_both(servers):
    addresses = servers(3)
    with Client(addresses[:2]) as client:
        client.attach([SPEC])
    for others in (addresses, addresses[:1], addresses[1:]):
        with Client(others) as client, pytest.raises(RouteMismatch) as raised:
            client.attach([SPEC])
        created, _, got = str(raised.value).partition("got the servers")
        assert all(address in created for address in addresses[:2])
        assert all(address in got for address in others)
        assert "fresh=True" in got


def test_refused_attach_changes_nothing(servers):
    addresses = servers(3)
    with Client(addresses[:2]) as client:
        client.attach([SPEC])
        push_some(client)
        expected = rows_of(client)
        with Client(addresses) as other, pytest.raises(RouteMismatch):
            other.attach([SPEC])
        assert np.array_equal(rows_of(client), expected)
    with Client(addresses[2:]) as third:  # it was not made part of the refused set
        third.attach([SPEC])
        assert third.num_rows() == {"user": 0}


def test_fresh_drops_the_rows(servers):
    addresses = servers(2)
    with Client(addresses) as client:
        client.attach([SPEC])
        push_some(client)
        assert client.attach([SPEC], fresh=True) == 0
        assert client.num_rows() == {"user": 0}


@pytest.mark.parametrize("sets", [([0, 1], [0, 1, 2]), ([0, 1, 2], [0, 1]), ([0, 1], [1, 2])])
def test_fresh_works_also_when_the_set_of_servers_changed(servers, sets):
    addresses = servers(3)
    before, after = [[addresses[i] for i in part] for part in sets]
    with Client(before) as client:
        client.attach([SPEC])
        push_some(client)
    with Client(after) as client:
        assert client.attach([SPEC], fresh=True) == 0
        push_some(client)
        assert client.num_rows() == {"user": len(KEYS)}


def test_fresh_of_a_changed_set_names_tables_of_others_that_stand_in_the_way(servers):
    addresses = servers(2)
    with Client(addresses) as client:
        client.attach([SPEC, TableSpec("other", 4)])
    with Client(addresses[:1]) as client, pytest.raises(RouteMismatch, match="tables other of"):
        client.attach([SPEC], fresh=True)


def test_attach_to_a_table_logs_one_line_with_its_rows(servers, caplog):
    addresses = servers(2)
    caplog.set_level(logging.INFO, logger="hetero_pipe")

    def said():  # the servers of this process log too
        return [r.getMessage() for r in caplog.records if r.name.startswith("hetero_pipe")]

    with Client(addresses) as client:
        client.attach([SPEC])
        push_some(client)
    assert said() == [], "a new table is nothing to say here"
    with Client(addresses) as client:
        client.attach([SPEC])
    (message,) = said()
    assert "table user: 499 rows" in message
    assert "fresh=True" in message
    assert all(address in message for address in addresses)


@pytest.mark.parametrize("num_servers", [0, 1, 2])
def test_differing_spec_is_refused_by_naming_what_differs(servers, num_servers):
    with Client(servers(num_servers) or None) as client:
        client.attach([SPEC])
        push_some(client)
        with pytest.raises(SpecMismatch) as raised:
            client.attach([TableSpec("user", 8, SGD(0.1), Constant(1.0), seed=3)])
        for part in ("'user'", "dim=4", "dim=8", "Adagrad", "SGD", "Constant", "seed=3", "drop"):
            assert part in str(raised.value)
        with pytest.raises(SpecMismatch) as raised:
            client.attach([TableSpec("user", 4, Adagrad(0.2))])
        assert "dim" not in str(raised.value)
        assert "0.2" in str(raised.value)
        assert client.num_rows() == {"user": len(KEYS)}


def test_server_restarted_empty_is_named(servers):
    (stays,) = servers(1)
    with Server("127.0.0.1:0") as server:
        restarts = server.address
        with Client([stays, restarts]) as client:
            client.attach([SPEC])
            push_some(client)
    with Server(restarts), Client([stays, restarts]) as client:
        with pytest.raises(RouteMismatch, match=f"{restarts} restarted") as raised:
            client.attach([SPEC])
        assert "fresh=True" in str(raised.value)
        assert client.attach([SPEC], fresh=True) == 0
        push_some(client)


def test_server_restarted_in_use_is_named(servers):
    (stays,) = servers(1)
    with Server("127.0.0.1:0") as server:
        restarts = server.address
        client = Client([stays, restarts])
        client.attach([SPEC])
    with Server(restarts), client:
        # The connection is made anew in the background; until then the server is unavailable.
        Client([restarts]).close()
        for call in (lambda: rows_of(client), lambda: push_some(client), client.num_rows):
            with pytest.raises(ServerError, match=restarts) as raised:
                retry_unavailable(call)
            assert isinstance(raised.value, TableNotFound)


def retry_unavailable(call):
    pause = threading.Event()
    for _ in range(200):
        try:
            return call()
        except ServerUnavailable:
            pause.wait(0.05)
    raise AssertionError("the server never came back")


def test_table_on_one_of_two_servers_is_refused(servers):
    """A worker was killed in between, or somebody dropped it."""
    addresses = servers(2)
    with Client(addresses) as client:
        client.attach([SPEC])
        client._connections[1].control.drop_table("user").result()
        without = client.addresses[1]
        with pytest.raises(ServerError, match=f"got none on {without}; start over with fresh"):
            client.attach([SPEC])
        client.attach([SPEC], fresh=True)
        push_some(client)


def test_trainers_may_start_before_servers(spawn, free_address, caplog):
    caplog.set_level(logging.INFO, logger="hetero_pipe")
    is_named = threading.Event()
    logger = logging.getLogger("hetero_pipe")
    handler = logging.Handler()
    handler.emit = lambda record: is_named.set()
    logger.addHandler(handler)
    try:
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(Client, [free_address], connect_timeout=LATER)
            assert is_named.wait(LATER)
            spawn("--listen", free_address).wait_until_ready()
            with future.result(LATER) as client:
                client.attach([SPEC])
                push_some(client)
    finally:
        logger.removeHandler(handler)
    warning, there = caplog.messages
    assert free_address in warning
    assert "up to 30 s" in warning
    assert f"ps-server --listen {free_address}" in warning
    assert there == f"server {free_address} is there"


def test_all_that_are_unreachable_are_named_before_the_first_is_waited_for(server, caplog):
    with socket.socket() as one, socket.socket() as two:  # bound, so nobody else listens there
        missing = []
        for probe in (one, two):
            probe.bind(("127.0.0.1", 0))
            missing.append(f"127.0.0.1:{probe.getsockname()[1]}")
        with pytest.raises(ServerUnavailable) as raised:
            Client([missing[0], server, missing[1]], connect_timeout=0.4)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    for address, message in zip(missing, caplog.messages, strict=True):
        assert f"server {address} is not reachable, waiting up to 400 ms" in message
        assert f"ps-server --listen {address}" in message
    assert str(raised.value).startswith(f"server {missing[0]} must be reachable")
    assert "within 400 ms; start it with: ps-server --listen" in str(raised.value)


def test_host_that_is_not_known_is_unreachable(caplog):
    with pytest.raises(ServerUnavailable, match=r"no-such-host\.invalid:7000 must be reachable"):
        Client(["no-such-host.invalid:7000"], connect_timeout=0.1)


def test_route_that_leaves_the_server_out_is_refused(servers):
    here, there = servers(2)
    with Client([here]) as one, Client([there]) as two:
        control = one._connections[0].control
        with pytest.raises(ServerError, match=r"INVALID_ARGUMENT: server .* is not in the route"):
            control.create_table(SPEC, two._route).result()


def test_messages_of_spec_and_route_are_what_the_stub_takes(server):
    """`ps_pb2_grpc` alone does what the client does: nothing is hidden in it."""
    with Client([server]) as client:
        request = ps_pb2.CreateTableRequest(
            spec=spec_to_message(SPEC), route=route_to_message(client._route)
        )
        stub = ps_pb2_grpc.ParameterServerStub(client._connections[0].data._channel)
        assert stub.CreateTable(request).num_rows == 0
        client.attach([SPEC])
        push_some(client)


@pytest.mark.parametrize("seconds", [-5.0, float("nan"), float("inf")])
def test_a_timeout_that_is_no_time_is_refused(free_address, seconds):
    with pytest.raises(ConfigError, match="connect_timeout is seconds, at least 0"):
        Client([free_address], connect_timeout=seconds)


def test_an_interrupt_while_a_call_is_started_leaves_a_client_that_closes(server, monkeypatch):
    # grpc counts a call and then starts the thread that serves it. An interrupt in between left a
    # call that `close` waited for; here it comes at exactly that point.
    run_spin_thread = grpc_channel._run_channel_spin_thread
    main = threading.main_thread()
    reached = threading.Event()

    def interrupted(state):
        if threading.current_thread() is main:
            raise KeyboardInterrupt
        signal.pthread_kill(main.ident, signal.SIGINT)
        reached.set()
        run_spin_thread(state)

    client = Client([server])
    client.attach([SPEC])
    monkeypatch.setattr(grpc_channel, "_run_channel_spin_thread", interrupted)

    def ask():
        while not reached.is_set():
            client.num_rows()
            time.sleep(0.01)
        time.sleep(60)  # the interrupt comes at the latest here

    with pytest.raises(KeyboardInterrupt):
        ask()
    monkeypatch.undo()
    closing = threading.Thread(target=client.close)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()
