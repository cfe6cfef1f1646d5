"""Sparse and dense workers in processes of their own: as one process, and nobody waits for ever."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from hetero_pipe.client import Client
from hetero_pipe.nn import find_embeddings
from tests.trainer import stage_worker
from tests.trainer.stage_worker import ROOT, Job

MODULE = "tests.trainer.stage_worker"

# Each starts up to four processes that import Paddle.
pytestmark = pytest.mark.slow


class Process:
    """A worker as a process. Its stderr is a file."""

    def __init__(self, job, stage, rank, environment):
        self.job = job
        self.log = Path(job.folder) / f"{stage}-{rank}.log"
        self.found = Path(job.folder) / f"{stage}-{rank}.npz"
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, json.dumps(asdict(job)), stage, str(rank)],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            )

    def wait(self, seconds=120):
        code = self.process.wait(seconds)
        return code, self.log.read_text()

    def succeeded(self):
        code, log = self.wait()
        assert code == 0, log
        with np.load(self.found) as arrays:
            return dict(arrays)

    def wait_until_ready(self):
        assert self.process.stdout.readline() == "ready\n", self.log.read_text()
        return self

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def start():
    """Returns a function that starts a worker of a job."""
    with ExitStack() as running:

        def start_one(job, stage, rank=0, environment=None):
            process = Process(job, stage, rank, environment or {})
            running.callback(process.end)
            return process

        yield start_one


def free_addresses(number):
    """Returns 127.0.0.1:PORT where nobody listens, so many."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return tuple(f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes)


@pytest.fixture
def job(tmp_path):
    coordinator, dense = free_addresses(2)
    return Job(str(tmp_path), dense=(dense,), coordinator=coordinator)


def rows_on(servers, job):
    """Returns all rows that a job's first steps have touched, by table, in the order of keys."""
    embeddings = find_embeddings(stage_worker.build_model(job.model))
    train, _ = stage_worker.open_data(job)
    batches = [batch for batch, _ in zip(train.batches(0), range(job.steps), strict=False)]
    with Client(servers) as client:
        client.attach([layer.spec(name) for name, layer in embeddings.items()])
        found = {}
        for name, layer in embeddings.items():
            keys = [batch.bags[slot].keys for batch in batches for slot in layer.slots]
            routed = client.route(np.unique(np.concatenate(keys)))
            rows = client.pull({name: routed}, insert=False)[name]
            found[name] = rows[np.argsort(routed.keys)]
    return found


@pytest.fixture
def train_alone(job, servers):
    """Returns a function that trains in one process, this one: the oracle."""

    def train(**changes):
        addresses = tuple(servers(1))
        changed = replace(job, servers=addresses, **changes)
        return stage_worker.run(changed), rows_on(addresses, changed)

    return train


@pytest.fixture
def train_apart(job, daemon, start):
    """Returns a function that trains in processes of their own."""

    def train(*, num_servers=1, **changes):
        addresses = tuple(daemon().address for _ in range(num_servers))
        changed = replace(job, servers=addresses, **changes)
        dense, sparse = start(changed, "dense"), start(changed, "sparse")
        return sparse.succeeded(), dense.succeeded(), rows_on(addresses, changed)

    return train


@pytest.mark.parametrize(
    ("model", "num_servers", "mode"),
    [
        ("deepfm", 1, "bounded"),
        ("din", 3, "bounded"),
        pytest.param("deepfm", 3, "sync", marks=pytest.mark.long),
        pytest.param("din", 1, "sync", marks=pytest.mark.long),
    ],
)
def test_a_sparse_and_a_dense_process_are_one_process_bit_for_bit(
    model, num_servers, mode, train_alone, train_apart
):
    alone, alone_rows = train_alone(model=model)
    sparse, dense, rows = train_apart(model=model, num_servers=num_servers, mode=mode)
    assert len(alone["losses"]) == alone["steps"] == 20
    np.testing.assert_array_equal(dense["losses"], alone["losses"])
    parameters = [name for name in alone if name.startswith("dense/")]
    assert len(parameters) >= 6
    for name in parameters:
        np.testing.assert_array_equal(dense[name], alone[name], err_msg=name)
    assert rows.keys() == alone_rows.keys()
    for table, found in rows.items():
        assert np.any(found)
        np.testing.assert_array_equal(found, alone_rows[table], err_msg=table)
    for name in ("loss", "auc", "steps", "samples", "eval_auc", "eval_log_loss", "rows"):
        assert sparse[name] == alone[name], name
        assert dense[name] == alone[name], name
    assert sparse["max_staleness"] == 0
    np.testing.assert_array_equal(sparse["probabilities"], alone["probabilities"])


@pytest.mark.parametrize(
    ("wire", "tolerance"),
    [("bfloat16", 2e-2), pytest.param("float16", 2e-3, marks=pytest.mark.long)],
)
def test_fewer_bits_on_the_wire_train_alike(wire, tolerance, train_alone, train_apart):
    alone, _ = train_alone()
    sparse, dense, _ = train_apart(wire=wire)
    assert np.any(dense["losses"] != alone["losses"])  # it is another wire
    np.testing.assert_allclose(dense["losses"], alone["losses"], rtol=tolerance)
    assert abs(sparse["eval_auc"] - alone["eval_auc"]) < 5 * tolerance


def test_with_staleness_steps_are_under_way_at_once_and_within_the_bound(train_alone, train_apart):
    alone, _ = train_alone()
    sparse, dense, _ = train_apart(staleness=2, steps=30)
    assert dense["steps"] == sparse["steps"] == 30
    assert 1 <= sparse["max_staleness"] <= 2
    np.testing.assert_allclose(dense["losses"][:20], alone["losses"], rtol=0.05)


@pytest.fixture
def train_many(job, daemon, start):
    """Returns a function that trains with several sparse and dense workers."""

    def train(*, num_dense, on=None, **changes):
        addresses = tuple(daemon().address for _ in range(2))
        changed = replace(
            job, servers=addresses, dense=free_addresses(num_dense), num_readers=2, **changes
        )
        dense = [start(changed, "dense", rank, on) for rank in range(num_dense)]
        sparse = [start(changed, "sparse", rank) for rank in range(2)]
        found = [worker.succeeded() for worker in sparse], [worker.succeeded() for worker in dense]
        return *found, rows_on(addresses, replace(changed, batch_size=2 * changed.batch_size))

    return train


def test_a_dense_worker_on_a_device_computes_what_one_on_the_cpu_does(train_many, emulated):
    """Copies take milliseconds, so what is sent is copied in beside the kernels of others."""
    device = emulated.environment(emulated.build(), bandwidth=20e6)
    (there, *_), (on_device,), rows_there = train_many(num_dense=1, on=device, mode="sync")
    (here, *_), (on_cpu,), rows_here = train_many(num_dense=1, mode="sync")
    assert (on_device["device"], on_cpu["device"]) == ("emulated:0", "cpu")
    assert len(on_device["losses"]) == len(on_cpu["losses"]) == 40  # of each part of a step
    np.testing.assert_allclose(on_device["losses"], on_cpu["losses"], rtol=1e-6)
    for table, found in rows_there.items():
        np.testing.assert_allclose(found, rows_here[table], rtol=1e-5, atol=1e-7, err_msg=table)
    np.testing.assert_allclose(there["probabilities"], here["probabilities"], rtol=1e-5)


def apart(found, expected):
    """Returns the norm of the difference relative to that of what is expected."""
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


# Gradients of DIN's attention are near nothing at first, and Adam makes steps of a size of what
# rounding leaves of them.
@pytest.mark.parametrize(
    ("num_dense", "model", "tolerance"),
    [(2, "deepfm", 1e-5), pytest.param(1, "din", 2e-4, marks=pytest.mark.long)],
)
def test_in_sync_two_sparse_workers_are_one_process_with_their_batches(
    num_dense, model, tolerance, train_alone, train_many
):
    alone, alone_rows = train_alone(model=model, batch_size=512)
    sparse, dense, rows = train_many(num_dense=num_dense, model=model, mode="sync")
    for worker in dense:
        for name in (name for name in alone if name.startswith("dense/")):
            np.testing.assert_array_equal(worker[name], dense[0][name])  # replicas stay equal
            assert apart(worker[name], alone[name]) < tolerance, name
    for table, found in rows.items():
        assert apart(found, alone_rows[table]) < tolerance, table
    for worker in (*sparse, *dense):
        assert worker["steps"] == alone["steps"] == 20
        assert worker["samples"] == alone["samples"]
        for name in ("loss", "auc", "eval_auc", "eval_log_loss"):
            np.testing.assert_allclose(worker[name], alone[name], rtol=1e-5)


def test_in_sync_workers_of_unequal_data_end_together(job, train_many):
    """The epoch has an odd number of batches, and the last one is short."""
    sparse, dense, _ = train_many(num_dense=1, mode="sync", steps=10**6, batch_size=8192)
    train, _ = stage_worker.open_data(replace(job, batch_size=8192))
    sizes = [batch.size for batch in train.batches(0)]
    assert len(sizes) % 2 == 1
    for worker in (*sparse, *dense):
        assert worker["steps"] == (len(sizes) + 1) // 2
        assert worker["samples"] == sum(sizes)
    assert len(dense[0]["losses"]) == len(sizes)


@pytest.mark.parametrize(
    ("num_dense", "mode"), [(2, "bounded"), pytest.param(1, "async", marks=pytest.mark.long)]
)
def test_without_sync_sparse_workers_feed_dense_ones_as_they_come(num_dense, mode, job, train_many):
    sparse, dense, _ = train_many(num_dense=num_dense, mode=mode, staleness=1, steps=30)
    assert sum(len(worker["losses"]) for worker in dense) == 60
    for worker in (*sparse, *dense):
        assert worker["samples"] == 60 * job.batch_size
        assert worker["loss"] == sparse[0]["loss"]
        assert 0.6 < worker["loss"] < 0.72
    for name in (name for name in dense[0] if name.startswith("dense/")):
        np.testing.assert_array_equal(dense[0][name], dense[-1][name])  # the last average


# ------------------------------------------------------------------ when it goes wrong


@pytest.fixture
def start_both(job, daemon, start):
    """Returns a function that starts a dense and a sparse worker, and waits until they train."""

    def start_them(**changes):
        changed = replace(job, servers=(daemon().address,), steps=10**6, **changes)
        dense, sparse = start(changed, "dense"), start(changed, "sparse")
        return dense.wait_until_ready(), sparse.wait_until_ready()

    return start_them


def name_of(process, stage):
    return f"{stage} worker 0 ({socket.gethostname()}:{process.process.pid})"


def test_a_dense_step_that_fails_is_the_sparse_workers_error_with_its_traceback(start_both):
    dense, sparse = start_both(nan_at=5)
    code, log = sparse.wait()
    assert code == 1
    where = f"{name_of(dense, 'dense')} failed in stage dense at step 5: gradients"
    assert f"hetero_pipe.errors.NonFiniteError: {where}" in log
    assert "in train_parts" in log  # of the dense worker's traceback
    assert "sparse worker" not in log.splitlines()[-1]
    code, log = dense.wait()
    assert code == 1
    assert "NonFiniteError: gradients must be finite, got [nan" in log


@pytest.mark.parametrize("victim", ["sparse", "dense"])
def test_a_worker_that_is_killed_is_named_by_the_other(victim, start_both):
    dense, sparse = start_both()
    killed, other = (sparse, dense) if victim == "sparse" else (dense, sparse)
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait(10)
    code, log = other.wait(30)
    assert code == 1
    assert f"hetero_pipe.errors.WorkerLost: {name_of(killed, victim)} is lost" in log


@pytest.mark.long  # 20 s of silence each
@pytest.mark.parametrize("victim", ["sparse", "dense"])
def test_a_worker_that_answers_no_more_is_named_within_twenty_seconds_or_so(victim, start_both):
    dense, sparse = start_both()
    stopped, other = (sparse, dense) if victim == "sparse" else (dense, sparse)
    os.kill(stopped.process.pid, signal.SIGSTOP)
    code, log = other.wait(45)  # a ping that nobody answers is given up after 60 by default
    assert code == 1
    assert f"WorkerLost: {name_of(stopped, victim)} is " in log  # gone, or lost


@pytest.mark.parametrize(
    ("whom", "mode"),
    [
        (["sparse", "dense"], "bounded"),  # that of a terminal comes to all
        pytest.param(["dense"], "async", marks=pytest.mark.long),
        pytest.param(["sparse"], "bounded", marks=pytest.mark.long),
        pytest.param(["dense"], "sync", marks=pytest.mark.long),
    ],
)
def test_a_ctrl_c_of_any_ends_both_between_two_steps_and_saves(
    whom, mode, start_both, start, tmp_path
):
    saved = tmp_path / "saved"
    dense, sparse = start_both(mode=mode, save_to=str(saved))
    both = {"dense": dense, "sparse": sparse}
    for stage in whom:
        os.kill(both[stage].process.pid, signal.SIGINT)
    for stage, worker in both.items():
        code, log = worker.wait(30)
        assert code != 0
        last = log.splitlines()[-1]
        if stage in whom:
            assert last.startswith("KeyboardInterrupt"), log
        else:
            assert f"{name_of(both[whom[0]], whom[0])} was interrupted" in last, log
    manifest = json.loads((saved / "manifest.json").read_text())
    assert manifest["position"]["epoch"] == 0
    again = replace(dense.job, save_to="", load=str(saved), steps=3)
    for worker in (start(again, "dense"), start(again, "sparse")):
        assert worker.succeeded()["steps"] == 3


@pytest.mark.long
def test_a_second_ctrl_c_of_a_dense_worker_gives_the_others_up(start_both, wait_until):
    dense, sparse = start_both()
    os.kill(sparse.process.pid, signal.SIGSTOP)
    try:
        os.kill(dense.process.pid, signal.SIGINT)
        wait_until(lambda: "Ctrl-C again gives them up" in dense.log.read_text())
        os.kill(dense.process.pid, signal.SIGINT)
        code, log = dense.wait(30)
    finally:
        os.kill(sparse.process.pid, signal.SIGCONT)
    assert code != 0
    assert log.splitlines()[-1] == "KeyboardInterrupt"
    assert f"{name_of(dense, 'dense')} was interrupted" in sparse.wait(30)[1].splitlines()[-1]


@pytest.fixture
def start_three(job, daemon, start):
    """Two sparse workers and a dense one that train in `sync`."""
    changed = replace(job, servers=(daemon().address,), steps=10**6, num_readers=2, mode="sync")
    workers = start(changed, "sparse", 0), start(changed, "sparse", 1), start(changed, "dense")
    return tuple(worker.wait_until_ready() for worker in workers)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_sparse_worker_that_is_killed_is_named_by_all_others(victim, start_three):
    killed = start_three[victim]
    os.kill(killed.process.pid, signal.SIGKILL)
    for other in start_three:
        if other is not killed:
            code, log = other.wait(30)
            assert code == 1
            last = log.splitlines()[-1]
            assert "WorkerLost" in last
            assert f"sparse worker {victim} " in last
            assert f":{killed.process.pid}) is lost: it ended" in last


def test_in_sync_a_ctrl_c_of_one_sparse_worker_ends_all_after_the_same_step(start_three):
    os.kill(start_three[1].process.pid, signal.SIGINT)
    for sparse in start_three[:2]:
        _, log = sparse.wait(30)
        assert log.splitlines()[-1].startswith("KeyboardInterrupt"), log
    code, log = start_three[2].wait(30)
    assert code == 1
    # Not the other one, which ended as this one did.
    named = f"sparse worker 1 ({socket.gethostname()}:{start_three[1].process.pid}) was interrupted"
    assert named in log.splitlines()[-1], log


def test_a_worker_that_is_alone_says_who_is_missing(job, daemon, start):
    job = replace(job, servers=(daemon().address,), connect_timeout=1.0)
    for stage, said in (
        ("sparse", "got nothing from dense worker 0; start them"),
        ("dense", "sparse worker 0 must listen on"),
    ):
        code, log = start(job, stage).wait()
        assert code == 1
        assert said in log


def test_a_dense_worker_whose_port_is_in_use_tells_the_sparse_ones(job, daemon, start):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        changed = replace(job, servers=(daemon().address,), dense=(taken,), connect_timeout=600.0)
        for worker in (start(changed, "sparse"), start(changed, "dense")):
            code, log = worker.wait(60)  # not until connect_timeout is over
            assert code == 1
            assert f"must listen on {taken}, which is in use" in log.splitlines()[-1]
