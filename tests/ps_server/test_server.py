"""The server: port, folder, health, reflection, and a stop that lets requests end."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from ps_server.route import Route, ServerRef
from ps_server.server import SERVICE, Server
from ps_server.spec import TableSpec
from ps_server.store import MAX_WORKERS
from ps_server.wire import ps_pb2, ps_pb2_grpc, route_to_message, spec_to_message

LATER = 30.0
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def channel(server):
    with grpc.insecure_channel(server) as channel:
        yield channel


def test_port_zero_picks_a_free_one_and_keeps_the_host():
    with Server("127.0.0.1:0") as one, Server("localhost:0") as two:
        (host, port), (other_host, other_port) = [s.address.split(":") for s in (one, two)]
        assert (host, other_host) == ("127.0.0.1", "localhost")
        assert len({port, other_port, "0"}) == 3


@pytest.mark.parametrize("name", ["", SERVICE])
def test_health_is_serving(channel, name):
    health = health_pb2_grpc.HealthStub(channel)
    assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == SERVING


def test_reflection_tells_the_service_and_its_methods(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    assert SERVICE == "ps_server.wire.ParameterServer"
    assert {SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    described = database.FindFileContainingSymbol(SERVICE)
    assert {"Pull", "Push", "Save"} <= {m.name for m in described.service[0].method}


def test_port_in_use_is_refused_by_name(server):
    with pytest.raises(OSError, match=f"cannot listen on {server}: Address already in use; is"):
        Server(server).__enter__()


@pytest.mark.parametrize("listen", ["no-such-host.invalid:0", "nonsense", "8.8.8.8:0"])
def test_address_that_is_none_is_refused(listen):
    with pytest.raises(OSError, match=f"cannot listen on {listen}"):
        Server(listen).__enter__()


def test_refused_server_leaves_nothing(server, tmp_path):
    folder = tmp_path / "data"
    with pytest.raises(OSError, match="cannot listen"):
        Server(server, data_dir=folder).__enter__()
    with Server("127.0.0.1:0", data_dir=folder):  # the folder is free again
        assert [path.name for path in folder.iterdir()] == ["lock"]


def test_port_is_free_after_the_stop():
    with Server("127.0.0.1:0") as server:
        address = server.address
    for _ in range(3):
        with Server(address) as server:
            assert server.address == address


def test_two_servers_on_one_folder_are_refused(tmp_path):
    with (
        Server("127.0.0.1:0", data_dir=tmp_path / "a" / "b"),
        pytest.raises(OSError, match=r"a/b is another server's; give each its own --data-dir"),
    ):
        Server("127.0.0.1:0", data_dir=tmp_path / "a" / "b").__enter__()


def test_folder_that_is_a_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(OSError, match="file"):
        Server("127.0.0.1:0", data_dir=path).__enter__()


def test_what_a_killed_server_left_in_its_folder_goes(tmp_path):
    left = tmp_path / "load-x1"
    left.mkdir()
    (left / "buckets-0000-0255.arrow").touch()
    (tmp_path / "mine.txt").touch()
    with Server("127.0.0.1:0", data_dir=tmp_path):
        assert {path.name for path in tmp_path.iterdir()} == {"lock", "mine.txt"}


def test_temporary_folder_goes_with_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Server("127.0.0.1:0"):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_stop_leaves_no_open_files():
    with Server("127.0.0.1:0"):
        pass
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with Server("127.0.0.1:0"):
            pass
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def load_held_open(channel, data_dir, wait_until):
    """Returns a load under way, which ends when the event is set."""
    stub = ps_pb2_grpc.ParameterServerStub(channel)
    route = Route((ServerRef(stub.Stats(ps_pb2.StatsRequest()).server_id, "here"),))
    spec = TableSpec("user", 4)
    stub.CreateTable(
        ps_pb2.CreateTableRequest(spec=spec_to_message(spec), route=route_to_message(route))
    )
    release = threading.Event()

    def requests():
        yield ps_pb2.LoadRequest(route=route.fingerprints[0], table="user")
        assert release.wait(LATER)

    call = stub.Load.future(requests())
    wait_until(lambda: list(data_dir.glob("load-*")))
    return call, release


def test_stop_says_not_serving_and_lets_a_request_under_way_end(tmp_path, wait_until):
    server = Server("127.0.0.1:0", data_dir=tmp_path)
    server.__enter__()
    with grpc.insecure_channel(server.address) as channel, ThreadPoolExecutor(1) as threads:
        call, release = load_held_open(channel, tmp_path, wait_until)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == SERVING
        stopped = threads.submit(server.__exit__, None, None, None)
        assert next(watch).status == NOT_SERVING
        watch.cancel()
        assert not call.done()
        release.set()
        assert call.result(LATER).num_rows == 0
        stopped.result(LATER)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_stop_gives_up_a_request_that_does_not_end(tmp_path, wait_until):
    with Server("127.0.0.1:0", data_dir=tmp_path) as server:
        channel = grpc.insecure_channel(server.address)
        call, release = load_held_open(channel, tmp_path, wait_until)
    with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
        call.result(LATER)
    release.set()
    channel.close()
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_more_requests_than_threads_are_all_served(channel):
    stub = ps_pb2_grpc.ParameterServerStub(channel)
    calls = [stub.Stats.future(ps_pb2.StatsRequest()) for _ in range(200)]
    assert len({call.result(LATER).server_id for call in calls}) == 1


def join_all(stub, num_workers, *, begin=0):
    """Joins workers by bare stubs; returns their streams, which somebody must hold."""
    streams = []
    for rank in range(num_workers):
        request = ps_pb2.JoinRequest(rank=rank, num_workers=num_workers, name=f"w{rank}")
        streams.append(stub.Join(request))
        next(streams[-1])
        stub.SetClock(ps_pb2.SetClockRequest(rank=rank, first_step=begin))
    return streams


@pytest.mark.parametrize("waits", ["pulls", "parts"])
def test_the_most_workers_that_may_join_find_a_thread_however_many_wait(channel, waits):
    stub = ps_pb2_grpc.ParameterServerStub(channel)
    streams = join_all(stub, MAX_WORKERS)
    last = MAX_WORKERS - 1

    def push(rank, step, weight):
        return stub.Push.future(ps_pb2.PushRequest(rank=rank, step=step, weight=weight))

    # Each of the others waits twice, as a pull and a push of one worker may.
    calls = []
    for rank in range(last):
        if waits == "pulls":
            push(rank, 1, None).result(LATER)
        else:
            calls.append(push(rank, 1, 1.0))
        calls.append(stub.Pull.future(ps_pb2.PullRequest(rank=rank, after_step=1)))
    assert stub.Stats(ps_pb2.StatsRequest(), timeout=LATER).server_id
    assert not any(call.done() for call in calls)
    push(last, 1, None if waits == "pulls" else 1.0).result(LATER)
    for call in calls:
        call.result(LATER)
    for stream in streams:
        stream.cancel()


def test_stop_ends_what_waits_for_a_worker_and_loses_nobody(caplog):
    with Server("127.0.0.1:0") as server, grpc.insecure_channel(server.address) as channel:
        stub = ps_pb2_grpc.ParameterServerStub(channel)
        streams = join_all(stub, 2)
        pull = stub.Pull.future(ps_pb2.PullRequest(rank=0, after_step=1))
        part = stub.Push.future(ps_pb2.PushRequest(rank=0, step=1, weight=1.0))
        with pytest.raises(grpc.FutureTimeoutError):
            part.result(0.05)
        server.__exit__(None, None, None)
        for call in (pull, part):
            assert call.exception(LATER).code() is grpc.StatusCode.UNAVAILABLE
        for stream in streams:
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                next(stream)
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
