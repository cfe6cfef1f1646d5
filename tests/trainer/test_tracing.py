"""The trace of a fit, with servers of their own processes and of another clock."""

import logging
import shutil
import subprocess

import pytest

import hetero_pipe as hp
from hetero_pipe.client import Client
from hetero_pipe.trainer.tracing import FitTrace
from tests.toy import read, training
from tests.traces import Trace

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


def test_a_trace_that_cannot_be_written_is_refused_before_the_first_step(daemon, reader, tmp_path):
    address = daemon().address
    with training(trainer={"servers": [address]}) as trainer:
        with pytest.raises(hp.ConfigError, match=r"written to a file, got .*nowhere.*\(--trace\)"):
            trainer.fit(reader, trace=tmp_path / "nowhere" / "trace.json")
        assert trainer.num_rows() == {"first_order": 0, "embedding": 0}
        assert trainer.fit(reader, max_steps=1).num_steps == 1
