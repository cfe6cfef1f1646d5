"""Groups of real processes, on the CPU and on a device: Paddle has one default group a process."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from hetero_pipe.nn import Group

LATER = 60.0

# What each worker runs: `group` is that of the dense part, `rank` and `world` its own.
PRELUDE = """
import json, os, sys, threading
import numpy as np
from hetero_pipe.nn import Device, join_groups
from hetero_pipe.plan import Worker, WorkersPlan
from hetero_pipe.errors import DataError, WorkerLost
address, rank, size, device = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
before = dict(os.environ)
groups = join_groups(
    WorkersPlan(num_readers=size), Worker("whole", rank, address), device=Device(device), seconds=30
)
assert dict(os.environ) == before
import paddle
assert paddle.distributed.get_backend() == {"cpu": "GLOO", "emulated:0": "XCCL"}[device]
group = groups.dense
"""


@pytest.fixture
def workers(free_address, device):
    """Returns a function that starts n processes of a script."""
    started = []

    def start(script, num):
        for rank in range(num):
            arguments = [free_address, str(rank), str(num), device]
            command = [sys.executable, "-c", PRELUDE + script, *arguments]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            started.append(subprocess.Popen(command, text=True, **pipes))
        return started

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def outputs(processes):
    found = [process.communicate(timeout=LATER) for process in processes]
    assert [p.returncode for p in processes] == [0] * len(processes), found
    return [out.splitlines() for out, _ in found]


SUMS = """
rng = np.random.default_rng(rank)
arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((3, 5), (7,), (0, 2), (100, 31))]
group.barrier()
sums = group.sum(arrays)
others = [np.random.default_rng(r) for r in range(size)]
expected = [sum(r.normal(size=a.shape) for r in others) for a in arrays]
for found, wanted in zip(sums, expected):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
print(b"".join(a.tobytes() for a in sums).hex())
last = group.gather({"rank": rank})[-1]["rank"]
print(last, group.broadcast({"a": np.int64([rank + 5])})["a"][0])
groups.close()
"""


def test_sums_are_right_and_of_equal_bits_on_all(workers):
    found = outputs(workers(SUMS, 3))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == "2 5"


BACKGROUND = """
group.barrier()
if rank == 0:
    done = threading.Event()
    def work():
        found.append(group.sum([np.ones(9, np.float32)])[0])
        done.set()
    found = []
    thread = threading.Thread(target=work)
    thread.start()
    turns = 0
    while not groups.world.gather(turns)[1] == "go":  # this thread goes on meanwhile
        turns += 1
    thread.join()
    print(turns, found[0][0])
else:
    for turn in range(50):
        groups.world.gather("wait")
    groups.world.gather("go")
    print(50, group.sum([np.ones(9, np.float32)])[0][0])
groups.close()
"""


def test_a_sum_that_waits_in_a_thread_holds_nobody_up(workers):
    assert outputs(workers(BACKGROUND, 2)) == [["50 2.0"], ["50 2.0"]]


KILLED = """
group.barrier()
print("ready", flush=True)
if rank == 1:
    threading.Event().wait()  # for the kill
try:
    if os.environ["IN_SUM"]:
        group.sum([np.ones(9, np.float32)])
    else:
        group.barrier()
except WorkerLost as error:
    print(error)
groups.close()
"""


@pytest.mark.parametrize("in_sum", ["", "1"])
def test_a_worker_that_is_killed_is_named(workers, monkeypatch, in_sum):
    monkeypatch.setenv("IN_SUM", in_sum)
    one, other = workers(KILLED, 2)
    for each in (one, other):
        assert each.stdout.readline() == "ready\n", each.stderr.read()
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    out, err = one.communicate(timeout=LATER)
    assert f":{other.pid}) is lost" in out, err
    assert "worker 1" in out
    assert one.returncode == 0


EXPLAINED = """
group.barrier()
if rank == 1:
    error = DataError("line 7 has no label")
    error.place = "stage read at step 5"
    groups.fail(error)
else:
    lost = WorkerLost("worker 1 is lost, as a server says")
    error = groups.explain(lost)
    print(error)
    assert type(error) is WorkerLost and error.__cause__ is lost
    assert groups.explain(error) is error
    own = ValueError("its own")
    assert groups.explain(own) is own
groups.close()
"""


def test_of_a_loss_that_a_server_tells_the_meeting_knows_why(workers):
    one, other = workers(EXPLAINED, 2)
    out, err = one.communicate(timeout=LATER)
    assert re.fullmatch(
        rf"worker 1 \(.*:{other.pid}\) failed in stage read at step 5: "
        r"DataError: line 7 has no label\n",
        out,
    ), err
    assert one.returncode == 0


def test_a_group_of_one_waits_for_nobody():
    group = Group.solo()
    group.barrier()
    array = np.ones(3, np.float32)
    assert group.sum([array])[0] is array
    assert group.gather("x") == ["x"]
    assert (group.rank, group.size) == (0, 1)
    assert group.branch("y").size == 1
