"""The client: rows are the same bits wherever they live, and failures are named."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from hetero_pipe.client import Client
from hetero_pipe.errors import (
    CheckpointError,
    ServerError,
    ServerUnavailable,
    TableNotFound,
)
from ps_server.route import Route
from ps_server.spec import SGD, Adagrad, Adam, Constant, Normal, TableSpec, Uniform

LATER = 30.0
OPTIMIZERS = [SGD(0.1), Adagrad(0.1, initial_accumulator=0.1), Adam(0.01)]
SPECS = [
    [TableSpec("user", 4, optimizer, Uniform(-1, 1), 5), TableSpec("item.x", 7, optimizer)]
    for optimizer in OPTIMIZERS
]
SPEC = TableSpec("user", 4, Adagrad(0.1))


def keys_of(rng, size, num_distinct=300):
    return rng.integers(0, num_distinct, size).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def train(client, specs, seed=0, num_steps=8, first_step=1):
    """Yields all rows that random pulls and pushes give, per occurrence."""
    rng = np.random.default_rng(seed)
    for step in range(first_step, first_step + num_steps):
        occurrences = {spec.name: keys_of(rng, int(rng.integers(0, 400))) for spec in specs}
        inserted = client.pull(
            {name: client.route(keys) for name, keys in occurrences.items()},
            insert=bool(step % 2),
        )
        routed = {name: client.route(keys) for name, keys in occurrences.items()}
        for spec in specs:
            inverse = routed[spec.name].inverse
            yield inserted[spec.name][inverse]
            # A key's gradient is a function of the key: its place among the keys is the route's.
            by_key = np.random.default_rng(step).standard_normal((97, spec.dim))
            index = (routed[spec.name].keys % np.uint64(97)).astype(np.int64)
            gradients = {spec.name: by_key[index].astype(np.float32)}
            client.push(routed, gradients, step=step)


def content_of(client, table, folder):
    """All that a table holds, by key, and the files."""
    paths = save(client, table, folder)
    assert len({path.name for path in paths}) == len(paths)
    tables = [pa.ipc.open_file(pa.OSFile(str(path))).read_all() for path in paths]
    whole = pa.concat_tables(tables).replace_schema_metadata(None).sort_by("key")
    return whole.combine_chunks(), paths


def save(client, table, folder, *, freeze=None):
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, pieces in client.save(table, freeze=freeze):
        paths.append(folder / name)
        paths[-1].write_bytes(b"".join(pieces))
    return paths


@pytest.mark.parametrize("num_servers", [1, 2, 3])
@pytest.mark.parametrize("specs", SPECS, ids=[type(o).__name__ for o in OPTIMIZERS])
def test_servers_give_the_bits_of_the_embedded_store(servers, tmp_path, specs, num_servers):
    with Client(None) as embedded, Client(servers(num_servers)) as client:
        for each in (embedded, client):
            assert each.attach(specs) == 0
        pairs = zip(train(embedded, specs), train(client, specs), strict=True)
        for expected, rows in pairs:
            assert np.array_equal(rows, expected)
        assert client.num_rows() == embedded.num_rows()
        for spec in specs:
            expected, _ = content_of(embedded, spec.name, tmp_path / "embedded" / spec.name)
            found, _ = content_of(client, spec.name, tmp_path / "servers" / spec.name)
            assert found.equals(expected)
            assert len(found) == client.num_rows()[spec.name] > 100


@pytest.mark.parametrize("num_servers", [0, 1, 2])
def test_rows_start_at_a_multiple_of_64_bytes_and_can_be_written(servers, num_servers):
    rng = np.random.default_rng(3)
    with Client(servers(num_servers) or None) as client:
        client.attach([TableSpec("user", 3)])
        for size in (1, 2, 5, 100):
            rows = client.pull({"user": client.route(keys_of(rng, size))}, insert=True)["user"]
            assert rows.ctypes.data % 64 == 0
            assert rows.flags.writeable
            assert rows.flags.c_contiguous


@pytest.mark.parametrize("num_servers", [0, 1, 3])
def test_pull_without_insert_gives_first_weights_and_creates_nothing(servers, num_servers):
    specs = [TableSpec("user", 5, initializer=Normal(), seed=9)]
    keys = keys_of(np.random.default_rng(4), 50)
    with Client(servers(num_servers) or None) as client:
        client.attach(specs)
        routed = {"user": client.route(keys)}
        seen = client.pull(routed, insert=False)["user"]
        assert client.num_rows() == {"user": 0}
        assert np.array_equal(client.pull(routed, insert=True)["user"], seen)
        assert client.num_rows() == {"user": len(routed["user"].keys)}


@pytest.mark.parametrize("num_servers", [0, 1, 3])
def test_no_keys_and_keys_of_one_server_alone_work(servers, num_servers):
    with Client(servers(num_servers) or None) as client:
        client.attach([SPEC, TableSpec("empty", 3)])
        for keys in ([], [1], [2**64 - 1, 2**64 - 1]):
            routed = client.route(np.array(keys, np.uint64))
            both = {"user": routed, "empty": client.route(np.empty(0, np.uint64))}
            rows = client.pull(both, insert=True)
            assert rows["user"].shape == (len(set(keys)), 4)
            assert rows["empty"].shape == (0, 3)
            client.push(both, {name: np.ones_like(part) for name, part in rows.items()}, step=1)
        assert client.num_rows() == {"user": 2, "empty": 0}


def test_attach_to_no_table_is_nothing(server):
    with Client([server]) as client:
        assert client.attach([]) == 0
        assert client.num_rows() == {}


@pytest.mark.parametrize("num_servers", [0, 1, 2])
@pytest.mark.parametrize("change", ["more", "fewer", "wider", "narrower", "flat"])
def test_gradients_of_another_shape_are_refused_before_any_is_sent(servers, num_servers, change):
    shape = {"more": (41, 4), "fewer": (39, 4), "wider": (40, 5), "narrower": (40, 3), "flat": 160}
    with Client(servers(num_servers) or None) as client:
        client.attach([SPEC, TableSpec("good", 4)])
        routed = client.route(np.arange(40, dtype=np.uint64))
        gradients = {
            "good": np.ones((40, 4), np.float32),
            "user": np.ones(shape[change], np.float32),
        }
        with pytest.raises(ValueError, match=r"'user' must have shape \[40, 4\], got \["):
            client.push({"good": routed, "user": routed}, gradients, step=1)
        assert client.num_rows() == {"user": 0, "good": 0}


@pytest.mark.parametrize("step", [0, 2**32])
@pytest.mark.parametrize("num_servers", [0, 2])
def test_step_out_of_range_is_refused(servers, num_servers, step):
    with Client(servers(num_servers) or None) as client:
        client.attach([SPEC])
        routed = {"user": client.route(np.arange(40, dtype=np.uint64))}
        with pytest.raises((ServerError, ValueError), match="step"):
            client.push(routed, {"user": np.ones((40, 4), np.float32)}, step=step)
        assert client.num_rows() == {"user": 0}


def test_messages_outgrow_four_megabytes_both_ways(servers):
    keys = np.arange(300_000, dtype=np.uint64)
    with Client(servers(1)) as client:  # 19 MB of rows from one server
        client.attach([TableSpec("wide", 16, SGD(1.0), Constant(1.0))])
        routed = {"wide": client.route(keys)}
        rows = client.pull(routed, insert=True)
        assert (rows["wide"] == 1).all()
        client.push(routed, rows, step=1)
        assert (client.pull(routed, insert=False)["wide"] == 0).all()
        assert client.num_rows() == {"wide": len(keys)}


@pytest.mark.parametrize("specs", SPECS, ids=[type(o).__name__ for o in OPTIMIZERS])
def test_rows_saved_on_two_servers_load_on_any_number(servers, tmp_path, specs):
    spec, *_ = specs
    with Client(servers(2)) as client:
        client.attach([spec])
        for _ in train(client, [spec]):
            pass
        expected, paths = content_of(client, "user", tmp_path / "saved")
        num_rows = client.num_rows()["user"]
        going_on = list(train(client, [spec], seed=1, first_step=9))
    for num_servers in (0, 1, 2, 3):
        with Client(servers(num_servers) or None) as client:
            client.attach([spec])
            for _ in train(client, [spec], seed=2, num_steps=2):  # rows that must go
                pass
            assert client.load("user", paths) == num_rows
            assert client.num_rows() == {"user": num_rows}
            assert client.attach([spec]) == 8, "the last step is that of the rows"
            found, _ = content_of(client, "user", tmp_path / f"loaded{num_servers}")
            assert found.equals(expected)
            pairs = zip(train(client, [spec], seed=1, first_step=9), going_on, strict=True)
            assert all(np.array_equal(rows, wanted) for rows, wanted in pairs)


@pytest.mark.parametrize("num_servers", [0, 1, 3])
def test_rows_saved_by_servers_of_scattered_buckets_load_on_any_number(
    servers, tmp_path, num_servers
):
    """Buckets that have moved leave holes; servers that share a range write a file each."""
    spec = TableSpec("user", 4, Adagrad(0.1), Normal())
    keys = np.arange(20_000, dtype=np.uint64)
    with Client(scattered(servers(3), spec)) as client:
        client.attach([spec])
        client.pull({"user": client.route(keys)}, insert=True)
        saved, paths = content_of(client, "user", tmp_path / "saved")
        assert len(paths) == 3 * 16
        client.load("user", paths)
        assert content_of(client, "user", tmp_path / "again")[0].equals(saved)
    with Client(servers(num_servers) or None) as client:
        client.attach([spec])
        assert client.load("user", paths) == len(keys)
        assert content_of(client, "user", tmp_path / "loaded")[0].equals(saved)


def scattered(addresses, spec):
    """Has the servers hold an empty table, each in any of its buckets."""
    with Client(addresses) as client:
        owners = np.random.default_rng(7).integers(0, len(addresses), 4096).astype(np.uint16)
        held = Route(client._route.servers, owners)
        for connection in client._connections:
            connection.control.create_table(spec, held).result()
    return addresses


@pytest.mark.parametrize("num_servers", [0, 1, 2])
def test_saving_a_table_that_is_not_there_is_refused(servers, num_servers):
    with Client(servers(num_servers) or None) as client:
        client.attach([SPEC])
        with pytest.raises(TableNotFound, match="'nobody' must be created first"):
            list(client.save("nobody"))


@pytest.mark.parametrize("num_servers", [0, 1, 2])
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "garbage", "gone", "renamed"])
def test_damaged_snapshot_is_named_and_the_rows_stay(servers, tmp_path, num_servers, damage):
    with Client(servers(num_servers) or None) as client:
        client.attach([SPEC])
        for _ in train(client, [SPEC], num_steps=3):
            pass
        expected, paths = content_of(client, "user", tmp_path / "saved")
        broken, data = paths[1], paths[1].read_bytes()
        flipped = bytearray(data)
        flipped[len(data) // 2] ^= 1
        if damage == "gone":
            broken.unlink()
        elif damage == "renamed":
            paths[1] = broken = broken.rename(broken.with_name("weights.arrow"))
        else:
            content = {"cut": data[:-9], "flipped": flipped, "empty": b"", "garbage": b"x" * 999}
            broken.write_bytes(content[damage])
        with pytest.raises(CheckpointError, match=broken.name):
            client.load("user", paths)
        if num_servers < 2:  # with more, those whose files are whole have loaded them
            found, _ = content_of(client, "user", tmp_path / "after")
            assert found.equals(expected)


@pytest.mark.parametrize("num_servers", [0, 2])
def test_snapshot_of_another_table_is_refused(servers, tmp_path, num_servers):
    with Client(None) as embedded:
        embedded.attach([SPEC])
        for _ in train(embedded, [SPEC], num_steps=1):
            pass
        paths = save(embedded, "user", tmp_path)
    for other in (TableSpec("user", 5, Adagrad(0.1)), TableSpec("user", 4, SGD(0.1))):
        with Client(servers(num_servers) or None) as client:
            client.attach([other])
            with pytest.raises(CheckpointError, match=r"do not fit table 'user' of dim=.*arrow"):
                client.load("user", paths)


def test_killed_server_is_named(daemon, server):
    victim = daemon()
    with Client([victim.address, server]) as client, ThreadPoolExecutor(3) as threads:
        client.attach([SPEC])
        routed = {"user": client.route(np.arange(100, dtype=np.uint64))}
        rows = client.pull(routed, insert=True)
        victim.freeze()
        calls = [
            threads.submit(client.pull, routed, insert=True),
            threads.submit(client.push, routed, rows, step=1),
            threads.submit(client.num_rows),
        ]
        victim.signal(signal.SIGKILL)
        for call in calls:
            with pytest.raises(ServerUnavailable, match=f"server {victim.address} must be reach"):
                call.result(LATER)
        for call in (lambda: client.pull(routed, insert=True), lambda: list(client.save("user"))):
            with pytest.raises(ServerUnavailable, match=victim.address):
                call()


def test_close_ends_the_calls_under_way(daemon):
    stuck = daemon()
    client = Client([stuck.address])
    client.attach([SPEC])
    routed = {"user": client.route(np.arange(100, dtype=np.uint64))}
    stuck.freeze()
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(client.pull, routed, insert=True),
            threads.submit(lambda: list(client.save("user"))),
        ]
        for call in calls:
            with pytest.raises(TimeoutError):
                call.result(0.05)
        client.close()
        for call in calls:
            with pytest.raises(ServerUnavailable, match=stuck.address):
                call.result(LATER)
    client.close()


def test_closed_client_says_so(server):
    client = Client([server])
    client.attach([SPEC])
    routed = {"user": client.route(np.arange(100, dtype=np.uint64))}
    client.close()
    calls = [
        lambda: client.pull(routed, insert=True),
        lambda: client.push(routed, {"user": np.ones((100, 4), np.float32)}, step=1),
        lambda: list(client.save("user")),
        lambda: client.load("user", []),
        client.num_rows,
    ]
    for call in calls:
        with pytest.raises(ServerUnavailable, match=r"after close\(\); make a new one"):
            call()


@pytest.mark.timeout(30)  # a call's own deadline is 60 s
def test_ctrl_c_does_not_wait_for_a_server_that_is_stuck(daemon):
    stuck = daemon()
    with Client([stuck.address]) as client:
        client.attach([SPEC])
        stuck.freeze()
        ctrl_c = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            ctrl_c.start()
            client.num_rows()
        ctrl_c.join()


def test_num_rows_of_a_table_that_was_dropped_is_refused(servers):
    addresses = servers(2)
    with Client(addresses) as client, Client(addresses) as other:
        client.attach([SPEC])
        other.attach([SPEC], fresh=True)
        assert client.num_rows() == {"user": 0}
        other._connections[0].control.drop_table("user").result()
        with pytest.raises(TableNotFound, match=f"got none on {other.addresses[0]}"):
            client.num_rows()


def test_connections_leave_no_open_files(server):
    def num_open():
        return len(os.listdir("/proc/self/fd"))

    def use():
        with Client([server]) as client:
            client.attach([SPEC])

    use()
    before = num_open()
    for _ in range(10):
        use()
    assert num_open() <= before + 2


@pytest.mark.parametrize("num_servers", [0, 3])
def test_frozen_tables_of_all_servers_are_saved_as_they_were(servers, tmp_path, num_servers):
    specs = SPECS[1]
    with Client(servers(num_servers) if num_servers else None) as client:
        client.attach(specs)
        list(train(client, specs))
        before = {s.name: save(client, s.name, tmp_path / "before" / s.name) for s in specs}
        freeze = client.freeze()
        list(train(client, specs, seed=1, first_step=9))
        for spec in specs:
            found = save(client, spec.name, tmp_path / "after" / spec.name, freeze=freeze)
            assert [p.name for p in found] == [p.name for p in before[spec.name]]
            for path, expected in zip(found, before[spec.name], strict=True):
                assert path.read_bytes() == expected.read_bytes()
            now = save(client, spec.name, tmp_path / "now" / spec.name)
            assert [p.read_bytes() for p in now] != [p.read_bytes() for p in found]
        client.release(freeze)
        with pytest.raises(ServerError, match="kept no longer"):
            save(client, "user", tmp_path / "late", freeze=freeze)
