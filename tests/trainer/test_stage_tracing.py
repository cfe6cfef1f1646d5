"""The trace of sparse and dense workers, each a process of its own."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.traces import Trace
from tests.trainer.test_remote import free_addresses
from tests.trainer.test_tracing import APART, needs_time_namespace

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

WORKER = """
import sys
import time
import paddle
import hetero_pipe as hp
from tests.toy import build, read

path, servers, coordinator, dense, num_readers, *rest = sys.argv[1:]
mode, staleness, seconds, folder, stage, rank = rest
model, optimizer = build()


class Slow(paddle.nn.Layer):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        time.sleep(float(seconds))
        return self.model(batch)


plan = hp.default_plan(
    model := Slow(model),
    servers=servers.split(","),
    staleness=int(staleness),
    workers=hp.WorkersPlan(
        mode=mode, num_readers=int(num_readers), dense=tuple(dense.split(","))
    ),
)
worker = hp.Worker(stage, int(rank), coordinator)
with hp.Trainer(model, optimizer=optimizer, plan=plan, worker=worker) as trainer:
    result = trainer.fit(
        read(path), epochs=2, eval_reader=read(path), trace=folder + "/trace.json", callbacks=[]
    )
    print(result.num_steps)
    print(result.timeline)
    print(result.summary)
"""


@pytest.fixture
def train(path, tmp_path):
    """Returns a function that runs all workers; it gives the trace and what each has said."""

    def run(
        servers, *, num_readers=1, num_dense=1, mode="bounded", staleness=2, seconds=0.0, prefix=()
    ):
        coordinator, *dense = free_addresses(1 + num_dense)
        told = [",".join(servers), coordinator, ",".join(dense), str(num_readers)]
        told += [mode, str(staleness), str(seconds), str(tmp_path)]
        workers = [("sparse", rank) for rank in range(num_readers)]
        workers += [("dense", rank) for rank in range(num_dense)]
        with ExitStack() as running:
            processes = {
                (stage, rank): running.enter_context(
                    subprocess.Popen(
                        [
                            *(prefix if stage == "dense" else ()),
                            *(sys.executable, "-c", WORKER, path, *told, stage, str(rank)),
                        ],
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        text=True,
                    )
                )
                for stage, rank in workers
            }
            for process in processes.values():
                running.callback(process.kill)
            said = {}
            for worker, process in processes.items():
                said[worker], log = process.communicate(timeout=100)
                assert process.returncode == 0, log
        trace = Trace.read(tmp_path / "trace.json")
        trace.check()
        return trace, said

    return run


def check_batches(trace, steps, *, rank=0, slack=0):
    """What a dense worker does with a batch lies between its sparse worker's send and recv."""
    name = f"sparse worker {rank}"
    sent = {s.step: s for s in trace.slices(name, "send")}
    received = {s.step: s for s in trace.slices(name, "recv")}
    worked = [
        s for s in trace.slices("dense worker", "dense", f"batch of {name}") if s.step is not None
    ]
    assert sorted(s.step for s in worked) == sorted(sent) == sorted(received) == steps
    for each in worked:
        assert sent[each.step].start - slack <= each.start, (sent[each.step], each)
        assert each.end <= received[each.step].end + slack, (each, received[each.step])
    return worked


def test_a_sparse_and_a_dense_worker_and_a_server_are_one_trace(daemon, train):
    address = daemon().address
    trace, said = train([address], seconds=0.005)
    names = [name.rpartition(" ")[0] for name in trace.processes()]
    assert names == ["sparse worker 0", "dense worker 0", f"ps-server {address}"]
    stages = ["read", "route", "pull", "send", "recv", "push", "fit"]
    assert trace.tracks("sparse worker 0") == stages
    assert trace.tracks("dense worker 0") == ["recv", "dense", "send"]
    check_batches(trace, list(range(40)))
    # Of batches that nobody trains, too: 2 evaluations of 20.
    assert len(trace.slices("dense worker 0", "dense")) == 80
    assert trace.crossings() == {
        f"sparse worker 0.{step}": [
            ("sparse worker 0", "send"),
            ("dense worker 0", "dense"),
            ("sparse worker 0", "recv"),
        ]
        for step in range(40)
    }
    assert trace.steps("sparse worker 0", "send", "waiting for credit") == list(range(40))
    for stage in ("sparse", "dense"):
        assert said[stage, 0].startswith("40\n")
        assert "where time went: 40 steps" in said[stage, 0]
    assert f"ps-server {address}" in said["sparse", 0]


def test_who_waits_for_credit_is_told_that_dense_workers_are_too_few(daemon, train):
    """Two sparse workers want 3 batches each at a dense one, which has room for 5."""
    trace, said = train([daemon().address], num_readers=2, mode="async", staleness=0, seconds=0.03)
    for rank in (0, 1):
        waits = trace.slices(f"sparse worker {rank}", "send", "waiting for credit")
        assert [each.step for each in waits] == list(range(20))
        assert sum(each.end - each.start for each in waits) > 0.1 * 20 * 30e6
        assert "advice: send waits " in said["sparse", rank]
        assert "for a dense worker to have room, so the dense workers bound" in said["sparse", rank]


@pytest.mark.long
def test_all_batches_of_two_sparse_and_two_dense_workers_cross(daemon, train):
    trace, _ = train([daemon().address], num_readers=2, num_dense=2)
    assert len(trace.processes()) == 5
    for rank in (0, 1):
        worked = check_batches(trace, list(range(20)), rank=rank)
        for each in worked:
            assert each.process.startswith(f"dense worker {(rank + each.step) % 2} ")
    assert len(trace.crossings()) == 40


@needs_time_namespace
def test_a_dense_worker_of_another_host_s_clock_is_on_the_same_time_line(daemon, train):
    trace, _ = train([daemon().address], seconds=0.005, prefix=APART)
    # Half of the shortest round trip, of which a send and a recv are far longer ones.
    shortest = min(s.end - s.start for s in trace.slices("sparse worker 0", "recv"))
    check_batches(trace, list(range(40)), slack=shortest // 2)
