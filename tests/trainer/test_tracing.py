"""The trace of a fit, with servers of their own processes and of another clock."""

import logging
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import hetero_pipe as hp
from hetero_pipe.client import Client
from hetero_pipe.trainer.tracing import FitTrace
from tests.toy import read, training
from tests.traces import Trace

ROOT = Path(__file__).parents[2]
STEPS = list(range(20))

# A process of another time namespace has another clock, as one of another host has.
AHEAD = 4000
APART = ["unshare", "--time", "--monotonic", str(AHEAD), "--kill-child", "--fork", "--"]
needs_time_namespace = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0,
    reason="no time namespace can be made here",
)


def check_servers(trace, addresses, *, slack=0):
    """Every server's Pull and Push lies within the trainer's of the same step."""
    for kind, stage in (("Pull", "pull"), ("Push", "push")):
        asked = {each.step: each for each in trace.slices("trainer", stage)}
        assert sorted(asked) == STEPS
        for address in addresses:
            served = trace.slices(f"ps-server {address}", None, kind)
            assert sorted(each.step for each in served) == STEPS
            for each in served:
                assert each.is_within(asked[each.step], slack=slack), (each, asked[each.step])


@pytest.mark.parametrize("staleness", [0, 2])
def test_trainer_and_servers_are_on_one_time_line(daemon, reader, tmp_path, staleness):
    addresses = [daemon().address, daemon().address]
    with training(trainer={"servers": addresses, "staleness": staleness}) as trainer:
        result = trainer.fit(reader, trace=tmp_path / "trace.json.gz")
    trace = Trace.read(tmp_path / "trace.json.gz")
    trace.check()
    assert len(trace.processes()) == 3
    assert trace.processes()[0].startswith("trainer ")
    assert trace.tracks("trainer") == ["read", "route", "pull", "dense", "push"]
    assert trace.arrows() == {
        f"1.{step}": ["read", "route", "pull", "dense", "push"] for step in STEPS
    }
    check_servers(trace, addresses)
    assert {server.name for server in result.summary.servers} == {
        f"ps-server {address}" for address in addresses
    }
    assert all(0 < server.busy < 1 for server in result.summary.servers)
    assert f"ps-server {addresses[0]}" in str(result.summary)
    # The bound of staleness, as both servers saw it.
    applied = {}
    for each in trace.slices("ps-server", None, "Push"):
        applied[each.step] = max(each.end, applied.get(each.step, 0))
    for each in trace.slices("ps-server", None, "Pull"):
        assert each.step <= staleness or applied[each.step - 1 - staleness] <= each.start


@needs_time_namespace
def test_a_server_of_another_host_s_clock_is_on_the_same_time_line(spawn, reader, tmp_path):
    far = spawn("--listen", "127.0.0.1:0", prefix=APART).wait_until_ready().address
    with Client([far]) as client:
        assert client.clock_ahead() == pytest.approx(AHEAD, abs=1.0)
    with training(trainer={"servers": [far]}) as trainer:
        trainer.fit(reader, trace=tmp_path / "trace.json")
    trace = Trace.read(tmp_path / "trace.json")
    trace.check()
    # The offset is off by half of the shortest round trip at most, which is part of any pull.
    shortest = min(s.end - s.start for s in trace.slices("trainer", "pull"))
    check_servers(trace, [far], slack=shortest // 2)


def test_evaluation_and_saving_are_seen_between_the_epochs(daemon, reader, path, tmp_path):
    address = daemon().address
    with training(trainer={"servers": [address]}) as trainer:
        trainer.fit(
            reader,
            epochs=2,
            eval_reader=read(path),
            save_to=tmp_path / "c",
            trace=tmp_path / "trace.json",
        )
    trace = Trace.read(tmp_path / "trace.json")
    trace.check()
    assert trace.steps("trainer", "dense") == list(range(40))
    assert trace.tracks("trainer")[-1] == "fit"
    evaluations = trace.slices("trainer", "fit", "evaluate")
    assert len(evaluations) == len(trace.slices("trainer", "fit", "save")) == 2
    predicting = [s for s in trace.slices("ps-server", None, "Pull") if s.step is None]
    assert len(predicting) == 40
    for each in predicting:
        assert any(each.is_within(whole) for whole in evaluations)
    trained = {s.step: s for s in trace.slices("trainer", "dense")}
    assert trained[19].end <= evaluations[0].start <= evaluations[0].end <= trained[20].start


def test_without_a_server_the_trainer_is_alone(reader, tmp_path):
    with training() as trainer:
        result = trainer.fit(reader, trace=tmp_path / "trace.json", max_steps=3)
        trainer.fit(reader, max_steps=3)
    trace = Trace.read(tmp_path / "trace.json")
    trace.check()
    assert trace.steps("trainer", "push") == [0, 1, 2]
    assert len(trace.processes()) == 1
    assert result.summary.servers == ()
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]


def test_a_fit_that_fails_leaves_its_trace(daemon, reader, tmp_path, caplog):
    server = daemon()

    class Killer:
        def on_step(self, report):
            if report.step == 4:
                server.process.kill()
                server.process.wait()

        def on_epoch(self, epoch, evaluation):
            pass

    with (
        training(trainer={"servers": [server.address]}) as trainer,
        caplog.at_level(logging.WARNING),
        pytest.raises(hp.ServerUnavailable),
    ):
        trainer.fit(reader, callbacks=[Killer()], trace=tmp_path / "trace.json")
    trace = Trace.read(tmp_path / "trace.json")
    trace.check()
    assert trace.steps("trainer", "push")[:5] == [0, 1, 2, 3, 4]
    assert len(trace.processes()) == 1
    assert "the trace is not whole: server" in caplog.text


def test_workers_give_their_spans_and_the_first_writes(daemon, reader, tmp_path):
    """What `Group.gather` does, one worker after the other."""
    address, told = daemon().address, []
    with Client([address]) as client:
        first, second = (
            FitTrace(
                tmp_path / "trace.json",
                client=client,
                role=f"worker {rank}",
                gather=lambda value: [*told, value],
                is_first=rank == 0,
            )
            for rank in (0, 1)
        )
        for each in (first, second):
            each.start()
            each.ring.record("dense", "dense", 3, 10.0, 11.0)
            each.is_whole = True
        second.stop()
        assert (tmp_path / "trace.json").read_bytes() == b""
        told.append(second.ring.spans(role="worker 1").to_dict())
        first.stop()
    trace = Trace.read(tmp_path / "trace.json")
    assert [name.rpartition(" ")[0] for name in trace.processes()] == [
        "worker 1",
        "worker 0",
        f"ps-server {address}",
    ]
    assert trace.steps("worker 1", "dense") == trace.steps("worker 0", "dense") == [3]


def test_a_worker_that_is_lost_at_the_end_is_not_in_the_trace(tmp_path, caplog):
    def gather(value):
        raise hp.WorkerLost("worker 1 (there:7) is gone")

    with Client(None) as client, caplog.at_level(logging.WARNING):
        tracing = FitTrace(tmp_path / "t.json", client=client, role="worker 0", gather=gather)
        tracing.start()
        tracing.ring.record("read", "read", 0, 1.0, 2.0)
        tracing.is_whole = True
        tracing.stop()
    assert "the trace is not whole: worker 1 (there:7) is gone" in caplog.text
    assert Trace.read(tmp_path / "t.json").steps("worker 0", "read") == [0]


def test_a_trace_that_cannot_be_written_is_refused_before_the_first_step(daemon, reader, tmp_path):
    address = daemon().address
    with training(trainer={"servers": [address]}) as trainer:
        with pytest.raises(hp.ConfigError, match=r"written to a file, got .*nowhere.*\(--trace\)"):
            trainer.fit(reader, trace=tmp_path / "nowhere" / "trace.json")
        assert trainer.num_rows() == {"first_order": 0, "embedding": 0}
        assert trainer.fit(reader, max_steps=1).num_steps == 1


WORKER = """
import sys
import hetero_pipe as hp
from tests.toy import build, read

path, servers, rank, coordinator, trace = sys.argv[1:]
model, optimizer = build()
plan = hp.default_plan(
    model, servers=servers.split(","), workers=hp.WorkersPlan(mode="sync", num_readers=2)
)
worker = hp.Worker("whole", int(rank), coordinator)
with hp.Trainer(model, optimizer=optimizer, plan=plan, worker=worker) as trainer:
    trainer.fit(read(path), trace=trace)
"""


def test_two_workers_and_two_servers_are_one_trace(daemon, path, free_address, tmp_path):
    addresses = [daemon().address, daemon().address]
    with ExitStack() as running:
        workers = [
            running.enter_context(
                subprocess.Popen(
                    [
                        *(sys.executable, "-c", WORKER, path, ",".join(addresses), str(rank)),
                        *(free_address, tmp_path / "trace.json"),
                    ],
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in (0, 1)
        ]
        for worker in workers:
            running.callback(worker.kill)
        for worker in workers:
            said = worker.communicate(timeout=100)[1]
            assert worker.returncode == 0, said
    trace = Trace.read(tmp_path / "trace.json")
    trace.check()
    assert [name.rpartition(" ")[0] for name in trace.processes()[:2]] == ["worker 0", "worker 1"]
    assert len(trace.processes()) == 4
    steps = trace.steps("worker 0", "push")
    assert steps == trace.steps("worker 1", "push") == list(range(len(steps)))
    assert len(steps) >= 10
    for address in addresses:
        for rank in (0, 1):
            pushed = trace.slices(f"worker {rank}", "push")
            served = trace.slices(f"ps-server {address}", None, f"Push of worker {rank}")
            assert [each.step for each in served] == steps
            assert all(s.is_within(p) for s, p in zip(served, pushed, strict=True))
        # Of the two parts of a step, the first to come waits for the other.
        waits = trace.slices(f"ps-server {address}", None, "waiting for other workers")
        assert [each.step for each in waits] == steps
