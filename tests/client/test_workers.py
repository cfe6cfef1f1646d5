"""Several workers on real servers: what is applied when, and what a death does to the rest."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.client import Client
from hetero_pipe.errors import ConfigError, ServerError, ServerUnavailable, WorkerLost
from ps_server.server import Server
from ps_server.spec import SGD, Adagrad, Constant, TableSpec
from tests.oracles.schedule import run_schedule

ROOT = Path(__file__).parents[2]
SOON = 0.05
LATER = 30.0
AT_MOST = 1.0  # seconds from the death of a worker to the error of those that wait for it
SPEC = TableSpec("user", 2, Adagrad(0.1))
KEYS = np.arange(100, dtype=np.uint64)


@pytest.fixture
def clients(servers, threads):  # closed before the threads are waited for
    """Returns a function that joins n workers to m servers."""
    with ExitStack() as stack:

        def start(number, *, addresses=None, num_servers=2, begin=0):
            addresses = addresses or servers(num_servers)
            made = [stack.enter_context(Client(addresses)) for _ in range(number)]
            for rank, client in enumerate(made):
                client.attach([SPEC])
                client.join(rank=rank, num_workers=number, name=f"w{rank}")
                client.begin(begin)
            return made

        yield start


@pytest.fixture
def threads():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def assert_blocks(future):
    with pytest.raises(TimeoutError):
        future.result(SOON)


def rows_of(client):
    return client.pull({"user": client.route(KEYS)}, insert=False)["user"]


def push(client, keys, value, **options):
    routed = {"user": client.route(np.array(keys, np.uint64))}
    gradients = {"user": np.full((len(routed["user"].keys), 2), value, np.float32)}
    client.push(routed, gradients, **options)


def test_parts_of_two_workers_give_the_bits_of_one_push_of_their_mean(clients, threads):
    one, two = clients(2)
    with Client(None) as alone:
        alone.attach([SPEC])
        for step in range(1, 4):
            parts = [
                threads.submit(push, one, KEYS[:60], 0.5 * step, step=step, weight=3),
                threads.submit(push, two, KEYS[40:], -1.0, step=step, weight=1),
            ]
            for part in parts:
                part.result(LATER)
            routed = {"user": alone.route(KEYS)}
            keys = routed["user"].keys
            first = (keys < 60) * np.float32(0.5 * step) * np.float32(0.75)
            second = (keys >= 40) * np.float32(-1.0) * np.float32(0.25)
            mean = np.repeat((first + second)[:, None], 2, axis=1).astype(np.float32)
            alone.push(routed, {"user": mean}, step=step)
        order = np.argsort(one.route(KEYS).keys)
        other = np.argsort(alone.route(KEYS).keys)
        assert np.array_equal(rows_of(one)[order], rows_of(alone)[other])


@pytest.mark.parametrize("num_servers", [1, 3])
def test_worker_without_data_takes_part_with_weight_0(clients, threads, num_servers):
    one, two = clients(2, num_servers=num_servers)
    before = rows_of(one)
    idle = threads.submit(push, two, [], 0.0, step=1, weight=0)
    assert_blocks(idle)
    push(one, [5], 1.0, step=1, weight=4)
    idle.result(LATER)
    changed = (rows_of(one) != before).any(axis=1)
    assert one.route(KEYS).keys[changed].tolist() == [5]
    ends = [threads.submit(push, each, [], 0.0, step=2, weight=0) for each in (one, two)]
    for end in ends:  # nobody has data: the step is applied, to nothing
        end.result(LATER)
    assert one.num_rows() == {"user": 1}


def test_pull_waits_on_every_server_for_the_pushes_that_it_may_not_miss(clients, threads):
    """Also for a push that has no keys there."""
    one, two = clients(2, num_servers=3, begin=4)
    push(one, KEYS, 1.0, step=5)
    routed = {"user": one.route(KEYS)}
    assert len(one.pull(routed, insert=True, after_step=4)["user"]) == 100
    pull = threads.submit(one.pull, routed, insert=True, after_step=5)
    assert_blocks(pull)
    push(two, [7], 1.0, step=5)
    assert len(pull.result(LATER)["user"]) == 100
    pull = threads.submit(one.pull, routed, insert=True, after_step=6)
    push(one, [], 0.0, step=6)
    assert_blocks(pull)
    two.end()
    pull.result(LATER)
    two.begin(9)  # a next epoch, as it were
    push(two, KEYS, 0.0, step=10)


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_no_pull_from_two_servers_misses_more_than_k_steps_of_any_worker(data):
    """As tests/ps_server/test_workers.py has it of one store: here the wire and two clocks."""
    num_steps = data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=3), "steps")
    staleness = data.draw(st.integers(0, 2), "staleness")
    turns = [rank for rank, steps in enumerate(num_steps) for _ in range(2 * steps + 1)]
    turns = data.draw(st.permutations(turns), "turns")
    # 32 keys a worker, on both servers: each row is how many pushes of its worker it has seen.
    spec = TableSpec("seen", 1, SGD(1.0), Constant(0.0))
    keys = np.arange(32 * len(num_steps), dtype=np.uint64)
    with ExitStack() as stack:
        addresses = [stack.enter_context(Server("127.0.0.1:0")).address for _ in range(2)]
        workers = [stack.enter_context(Client(addresses)) for _ in num_steps]
        for rank, client in enumerate(workers):
            client.attach([spec])
            client.join(rank=rank, num_workers=len(num_steps))
            client.begin(0)

        def pull(rank, after_step):
            routed = workers[rank].route(keys)
            rows = workers[rank].pull({"seen": routed}, insert=True, after_step=after_step)
            return [rows["seen"][routed.keys // 32 == w, 0] for w in range(len(num_steps))]

        def push_one(rank, step):
            routed = {"seen": workers[rank].route(keys[32 * rank : 32 * rank + 32])}
            workers[rank].push(routed, {"seen": np.full((32, 1), -1, np.float32)}, step=step)

        pulled = run_schedule(
            num_steps,
            staleness,
            turns,
            pull=pull,
            push=push_one,
            end=lambda rank: workers[rank].end(),
        )
        for _, step, seen in pulled:
            for rows, steps in zip(seen, num_steps, strict=True):
                assert min(step, steps) - staleness <= rows.min() <= rows.max() <= steps
        for rows, steps in zip(pull(0, 0), num_steps, strict=True):
            assert (rows == steps).all(), "each push is applied once"


def test_client_says_what_must_come_first(servers):
    with Client(servers(1)) as client:
        client.attach([SPEC])
        for call in (
            lambda: client.begin(0),
            client.end,
            client.goodbye,
            lambda: push(client, [1], 1.0, step=1, weight=2),
            lambda: client.pull({}, insert=True, after_step=0),
        ):
            with pytest.raises(ConfigError, match="has joined; call join first"):
                call()
        client.join(rank=0, num_workers=1)
        with pytest.raises(ConfigError, match="a client joins once, got rank=1 after rank=0"):
            client.join(rank=1, num_workers=2)
        with pytest.raises(ServerError, match="pushes after it has begun, got step=1"):
            push(client, [1], 1.0, step=1)


def test_rank_that_is_taken_is_refused_by_name_and_leaves_no_member(clients, servers):
    addresses = servers(2)
    clients(1, addresses=addresses[:1])
    with Client(addresses) as second:
        with pytest.raises(ServerError, match=r"rank=0 from .*, but worker 0 \(w0\) is here"):
            second.join(rank=0, num_workers=1)
        with pytest.raises(ConfigError, match="call join first"):
            second.begin(0)


@pytest.mark.parametrize("num_servers", [0, 2])
def test_one_worker_that_joins_gives_the_bits_of_one_that_does_not(servers, num_servers):
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((3, 100, 2)).astype(np.float32)
    with Client(servers(num_servers) or None) as one, Client(servers(num_servers) or None) as two:
        for client in (one, two):
            client.attach([SPEC])
        one.join(rank=0, num_workers=1)
        one.begin(0)
        for step in range(1, 4):
            for client, options in ((one, {"weight": 9}), (two, {})):
                mine = gradients[step - 1][client.route(KEYS).keys.astype(int)]
                client.push({"user": client.route(KEYS)}, {"user": mine}, step=step, **options)
            one.pull({"user": one.route(KEYS)}, insert=True, after_step=step)
        rows = []
        for client in (one, two):
            rows.append(rows_of(client)[np.argsort(client.route(KEYS).keys)])
        assert np.array_equal(*rows)
        one.end()
        one.goodbye()


def test_without_servers_there_is_one_worker():
    with Client(None) as client:
        with pytest.raises(ValueError, match="of num_workers=1, got num_workers=2"):
            client.join(rank=0, num_workers=2)
        client.join(rank=0, num_workers=1)


WORKER = """
import sys
import numpy as np
from hetero_pipe.client import Client
from ps_server.spec import Adagrad, TableSpec

servers, rank, num_workers, what = sys.argv[1].split(","), *map(int, sys.argv[2:4]), sys.argv[4]
client = Client(servers)
client.attach([TableSpec("user", 2, Adagrad(0.1))])
client.join(rank=rank, num_workers=num_workers, name=f"process{rank}")
client.begin(0)
print("begun", flush=True)
if what == "part":
    routed = {"user": client.route(np.arange(100, dtype=np.uint64))}
    client.push(routed, {"user": np.ones((100, 2), np.float32)}, step=1, weight=1)
elif what == "goodbye":
    client.end()
    client.goodbye()
elif what == "exit":
    sys.exit()
sys.stdin.read()
"""


@pytest.fixture
def worker():
    """Returns a function that starts a worker's process and waits until it has begun."""
    with ExitStack() as stack:

        def start(servers, rank, number, what="wait"):
            process = stack.enter_context(
                subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        WORKER,
                        ",".join(servers),
                        *map(str, (rank, number)),
                        what,
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            )
            stack.callback(process.kill)
            assert process.stdout.readline() == b"begun\n"
            return process

        yield start


def start_waiting(client, threads, wait):
    routed = {"user": client.route(KEYS)}
    if wait == "pull":
        return threads.submit(client.pull, routed, insert=True, after_step=1)
    return threads.submit(push, client, KEYS, 1.0, step=1, weight=1)


@pytest.mark.parametrize("wait", ["pull", "push"])
@pytest.mark.parametrize("end", ["kill", "exit"])
def test_worker_that_ends_without_goodbye_is_named_to_who_waits_for_it(
    daemon, worker, threads, wait, end
):
    """Within a second, by kill -9 or by its own end."""
    servers = [daemon().address for _ in range(2)]
    victim = worker(servers, 1, 2)
    with Client(servers) as client:
        client.attach([SPEC])
        client.join(rank=0, num_workers=2, name="w0")
        client.begin(0)
        waiting = start_waiting(client, threads, wait)
        assert_blocks(waiting)
        if end == "kill":
            victim.send_signal(signal.SIGKILL)
        else:
            victim.stdin.close()
            victim.wait(LATER)
        with pytest.raises(WorkerLost, match=r"^worker 1 \(process1\) is lost: .* \(server 127\."):
            waiting.result(AT_MOST)
        assert client.num_rows() == {"user": 0}


@pytest.mark.long  # nothing tells of it but pings without an answer: 20 s, and 20 s for the answer
@pytest.mark.parametrize("frozen", ["worker", "server"])
def test_process_that_falls_silent_is_named_within_a_minute(daemon, worker, threads, frozen):
    server = daemon()
    other = worker([server.address], 1, 2)
    with Client([server.address]) as client:
        client.attach([SPEC])
        client.join(rank=0, num_workers=2)
        client.begin(0)
        waiting = start_waiting(client, threads, "pull")
        assert_blocks(waiting)
        if frozen == "worker":
            other.send_signal(signal.SIGSTOP)
        else:
            server.freeze()
        words = r"worker 1 \(process1\)" if frozen == "worker" else server.address
        with pytest.raises((WorkerLost, ServerUnavailable), match=words):
            waiting.result(60)


def test_worker_killed_with_its_part_under_way_leaves_nothing_of_the_step(daemon, worker, threads):
    servers = [daemon().address for _ in range(2)]
    victim = worker(servers, 1, 3, "part")
    third = worker(servers, 2, 3)
    with Client(servers) as client:
        client.attach([SPEC])
        client.join(rank=0, num_workers=3, name="w0")
        client.begin(0)
        waiting = start_waiting(client, threads, "push")
        assert_blocks(waiting)
        victim.send_signal(signal.SIGKILL)
        with pytest.raises(WorkerLost, match=r"worker 1 \(process1\)"):
            waiting.result(AT_MOST)
        with pytest.raises(WorkerLost, match=r"worker 1 \(process1\)"):
            push(client, KEYS, 1.0, step=1, weight=1)
        assert client.num_rows() == {"user": 0}
    assert third.poll() is None


def test_server_killed_while_workers_wait_is_named(daemon, worker, threads):
    servers = [daemon(), daemon()]
    addresses = [server.address for server in servers]
    worker(addresses, 1, 2)
    with Client(addresses) as client:
        client.attach([SPEC])
        client.join(rank=0, num_workers=2)
        client.begin(0)
        waits = [start_waiting(client, threads, wait) for wait in ("pull", "push")]
        for wait in waits:
            assert_blocks(wait)
        for server in servers:
            server.signal(signal.SIGKILL)
        for wait in waits:
            with pytest.raises(ServerUnavailable, match="must be reachable"):
                wait.result(LATER)


def test_server_that_stops_ends_the_waits_of_workers(daemon, worker, threads):
    server = daemon()
    worker([server.address], 1, 2)
    with Client([server.address]) as client:
        client.attach([SPEC])
        client.join(rank=0, num_workers=2)
        client.begin(0)
        waits = [start_waiting(client, threads, wait) for wait in ("pull", "push")]
        for wait in waits:
            assert_blocks(wait)
        server.signal(signal.SIGTERM)
        for wait in waits:
            with pytest.raises(ServerUnavailable, match=f"server {server.address} must be reach"):
                wait.result(LATER)
        assert server.process.wait(LATER) == 0
    assert "Traceback" not in server.stderr()
    assert "is lost" not in server.stderr()


def test_closing_the_client_ends_its_waits_and_loses_the_worker(daemon, worker, threads):
    server = daemon()
    worker([server.address], 1, 2)
    client = Client([server.address])
    client.attach([SPEC])
    client.join(rank=0, num_workers=2, name="w0")
    client.begin(0)
    wait = start_waiting(client, threads, "push")
    assert_blocks(wait)
    client.close()
    with pytest.raises(ServerUnavailable):
        wait.result(LATER)


def test_server_of_n_workers_leaves_by_itself_when_each_has_said_goodbye(daemon, worker):
    servers = [daemon("--num-workers", "3") for _ in range(2)]
    addresses = [server.address for server in servers]
    leaving = [worker(addresses, rank, 3, "goodbye") for rank in range(2)]
    for process in leaving:
        process.communicate(timeout=LATER)
    with Client(addresses) as client:
        client.join(rank=2, num_workers=3)
        assert [server.process.poll() for server in servers] == [None, None]
        client.goodbye()
    for server in servers:
        assert server.process.wait(LATER) == 0
        assert "stopping at the goodbye of the last worker" in server.stderr()
        assert "worker 0 (process0) has said goodbye" in server.stderr()
        assert "Traceback" not in server.stderr()


def test_server_of_n_workers_ends_badly_when_one_was_lost_and_the_rest_has_left(daemon, worker):
    server = daemon("--num-workers", "2")
    victim, other = (worker([server.address], rank, 2) for rank in range(2))
    victim.send_signal(signal.SIGKILL)
    victim.wait(LATER)
    assert server.process.poll() is None
    other.stdin.close()  # it ends without goodbye too
    assert server.process.wait(LATER) == 1
    assert "WARNING worker 0 (process0) is lost: its connection broke" in server.stderr()
    assert "Traceback" not in server.stderr()


def test_server_of_n_workers_refuses_another_number(daemon):
    server = daemon("--num-workers", "2")
    with (
        Client([server.address]) as client,
        pytest.raises(ServerError, match=r"of num_workers=2, got num_workers=3 .*--num-workers 3"),
    ):
        client.join(rank=0, num_workers=3)


def test_servers_without_a_number_serve_one_job_after_another(servers):
    addresses = servers(2)
    for num_workers in (1, 2, 3):
        with ExitStack() as stack:
            workers = [stack.enter_context(Client(addresses)) for _ in range(num_workers)]
            for rank, client in enumerate(workers):
                client.join(rank=rank, num_workers=num_workers)
            for client in workers:
                client.goodbye()
