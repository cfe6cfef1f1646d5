"""A job of several workers on several servers, killed amid an epoch: it ends as if nothing was."""

import json
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.integration.sync_training import SAVE_EVERY
from tests.launch.test_supervisor import KILLED, Job
from tests.toy import samples, write_parquet

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("sync_training.py")
TOML = """\
[servers]
number = 2

[workers]
number = 2
script = "{script}"
arguments = ["--mode", "sync", "--data", "{data}", "--save", "{{dir}}/checkpoints"{more}]
"""

sys.path.insert(0, str(ROOT / "benchmarks" / "chaos"))
from compare import differences, newest, read  # noqa: E402


@pytest.fixture
def launch(tmp_path):
    """Returns a function that starts a job; nothing of it may be left in the end."""
    # 7 batches of 32: in an epoch of 4 steps, the second worker has nothing for the last one.
    data = write_parquet(tmp_path / "data.parquet", samples(220))
    jobs = []

    def start(name, *arguments):
        file = tmp_path / f"{name}.toml"
        more = "".join(f', "{each}"' for each in arguments)
        file.write_text(TOML.format(script=SCRIPT, data=data, more=more))
        jobs.append(Job(file))
        return jobs[-1]

    yield start
    assert [job.kill() for job in jobs] == [[] for _ in jobs]


def statistics(out):
    """Returns the running mean of a BatchNorm that workers told, by rank and forward."""
    lines = re.findall(r"\[worker (\d)\] (\{.*\})\n", out)
    told = [(int(rank), json.loads(line)) for rank, line in lines]
    return {(rank, line["call"]): np.array(line["mean"], np.float32) for rank, line in told}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:When training, we now always track")
def test_a_job_whose_worker_is_killed_ends_as_an_undisturbed_one(launch, wait_until):
    """Steps are 8, of which 3, 4, 6 and 8 are saved; the kill is in step 7, amid an epoch."""
    job = launch("undisturbed")
    code, out, err = job.end()
    assert code == 0, err
    undisturbed = job.dir / "checkpoints"

    saved = read(undisturbed / f"step-{2 * SAVE_EVERY:09d}")
    told = statistics(out)  # of step 6: the first worker has had 4 + 2 batches, the other 3 + 2
    mean = (told[0, 6] + told[1, 5]) / np.float32(2)
    assert (told[0, 6] != told[1, 5]).all()
    np.testing.assert_array_equal(saved.dense["model/norm._mean"], mean)

    job = launch("killed", "--hold", "1", "6")
    last = job.dir / "checkpoints" / f"step-{2 * SAVE_EVERY:09d}"
    wait_until((last / "manifest.json").exists)
    os.kill(job.process_of("worker 1").pid, signal.SIGKILL)
    job.says(rf"worker 1 {KILLED}; all workers start again at once: restart 1 of 10 within 600 s")
    code, _, err = job.end()
    assert code == 0, err
    calls = re.findall(r'"call": (\d+)', (job.dir / "logs" / "worker.0.log").read_text())
    assert calls[:6] == ["1", "2", "3", "4", "5", "6"]
    assert calls[-2:] == ["1", "2"], "the second start has trained steps 7 and 8 alone"
    end, other = read(newest(job.dir / "checkpoints")), read(newest(undisturbed))
    assert end.step == 8
    assert end.num_rows > 0
    assert list(differences(other, end)) == []
