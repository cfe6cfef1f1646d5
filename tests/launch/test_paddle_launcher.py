"""The launcher in Paddle's wheel starts our servers and workers, and sees them end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

import hetero_pipe as hp
from tests.launch.family import ROOT, SECONDS, Family

ROWS = Path(__file__).with_name("rows.py")

pytestmark = pytest.mark.slow


class Launcher(Family):
    """A running `python -m paddle.distributed.launch`."""

    def __init__(self, folder, *arguments):
        self._logs = folder / "log"
        command = [sys.executable, "-m", "paddle.distributed.launch", "--log_dir", self._logs]
        super().__init__([*command, *arguments], stderr=subprocess.STDOUT)

    def code(self):
        """Returns its exit code; nothing it has started is left then."""
        return self.end()[0]

    def log(self, name):
        path = self._logs / name
        return path.read_text() if path.exists() else ""

    def plan(self, rank):
        """Returns the plan that a worker has printed, between lines of Paddle's."""
        text = self.log(f"workerlog.{rank}")
        return hp.Plan.from_json(text[text.index("\n{\n") : text.rindex("\n}\n") + 2])

    def is_waiting(self):
        """Whether both workers do, at their last step."""
        return all("waits" in self.log(f"workerlog.{rank}") for rank in range(2))


@pytest.fixture
def launch(tmp_path):
    launchers = []

    def start(*arguments, number=("--server_num", "2", "--trainer_num", "2")):
        launchers.append(Launcher(tmp_path, *number, *arguments))
        return launchers[-1]

    yield start
    for launcher in launchers:
        launcher.kill()


def addresses(number):
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]


def assert_trained(launcher):
    for rank in range(2):
        assert f"row {rank} is 5.0\n" in launcher.log(f"workerlog.{rank}")
        assert "listening on " in launcher.log(f"serverlog.{rank}")
        assert "Traceback" not in launcher.log(f"workerlog.{rank}")


def test_workers_push_rows_and_all_end_by_themselves(launch):
    launcher = launch(ROWS)
    assert launcher.code() == 0
    assert_trained(launcher)


def test_servers_and_trainers_may_be_named(launch):
    two, more = addresses(2), addresses(2)
    launcher = launch(ROWS, number=("--servers", ",".join(two), "--trainers", ",".join(more)))
    assert launcher.code() == 0
    assert_trained(launcher)


def test_a_script_that_trains_nothing_ends_too(launch):
    assert launch(ROWS, "--nothing").code() == 0
    assert launch(ROWS, "--help").code() == 0


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when", ["--fail", "--fail-early"])
def test_exit_code_is_that_of_the_trainer_that_failed(when, rank, launch):
    assert launch(ROWS, when, str(rank)).code() == 7


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_that_is_killed_ends_the_job(rank, launch, wait_until):
    launcher = launch(ROWS, "--wait")
    wait_until(launcher.is_waiting, SECONDS)
    (pid,) = re.findall(rf"worker {rank} is (\d+)", launcher.log(f"workerlog.{rank}"))
    os.kill(int(pid), signal.SIGKILL)
    assert launcher.code() == 256 - signal.SIGKILL  # what sys.exit makes of -9
    other = launcher.log(f"workerlog.{1 - rank}")
    assert re.search(rf"error: .*worker {rank} \(.*:{pid}\)", other), other


def test_ctrl_c_ends_it_all(launch, wait_until):
    launcher = launch(ROWS, "--wait")
    wait_until(launcher.is_waiting, SECONDS)
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.code() == signal.SIGINT  # its own code


# ------------------------------------------------------------------ training

TRAIN = ROOT / "examples" / "ctr" / "train.py"


@pytest.mark.parametrize(
    "mode",
    ["sync", "async", *(pytest.param(m, marks=pytest.mark.long) for m in ("bounded", "cpu_only"))],
)
def test_the_example_trains_in_each_mode(mode, launch):
    launcher = launch(TRAIN, "--epochs", "1", "--json", "--mode", mode)
    assert launcher.code() == 0
    lines = launcher.log("workerlog.0").splitlines()
    (result,) = (json.loads(line) for line in lines if line.startswith("{"))
    assert result["auc"] > 0.75
    assert result["rows"] > 10_000
    assert 9_000 < result["eval_samples"] < 11_000
    assert "\n{" not in launcher.log("workerlog.1")  # the first tells it for both


@pytest.mark.parametrize("num_devices", [2, pytest.param(1, marks=pytest.mark.long)])
def test_the_example_trains_on_devices(num_devices, launch, on_emulated_device, monkeypatch):
    monkeypatch.setenv("EMULATED_DEVICES", str(num_devices))  # of the host
    flags = ["--epochs", "1", "--json", "--mode", "gpu_only", "--batch-size", "2048"]
    launcher = launch(TRAIN, *flags, number=("--trainer_num", "2"))
    assert launcher.code() == 0
    lines = launcher.log("workerlog.0").splitlines()
    (result,) = (json.loads(line) for line in lines if line.startswith("{"))
    assert result["auc"] > 0.6  # of 23 steps
    assert result["rows"] > 10_000
    assert result["steps"] == 23
    assert "\n{" not in launcher.log("workerlog.1")


@pytest.mark.parametrize(
    ("chosen", "expected"), [("", [0, 1, 0]), pytest.param("1", [1, 1, 1], marks=pytest.mark.long)]
)
def test_each_worker_takes_a_device_of_its_host(
    chosen, expected, launch, on_emulated_device, monkeypatch
):
    monkeypatch.setenv("EMULATED_DEVICES", "2")
    if chosen:
        monkeypatch.setenv("FLAGS_selected_emulateds", chosen)
    flags = ["--mode", "gpu_only", "--dry-run"]
    launcher = launch(TRAIN, *flags, number=("--trainer_num", "3"))
    assert launcher.code() == 0
    taken = [launcher.plan(rank).stage("dense").device for rank in range(3)]
    assert taken == [f"emulated:{number}" for number in expected]


@pytest.mark.long
@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("kill", 256 - signal.SIGKILL)])
def test_of_trainers_that_train_the_code_is_of_the_first_that_failed(how, code, launch):
    launcher = launch(ROWS.with_name("fail.py"), "--mode", "bounded", "--how", how)
    assert launcher.code() == code
    assert re.search(r"^error: worker 1 \(", launcher.log("workerlog.0"), re.MULTILINE)


def test_a_dry_run_ends_and_tells_the_plan(launch):
    launcher = launch(TRAIN, "--dry-run", "--mode", "sync")
    assert launcher.code() == 0
    plan = launcher.plan(0)
    assert plan.workers == hp.WorkersPlan(mode="sync", num_readers=2)
    assert len(plan.servers) == 2


def test_a_mistake_of_a_trainer_is_told_and_ends_the_job(launch):
    launcher = launch(TRAIN, "--slots", "user,film")
    assert launcher.code() == 1
    assert re.search(r"^error: .*no column 'film'", launcher.log("workerlog.0"), re.MULTILINE)
