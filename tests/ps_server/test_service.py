"""The service as a foreign client meets it: bare stubs, hostile requests."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import grpc
import numpy as np
import pytest

from ps_server.route import Route, ServerRef
from ps_server.server import Server
from ps_server.spec import SGD, Adagrad, Constant, TableSpec
from ps_server.wire import (
    ps_pb2,
    ps_pb2_grpc,
    route_to_message,
    spans_from_message,
    spec_to_message,
)

LATER = 30.0
SPEC = TableSpec("user", 4, SGD(1.0), Constant(0.5))
KEYS = np.arange(10, dtype=np.uint64)
KEY_BYTES = KEYS.tobytes()
ONES = np.ones((10, 4), np.float32)


class Peer:
    """A server with one table of ten rows, and a stub of it."""

    def __init__(self, channel, data_dir):
        self.stub = ps_pb2_grpc.ParameterServerStub(channel)
        self.data_dir = data_dir
        server_id = self.stub.Stats(ps_pb2.StatsRequest()).server_id
        self.route = Route((ServerRef(server_id, "here"),))
        self.share = self.route.fingerprint_of(server_id)
        self.create(SPEC)
        self.push(KEYS.tobytes(), ONES.tobytes())

    def create(self, spec):
        message = spec if isinstance(spec, ps_pb2.TableSpec) else spec_to_message(spec)
        request = ps_pb2.CreateTableRequest(spec=message, route=route_to_message(self.route))
        return self.stub.CreateTable(request)

    def pull(self, keys=KEY_BYTES, *, tables=("user",), insert=True, route=None):
        parts = [ps_pb2.TableKeys(table=table, keys=keys) for table in tables]
        route = self.share if route is None else route
        return self.stub.Pull(ps_pb2.PullRequest(route=route, insert=insert, tables=parts))

    def push(self, keys, gradients, *, tables=("user",), step=1, route=None):
        parts = [
            ps_pb2.TableGradients(table=table, keys=keys, gradients=gradients) for table in tables
        ]
        route = self.share if route is None else route
        return self.stub.Push(ps_pb2.PushRequest(route=route, step=step, tables=parts))

    def save(self, table="user"):
        files = {}
        request = ps_pb2.SaveRequest(route=self.share, table=table)
        for piece in self.stub.Save(request):
            files[piece.name] = files.get(piece.name, b"") + piece.data
        return files

    def load(self, pieces, table="user", route=None):
        return self.stub.Load(self.requests(pieces, table, route))

    def requests(self, pieces, table="user", route=None, number=None):
        route = self.share if route is None else route
        pieces = list(pieces)
        number = len({name for name, _ in pieces}) if number is None else number
        first = ps_pb2.LoadRequest(route=route, table=table, num_snapshots=number)
        return chain([first], (ps_pb2.LoadRequest(name=name, data=data) for name, data in pieces))

    def stats(self):
        return self.stub.Stats(ps_pb2.StatsRequest())


@pytest.fixture
def peer(tmp_path):
    with (
        Server("127.0.0.1:0", data_dir=tmp_path / "data") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        yield Peer(channel, tmp_path / "data")


@pytest.fixture(autouse=True)
def _no_request_failed_by_surprise(caplog):
    """INTERNAL is logged with its traceback; whatever a peer sends, nothing is."""
    yield
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


@pytest.fixture
def refuses(peer):
    """Returns a function that makes a call, which must fail and change nothing."""

    def check(code, call, *words):
        before, files = peer.stats(), peer.save()
        with pytest.raises(grpc.RpcError) as raised:
            call()
        assert raised.value.code() is code, raised.value.details()
        for word in words:
            assert word in raised.value.details()
        assert peer.stats() == before
        assert peer.save() == files
        assert [path.name for path in peer.data_dir.iterdir()] == ["lock"]

    return check


INVALID = grpc.StatusCode.INVALID_ARGUMENT


def test_rows_are_what_was_pushed(peer):
    rows = np.frombuffer(peer.pull().rows[0], np.float32).reshape(10, 4)
    assert (rows == -0.5).all()
    (table,) = peer.stats().tables
    assert (table.num_rows, table.last_step) == (10, 1)
    assert table.memory_bytes > 0


@pytest.mark.parametrize("size", [1, 7, 9, 79])
def test_keys_of_broken_length_are_refused(peer, refuses, size):
    keys, gradients = b"x" * size, ONES.tobytes()
    refuses(INVALID, lambda: peer.pull(keys), "whole rows of 8 bytes", f"got {size} bytes")
    refuses(INVALID, lambda: peer.push(keys, gradients), "whole rows of 8 bytes")


@pytest.mark.parametrize("size", [0, 1, 3, 4, 156, 159, 161, 164, 320, 80])
def test_gradients_of_wrong_length_are_refused(peer, refuses, size):
    refuses(INVALID, lambda: peer.push(KEYS.tobytes(), b"x" * size))


def test_gradients_without_keys_are_refused(peer, refuses):
    refuses(INVALID, lambda: peer.push(b"", ONES.tobytes()), "'user'", "[0, 4]")


def test_one_bad_part_of_a_push_stops_the_good_ones(peer, refuses):
    peer.create(TableSpec("wide", 8, SGD(1.0)))
    both = ("user", "wide")
    refuses(INVALID, lambda: peer.push(KEYS.tobytes(), ONES.tobytes(), tables=both), "'wide'")
    refuses(
        grpc.StatusCode.NOT_FOUND,
        lambda: peer.push(KEYS.tobytes(), ONES.tobytes(), tables=("user", "nobody")),
    )
    refuses(grpc.StatusCode.NOT_FOUND, lambda: peer.pull(b"\1" * 8, tables=("user", "nobody")))


@pytest.mark.parametrize("step", [0, 2**32, 2**64 - 1])
def test_step_out_of_range_is_refused(peer, refuses, step):
    refuses(
        INVALID, lambda: peer.push(KEYS.tobytes(), ONES.tobytes(), step=step), "step", str(step)
    )


def test_largest_step_is_taken(peer):
    peer.push(KEYS.tobytes(), ONES.tobytes(), step=2**32 - 1)
    assert peer.stats().tables[0].last_step == 2**32 - 1


def test_requests_of_no_table_and_of_no_keys_are_nothing(peer):
    assert list(peer.pull(tables=()).rows) == []
    assert list(peer.pull(b"").rows) == [b""]
    peer.push(b"", b"", tables=())
    peer.push(b"", b"")
    assert peer.stats().tables[0].num_rows == 10


@pytest.mark.parametrize("name", ["nobody", "", "../x", "x" * 100_000, "é" * 5000, "名" * 5000])
def test_unknown_table_is_not_found(peer, refuses, name):
    """Also where its name outgrows the header that a status travels in."""
    code = grpc.StatusCode.NOT_FOUND
    words = () if len(name) > 1000 else ("must be created first",)
    refuses(code, lambda: peer.pull(tables=(name,)), *words)
    refuses(code, lambda: peer.push(b"", b"", tables=(name,)))
    refuses(code, lambda: peer.save(name))
    refuses(code, lambda: peer.load([], table=name))


def test_another_route_is_refused(peer, refuses):
    code, route = grpc.StatusCode.FAILED_PRECONDITION, peer.share ^ 1
    refuses(code, lambda: peer.pull(route=route), f"{route:#x}", "here")
    refuses(code, lambda: peer.push(KEYS.tobytes(), ONES.tobytes(), route=route))
    refuses(code, lambda: peer.load(peer.save().items(), route=route))
    request = ps_pb2.SaveRequest(route=route, table="user")
    refuses(code, lambda: list(peer.stub.Save(request)))


@pytest.mark.parametrize("call", ["pull", "push"])
def test_table_twice_in_one_request_is_refused(peer, refuses, call):
    twice = ("user", "user")
    calls = {
        "pull": lambda: peer.pull(b"\1" * 8, tables=twice),
        "push": lambda: peer.push(KEYS.tobytes(), ONES.tobytes(), tables=twice),
    }
    refuses(INVALID, calls[call], "each table once", "2 parts of 1")


def message_of(**changes):
    message = spec_to_message(TableSpec("new", 4, Adagrad(0.1)))
    for name, value in changes.items():
        if value is None:
            message.ClearField(name)
        elif isinstance(value, dict):
            getattr(message, name).CopyFrom(type(getattr(message, name))(**value))
        else:
            setattr(message, name, value)
    return message


@pytest.mark.parametrize(
    "changes",
    [
        {"adagrad": None},
        {"uniform": None},
        {"dim": 0},
        {"dim": 5000},
        {"dim": 2**32 - 1},
        {"name": ""},
        {"name": "../x"},
        {"name": "a b"},
        {"name": ".."},
        {"sgd": {"learning_rate": 0}},
        {"sgd": {"learning_rate": float("nan")}},
        {"adam": {"learning_rate": 0.1, "beta1": 1, "beta2": 0.9, "epsilon": 1e-8}},
        {"uniform": {"low": 1, "high": 1}},
        {"normal": {"std": float("inf")}},
        {"constant": {"value": float("inf")}},
    ],
    ids=str,
)
def test_spec_that_is_none_is_refused(peer, refuses, changes):
    refuses(INVALID, lambda: peer.create(message_of(**changes)), "got")


def test_empty_create_request_is_refused(peer, refuses):
    refuses(INVALID, lambda: peer.stub.CreateTable(ps_pb2.CreateTableRequest()))
    no_route = ps_pb2.CreateTableRequest(spec=message_of())
    refuses(INVALID, lambda: peer.stub.CreateTable(no_route), "at least one server")


def test_route_that_names_one_server_twice_or_not_this_one_is_refused(peer, refuses):
    server = ps_pb2.ServerRef(id=peer.route.servers[0].id)
    for servers in ([server, server], [ps_pb2.ServerRef(id="stranger")]):
        request = ps_pb2.CreateTableRequest(spec=message_of(), route=ps_pb2.Route(servers=servers))
        refuses(INVALID, lambda request=request: peer.stub.CreateTable(request))


def test_route_of_more_servers_than_buckets_is_refused(peer):
    servers = [ps_pb2.ServerRef(id=str(i)) for i in range(5000)]
    servers[1].id = peer.route.servers[0].id
    peer.stub.DropTable(ps_pb2.DropTableRequest(table="user"))
    request = ps_pb2.CreateTableRequest(spec=message_of(), route=ps_pb2.Route(servers=servers))
    with pytest.raises(grpc.RpcError) as raised:
        peer.stub.CreateTable(request)
    assert raised.value.code() is INVALID
    assert "at most 4096" in raised.value.details()


def test_differing_spec_already_exists(peer, refuses):
    other = TableSpec("user", 8, SGD(1.0), Constant(0.5))
    refuses(grpc.StatusCode.ALREADY_EXISTS, lambda: peer.create(other), "dim=4", "got dim=8")
    assert peer.create(SPEC).num_rows == 10


def test_dropping_twice_is_no_error_and_rows_are_gone(peer):
    for _ in range(2):
        peer.stub.DropTable(ps_pb2.DropTableRequest(table="user"))
    assert not peer.stats().HasField("route")
    assert peer.create(SPEC).num_rows == 0


def test_saved_snapshots_load(peer):
    files = peer.save()
    peer.push(KEYS.tobytes(), ONES.tobytes(), step=2)
    peer.pull(np.array([99], np.uint64).tobytes())
    assert peer.load(files.items()).num_rows == 10
    assert peer.save() == files
    bytewise = [(name, data[i : i + 1]) for name, data in files.items() for i in range(len(data))]
    assert peer.load(bytewise).num_rows == 10
    assert peer.save() == files


def test_load_of_no_snapshot_empties_the_table(peer):
    assert peer.load([]).num_rows == 0
    assert peer.stats().tables[0].num_rows == 0


def test_empty_stream_of_a_load_is_refused(peer, refuses):
    refuses(INVALID, lambda: peer.stub.Load(iter([])), "begin with the name of its table")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "a/b",
        "buckets-0000-0255.arrow/../x",
        "../buckets-0000-0255.arrow",
        "buckets-0000-0255.arrow\0",
        "buckets-0000-0255.arrow\n",
        "x" * 5000,
    ],
)
def test_snapshot_with_a_name_that_is_none_is_refused(peer, refuses, name):
    data = next(iter(peer.save().values()))
    refuses(INVALID, lambda: peer.load([(name, data)]), "buckets-FIRST-LAST.arrow")
    assert list(peer.data_dir.parent.iterdir()) == [peer.data_dir]


def test_pieces_that_are_mixed_are_refused(peer, refuses):
    one, two, *_ = peer.save().items()
    refuses(INVALID, lambda: peer.load([one, two, one]), "must follow one another", one[0])


@pytest.mark.parametrize("data", [b"", b"garbage", b"ARROW1\0\0" * 20, b"\0" * 5000])
def test_garbage_snapshot_is_named_and_the_rows_stay(peer, refuses, data):
    good, bad = list(peer.save().items())[:2]
    refuses(grpc.StatusCode.DATA_LOSS, lambda: peer.load([good, (bad[0], data)]), bad[0])


@pytest.mark.parametrize("number", [0, 1, 7, 9, 2**32 - 1])
def test_load_of_fewer_or_more_snapshots_than_said_is_refused(peer, refuses, number):
    files = peer.save()
    assert len(files) == 8
    requests = peer.requests(files.items(), number=number)
    refuses(INVALID, lambda: peer.stub.Load(requests), f"the {number} snapshots", "got 8")


@pytest.mark.parametrize("num_sent", [0, 1, 3, 4, 23])
def test_load_that_is_cut_leaves_the_rows(peer, wait_until, num_sent):
    """Also between two whole files: to the server, the sender's end may look like the stream's."""
    before = peer.save()
    pieces = [
        (name, part)
        for name, data in before.items()
        for part in (data[:50], data[50:1000], data[1000:])
    ]
    assert len(pieces) == 24
    is_sent, release = threading.Event(), threading.Event()

    def requests():
        yield from peer.requests(pieces[:num_sent], number=8)
        is_sent.set()
        assert release.wait(LATER)

    call = peer.stub.Load.future(requests())
    assert is_sent.wait(LATER)
    wait_until(lambda: list(peer.data_dir.glob("load-*")))
    call.cancel()
    release.set()
    wait_until(lambda: not list(peer.data_dir.glob("load-*")))
    assert peer.save() == before


def test_clients_that_vanish_in_a_save_leave_no_thread(peer):
    peer.pull(np.arange(20_000, dtype=np.uint64).tobytes())
    request = ps_pb2.SaveRequest(route=peer.share, table="user")
    for _ in range(40):  # more than the server has threads
        stream = peer.stub.Save(request)
        next(stream)
        stream.cancel()
    assert peer.stats().tables[0].num_rows == 20_000


@pytest.mark.parametrize(("rank", "num_workers"), [(0, 0), (2, 2), (0, 65), (2**32 - 1, 2**32 - 1)])
def test_worker_that_cannot_be_is_refused(peer, refuses, rank, num_workers):
    request = ps_pb2.JoinRequest(rank=rank, num_workers=num_workers, name="x" * 5000)
    refuses(INVALID, lambda: list(peer.stub.Join(request)), f"got rank={rank}, num_workers=")


def test_requests_of_a_worker_that_has_not_joined_are_refused(peer, refuses):
    route, stub = peer.share, peer.stub
    part = ps_pb2.TableGradients(table="user", keys=KEY_BYTES, gradients=ONES.tobytes())
    for rank in (0, 2**32 - 1):
        words = "joins before all else", f"got rank={rank}"
        for request in (
            ps_pb2.PushRequest(route=route, step=2, rank=rank, tables=[part]),
            ps_pb2.PushRequest(route=route, step=2, rank=rank, weight=1, tables=[part]),
        ):
            refuses(INVALID, lambda request=request: stub.Push(request), *words)
        pull = ps_pb2.PullRequest(route=route, rank=rank, after_step=0)
        refuses(INVALID, lambda pull=pull: stub.Pull(pull), *words)
        clock, goodbye = ps_pb2.SetClockRequest(rank=rank), ps_pb2.GoodbyeRequest(rank=rank)
        refuses(INVALID, lambda clock=clock: stub.SetClock(clock), *words)
        refuses(INVALID, lambda goodbye=goodbye: stub.Goodbye(goodbye), *words)


def test_parts_and_waits_without_a_rank_and_weights_that_are_none_are_refused(peer, refuses):
    stub = peer.stub
    stream = stub.Join(ps_pb2.JoinRequest(rank=0, num_workers=1, name="w0"))
    next(stream)
    stub.SetClock(ps_pb2.SetClockRequest(rank=0, first_step=1))
    part = ps_pb2.TableGradients(table="user", keys=KEY_BYTES, gradients=ONES.tobytes())
    fields = {"route": peer.share, "step": 2, "tables": [part]}
    for rank, weight in ((None, 1), (0, -1), (0, float("nan")), (0, float("inf"))):
        request = ps_pb2.PushRequest(rank=rank, weight=weight, **fields)
        refuses(INVALID, lambda request=request: stub.Push(request), f"rank={rank}, weight=")
    for step in (1, 3):
        request = ps_pb2.PushRequest(rank=0, weight=1, **{**fields, "step": step})
        refuses(INVALID, lambda request=request: stub.Push(request), f"got step={step} after")
    pull = ps_pb2.PullRequest(route=peer.share, after_step=2**64 - 1)
    refuses(INVALID, lambda: stub.Pull(pull), "names its rank")
    stub.Push(ps_pb2.PushRequest(rank=0, weight=1, **fields))
    stub.Goodbye(ps_pb2.GoodbyeRequest(rank=0))
    assert list(stream) == []


def test_hostile_requests_beside_good_ones_lose_nothing(peer):
    zeros = np.zeros(1, np.uint64).tobytes()
    row = np.ones((1, 4), np.float32).tobytes()

    def good():
        for step in range(1, 101):
            peer.push(zeros, row, step=step)

    def hostile():
        for size in range(100):
            with pytest.raises(grpc.RpcError):
                peer.push(zeros, b"x" * (size if size != 16 else 17))

    with ThreadPoolExecutor(4) as threads:
        for future in [threads.submit(work) for work in (good, hostile, good, hostile)]:
            future.result(LATER)
    (rows,) = peer.pull(zeros).rows
    assert np.frombuffer(rows, np.float32).tolist() == [0.5 - 201] * 4


# ------------------------------------------------------------------ trace


def trace(peer, action):
    return peer.stub.Trace(ps_pb2.TraceRequest(action=action))


def test_a_trace_has_the_requests_between_its_start_and_its_stop(peer):
    peer.pull()
    before = trace(peer, "START").clock
    request = ps_pb2.PullRequest(
        route=peer.share, tables=[ps_pb2.TableKeys(table="user", keys=KEY_BYTES)]
    )
    for step in (0, 4):
        request.step = step
        peer.stub.Pull(request)
    peer.push(KEY_BYTES, ONES.tobytes(), step=5)
    with pytest.raises(grpc.RpcError):
        peer.pull(tables=("item",))  # one that was refused is none that was served
    reply = trace(peer, "STOP")
    peer.pull()
    spans = spans_from_message(reply, role="ps-server")
    assert [spans.texts[name] for name in spans.names] == ["Pull", "Pull", "Push"]
    assert spans.steps.tolist() == [-1, 3, 4]
    assert all(spans.texts[track].startswith("request") for track in spans.tracks)
    edges = np.stack([spans.starts, spans.ends], axis=1).ravel()
    assert (np.diff([before, *edges, reply.clock]) >= 0).all()
    assert trace(peer, "STOP").process == ""  # it records no more


def test_a_new_start_forgets_what_was_recorded(peer):
    trace(peer, "START")
    peer.pull()
    trace(peer, "START")
    assert trace(peer, "CLOCK").starts == b""
    reply = trace(peer, "STOP")
    assert (reply.starts, reply.num_dropped) == (b"", 0)
    assert reply.process


@pytest.mark.parametrize("step", [-(2**63), -1, 2**63 - 1])
def test_a_pull_of_a_step_that_cannot_be_is_served(peer, step):
    trace(peer, "START")
    peer.stub.Pull(ps_pb2.PullRequest(route=peer.share, step=step))
    spans = spans_from_message(trace(peer, "STOP"), role="ps-server")
    assert spans.steps.tolist() == [max(step - 1, -1)]


def test_push_with_an_origin_is_applied_once(peer, refuses):
    def push(sequence):
        part = ps_pb2.TableGradients(table="user", keys=KEY_BYTES, gradients=ONES.tobytes())
        route = peer.share
        numbers = {"worker": 2**64 - 1, "sequence": sequence}
        peer.stub.Push(ps_pb2.PushRequest(route=route, step=2, tables=[part], **numbers))

    for _ in range(2):
        push(1)
    rows = np.frombuffer(peer.pull().rows[0], np.float32)
    assert (rows == 0.5 - 1 - 1).all()
    refuses(INVALID, lambda: push(0), "sequence=0")
    refuses(INVALID, lambda: push(3), "pushes 2 to 2 are missing here")


def test_worker_that_joins_again_by_its_number_is_back_and_its_old_stream_ends(peer):
    request = ps_pb2.JoinRequest(rank=0, num_workers=1, name="w", worker=7)
    old = peer.stub.Join(request)
    assert not next(old).is_back
    peer.stub.SetClock(ps_pb2.SetClockRequest(rank=0, first_step=3))
    new = peer.stub.Join(request)
    assert next(new).is_back
    assert list(old) == []
    push = ps_pb2.PushRequest(route=peer.share, step=4, rank=0, worker=7, sequence=1)
    peer.stub.Push(push)
    peer.stub.Goodbye(ps_pb2.GoodbyeRequest(rank=0))
    assert list(new) == []


def test_stream_that_breaks_before_its_first_answer_is_read_leaves_no_member(peer, wait_until):
    for number in range(10):
        peer.stub.Join(ps_pb2.JoinRequest(rank=0, num_workers=1, name=f"w{number}")).cancel()

    def joined():
        stream = peer.stub.Join(ps_pb2.JoinRequest(rank=0, num_workers=1, name="last"))
        try:
            next(stream)
        except grpc.RpcError:
            return False
        peer.stub.Goodbye(ps_pb2.GoodbyeRequest(rank=0))
        return True

    wait_until(joined)


def test_range_is_leased_pushed_and_finished(peer):
    stub, route = peer.stub, peer.route.fingerprints[0]

    def lease(holder, *held):
        request = ps_pb2.LeaseRequest(
            route=route, table="user", holder=holder, held=held, size=4, seconds=LATER, epochs=1
        )
        return stub.Lease(request)

    def end(number, **num_batches):
        stub.EndLease(ps_pb2.EndLeaseRequest(table="user", holder=1, number=number, **num_batches))

    def push(worker, sequence):
        part = ps_pb2.TableGradients(table="user", keys=KEY_BYTES, gradients=ONES.tobytes())
        stub.Push(
            ps_pb2.PushRequest(route=route, step=1, tables=[part], worker=worker, sequence=sequence)
        )

    opening = lease(1)
    weights = np.full((10, 4), 2.0, np.float32).tobytes()
    rows = ps_pb2.SetRowsRequest(
        route=route, table="user", keys=KEY_BYTES, weights=weights, worker=opening.worker
    )
    stub.SetRows(rows)
    stub.Finish(ps_pb2.FinishRequest(first=opening.worker, last=opening.worker))
    end(opening.number, num_batches=0)

    found = lease(1)
    assert (opening.kind, found.kind) == (ps_pb2.LeaseReply.OPEN, ps_pb2.LeaseReply.TRAIN)
    assert (found.epoch, found.first_batch, found.size, found.num_before) == (0, 0, 4, 0)
    push(found.worker, 1)
    progress = ps_pb2.ProgressRequest(worker=found.worker)
    assert stub.Progress(progress).sequence == 1
    end(found.number)
    assert lease(2) == found, "given back"
    stub.RenewLease(ps_pb2.RenewLeaseRequest(holder=2, seconds=LATER))
    stub.Finish(ps_pb2.FinishRequest(first=found.worker, last=found.worker))
    assert not stub.Progress(progress).HasField("sequence")
    push(found.worker, 2)  # of the first holder, which was asleep
    stub.SetRows(rows)
    end(found.number, num_batches=1)
    assert lease(2).kind == ps_pb2.LeaseReply.CLOSE
    (table,) = peer.pull().rows
    assert np.frombuffer(table, np.float32).tolist() == [1.0] * 40


def test_leases_and_rows_that_make_no_sense_are_refused(peer, refuses):
    stub, route = peer.stub, peer.route.fingerprints[0]
    good = {"route": route, "table": "user", "holder": 1, "size": 4, "seconds": 1.0, "epochs": 1}
    invalid, not_found = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    refuses(invalid, lambda: stub.Lease(ps_pb2.LeaseRequest(**good | {"holder": 0})), "holder=0")
    refuses(not_found, lambda: stub.Lease(ps_pb2.LeaseRequest(**good | {"table": "item"})), "item")
    refuses(invalid, lambda: stub.Finish(ps_pb2.FinishRequest(first=2, last=1)), "first=2")
    twice = np.zeros(10, np.uint64).tobytes()
    for keys, weights in ((KEY_BYTES, ONES[1:].tobytes()), (twice, ONES.tobytes())):
        request = ps_pb2.SetRowsRequest(
            route=route, table="user", keys=keys, weights=weights, worker=1
        )
        refuses(invalid, lambda request=request: stub.SetRows(request), "distinct keys")
