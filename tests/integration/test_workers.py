"""Several workers, each a process, on servers that are processes: they act as one."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from tests.toy import state_in

SCRIPT = Path(__file__).parent / "worker.py"
LATER = 120.0


@pytest.fixture
def start(daemon, tmp_path):
    """Returns a function that starts a job and gives its workers and its servers."""
    processes = []

    def launch(size, *, each=lambda rank: {}, environment=lambda rank: {}, **told):
        num_servers = 0 if told["mode"] in ("cpu_only", "gpu_only") else 2
        servers = [daemon("--num-workers", str(size)) for _ in range(num_servers)]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
        told = {"batch": 64, "size": size, "fresh": True, "coordinator": coordinator, **told}
        told["servers"] = [server.address for server in servers]
        workers = []
        for rank in range(size):
            arguments = json.dumps({**told, "rank": rank, **each(rank)})
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            command = [sys.executable, str(SCRIPT), arguments]
            env = {**os.environ, **environment(rank)}
            workers.append(subprocess.Popen(command, text=True, env=env, **pipes))
        processes.extend(workers)
        return workers, servers

    yield launch
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture
def run(start):
    """Returns a function that runs a job to its end and gives what each worker found."""

    def run_job(size, **told):
        workers, servers = start(size, **told)
        found = [worker.communicate(timeout=LATER) for worker in workers]
        assert [worker.returncode for worker in workers] == [0] * size, found
        # They leave by themselves, once all workers have said goodbye.
        assert [server.process.wait(LATER) for server in servers] == [0] * len(servers)
        return [json.loads(out.splitlines()[-1]) for out, _ in found]

    return run_job


def distance(found, expected):
    """Returns the length of the difference, relative to that of what is expected."""
    difference = np.linalg.norm((found - expected).ravel().astype(np.float64))
    return difference / max(np.linalg.norm(expected.ravel().astype(np.float64)), 1e-30)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "device"),
    [("sync", "cpu"), ("cpu_only", "cpu"), ("sync", "emulated:0"), ("gpu_only", "emulated:0")],
    indirect=["device"],
)
def test_sync_is_one_process_with_the_batches_of_all_in_one(run, tmp_path, mode, device):
    size = 2
    job = {"mode": mode, "steps": 20, "shuffle": 20_000}
    alone = run(1, batch=96 * size, save=str(tmp_path / "alone"), **job)[0]
    found = run(
        size,
        batch=96,
        save=str(tmp_path / "all"),
        each=lambda rank: {"seed": rank},  # the replicas begin as the first one all the same
        **job,
    )
    assert [each["device"] for each in (alone, *found)] == [device] * (1 + size)
    assert {each["backend"] for each in found} == {"GLOO" if device == "cpu" else "XCCL"}
    assert [each["digest"] for each in found] == [found[0]["digest"]] * size
    # Each has the rows, bit for bit; on servers, none has.
    assert [each.get("rows") for each in found] == [found[0].get("rows")] * size
    for each in found:
        assert (each["steps"], each["samples"]) == (20, 20 * 96 * size)
        assert each["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    states = [state_in(tmp_path / name) for name in ("all", "alone")]
    assert states[0].keys() == states[1].keys()
    for name, expected in states[1].items():
        if expected.dtype.kind == "f":
            assert distance(states[0][name], expected) < 1e-5, name
        elif not name.startswith("scheduler"):
            np.testing.assert_array_equal(states[0][name], expected, err_msg=name)


def one_key_a_sample(path, num):
    """Writes samples whose `own` key occurs once."""
    keys = [f"k{i}" for i in range(num)]
    pq.write_table(pa.table({"own": keys, "other": ["x"] * num, "label": [0] * num}), path)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "size", "num"),
    [
        ("sync", 2, 6 * 8 + 3),
        pytest.param("sync", 3, 4 * 8, marks=pytest.mark.long),
        ("bounded", 3, 4 * 8),
        ("async", 2, 6 * 8 + 3),
        pytest.param("cpu_only", 2, 6 * 8 + 3, marks=pytest.mark.long),
    ],
)
def test_workers_of_unequal_data_end_together_and_train_each_sample_once(
    run, tmp_path, mode, size, num
):
    data = one_key_a_sample(tmp_path / "data.parquet", num)
    saved = tmp_path / "saved"
    found = run(size, mode=mode, batch=8, model="witness", data=data, save=str(saved), delay=0.01)
    num_steps = -(-num // (8 * size))
    for each in found:
        assert (each["steps"], each["samples"]) == (num_steps, num)
    rows = state_in(saved)
    weights = np.sort(rows["rows/weights"].ravel())[::-1]
    # Once each; in a step of all, by the share of its batch in the samples of its step.
    sizes = [min(8, num - start) for start in range(0, num, 8)]
    steps = [sizes[i : i + size] for i in range(0, len(sizes), size)]
    once = [
        -(n / sum(step) if mode in ("sync", "cpu_only") else 1.0) for step in steps for n in step
    ]
    expected = np.repeat(once, sizes)
    np.testing.assert_allclose(weights, np.sort(np.append(expected, 0.0))[::-1], rtol=1e-6)


def see_one_another(path, num):
    """Writes samples, a batch each; batch n is of one worker of two and looks at the other."""
    pq.write_table(
        pa.table(
            {
                "own": [f"w{n % 2}" for n in range(num)],
                "other": [f"w{1 - n % 2}" for n in range(num)],
                "label": [0] * num,
            }
        ),
        path,
    )
    return str(path)


def lag(found, num_steps):
    """Returns the most pushes of the other worker that a pull of a step has missed."""
    return max(
        min(step, num_steps) - seen for each in found for step, seen in enumerate(each["seen"])
    )


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [2, pytest.param(0, marks=pytest.mark.long)])
def test_bounded_keeps_the_bound_whatever_is_slow(run, tmp_path, staleness):
    data = see_one_another(tmp_path / "data.parquet", 80)
    job = {"batch": 1, "model": "witness", "data": data, "staleness": staleness}
    found = run(2, mode="bounded", each=lambda rank: {"delay": 0.03 * rank}, **job)
    assert [len(each["seen"]) for each in found] == [40, 40]
    assert lag(found, 40) <= staleness


@pytest.mark.slow
def test_async_waits_for_nobody(run, tmp_path):
    data = see_one_another(tmp_path / "data.parquet", 80)
    job = {"batch": 1, "model": "witness", "data": data, "staleness": 1}
    found = run(2, mode="async", each=lambda rank: {"delay": 0.06 * rank}, **job)
    assert lag(found, 40) > 1  # what `bounded` forbids


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["sync", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("bounded", "async"))]
)
def test_replicas_are_equal_after_fit_and_scores_are_of_all_samples(run, mode):
    found = run(
        2, mode=mode, steps=25, evaluate=True, each=lambda rank: {"seed": rank}, staleness=0
    )
    one, other = found
    assert one["digest"] == other["digest"]
    assert one["probabilities"] == other["probabilities"]
    for each in found:
        labels, probabilities = np.array(each["labels"]), np.array(each["probabilities"])
        assert each["num"] == len(labels) == len(probabilities)
        assert each["auc"] == pytest.approx(roc_auc_score(labels, probabilities), rel=1e-12)
        expected = log_loss(labels, probabilities.astype(np.float64))
        assert each["log_loss"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
@pytest.mark.long  # test_resumed_job has one in step that is killed
@pytest.mark.parametrize("mode", ["sync", "cpu_only"])
def test_a_resumed_job_is_the_undisturbed_one_bit_for_bit(run, tmp_path, mode):
    job = {"mode": mode, "shuffle": 20_000}
    paths = [str(tmp_path / name) for name in ("whole", "half", "resumed")]
    whole = run(2, steps=12, save=paths[0], **job)
    run(2, steps=7, save=paths[1], **job)
    resumed = run(2, steps=5, load=paths[1], save=paths[2], **job)
    assert [each["digest"] for each in resumed] == [each["digest"] for each in whole]
    assert [each.get("rows") for each in resumed] == [each.get("rows") for each in whole]
    assert resumed[0]["loss"] == pytest.approx(whole[0]["loss"], rel=1e-12)
    states = [state_in(path) for path in paths[::2]]
    for name, expected in states[0].items():
        np.testing.assert_array_equal(states[1][name], expected, err_msg=name)


@pytest.mark.slow
def test_a_nan_of_one_worker_stops_all_before_anything_is_applied(start, run, tmp_path):
    saved, three = tmp_path / "saved", tmp_path / "three"
    workers, _ = start(
        2,
        mode="sync",
        save_to=str(saved),
        each=lambda rank: {"nan_at": 4 if rank else 1000},
    )
    for rank, worker in enumerate(workers):
        _, error = worker.communicate(timeout=LATER)
        assert worker.returncode == 1
        assert "NonFiniteError" in error
        assert ("found by worker 1" in error) == (rank == 0)
    run(2, mode="sync", steps=3, save=str(three))
    found, expected = state_in(saved), state_in(three)
    for name in expected:
        array, table = found[name], name.split("/")[0]
        if f"{table}/key" in expected:  # the pull of the fourth step has made rows
            array = array[np.isin(found[f"{table}/key"], expected[f"{table}/key"])]
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "rank", "device"),
    [
        ("sync", 0, "cpu"),
        ("bounded", 1, "cpu"),
        ("gpu_only", 1, "emulated:0"),
        pytest.param("sync", 1, "cpu", marks=pytest.mark.long),
        pytest.param("async", 1, "cpu", marks=pytest.mark.long),
        pytest.param("bounded", 1, "emulated:0", marks=pytest.mark.long),
        pytest.param("cpu_only", 0, "cpu", marks=pytest.mark.long),
    ],
    indirect=["device"],
)
def test_a_worker_that_is_killed_is_named_by_the_other(start, mode, rank, device):
    workers, servers = start(2, mode=mode, epochs=1000, tell=True)
    for worker in workers:
        assert json.loads(worker.stdout.readline()) == {"began": True}, worker.stderr.read()
    killed, other = workers[rank], workers[1 - rank]
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    _, error = other.communicate(timeout=20)
    assert other.returncode == 1
    # Whoever noticed it, a server perhaps, the meeting tells it.
    said = rf"hetero_pipe\.errors\.WorkerLost: worker {rank} \(.*:{killed.pid}\) is lost: it ended"
    assert re.match(said, error.splitlines()[-1])
    for server in servers:  # they leave as well, and say that not all went well
        assert server.process.wait(20) == 1


READING = "failed in stage read at step 5: DataError: line 7 has no label"
LEAVING = "failed: SystemExit: 7"
NAN = r"failed in stage dense at step 5: NonFiniteError: gradients must be finite, got \[nan"


@pytest.mark.slow
def test_a_worker_whose_device_is_full_is_named_and_all_end(start, on_emulated_device):
    workers, _ = start(
        2,
        mode="gpu_only",
        dim=64,  # 512 bytes a row with its state, of some thousand rows
        environment=lambda rank: {"EMULATED_MEMORY": "2e6"} if rank else {},
    )
    errors = [worker.communicate(timeout=LATER)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [1, 1], errors
    said = "must fit into the memory of device emulated:0, got"
    assert "hetero_pipe.errors.DeviceOutOfMemory: " in errors[1], errors[1]
    assert said in errors[1]
    assert "hetero_pipe.errors.WorkerLost: worker 1 (" in errors[0]
    assert said in errors[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "every", "failure"),
    [
        # Worker 0 waits on a server by then, which has another word for it.
        ("bounded", 3, ("exit_at", 7, LEAVING)),
        # It waits for nobody for long.
        ("async", 10**6, ("torn_at", 1, READING)),
        pytest.param("async", 3, ("nan_at", 1, NAN), marks=pytest.mark.long),
        pytest.param("sync", 3, ("torn_at", 1, READING), marks=pytest.mark.long),
        pytest.param("cpu_only", 3, ("exit_at", 7, LEAVING), marks=pytest.mark.long),
    ],
)
def test_why_the_first_worker_failed_is_told_by_the_other(start, mode, every, failure):
    how, code, said = failure
    at = 5 + (how != "torn_at")  # calls are counted from 1
    workers, _ = start(
        2,
        mode=mode,
        every=every,
        epochs=1000,
        each=lambda rank: {how: at, "delay": 1.0} if rank else {},
    )
    errors = [worker.communicate(timeout=LATER)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [1, code]
    last = errors[0].splitlines()[-1]
    named = rf"hetero_pipe\.errors\.WorkerLost: worker 1 \(.*:{workers[1].pid}\) {said}"
    assert re.match(named, last), errors


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    ["bounded", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("sync", "async"))],
)
def test_ctrl_c_of_one_ends_all_between_two_steps(start, run, tmp_path, mode):
    saved = str(tmp_path / "saved")
    workers, servers = start(2, mode=mode, epochs=1000, tell=True, save_to=saved)
    for worker in workers:
        assert json.loads(worker.stdout.readline()) == {"began": True}
    workers[1].send_signal(signal.SIGINT)
    errors = [worker.communicate(timeout=LATER)[1] for worker in workers]
    named = rf"KeyboardInterrupt: worker 1 \(.*:{workers[1].pid}\) was interrupted"
    assert re.fullmatch(named, errors[0].splitlines()[-1]), errors
    assert errors[1].splitlines()[-1] == "KeyboardInterrupt", errors
    assert [server.process.wait(LATER) for server in servers] == [0, 0]
    assert run(2, mode=mode, steps=3, load=saved, epochs=1000)[0]["steps"] == 3


@pytest.mark.slow
def test_a_worker_that_cannot_begin_tells_the_others_why(start):
    workers, _ = start(2, mode="sync", each=lambda rank: {"dim": 8 + rank})
    errors = [worker.communicate(timeout=LATER)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [1, 1]
    assert "SpecMismatch" in errors[1]
    assert "worker 1" in errors[0]
    assert "failed: SpecMismatch" in errors[0]
