"""The launcher in Paddle's wheel starts our servers and workers, and sees them end."""

import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = Path(__file__).with_name("rows.py")
SECONDS = 120.0

pytestmark = pytest.mark.slow


class Launcher:
    """A running `python -m paddle.distributed.launch`."""

    def __init__(self, folder, *arguments):
        self._token = f"HETERO_PIPE_TEST={uuid.uuid4()}"
        name, _, value = self._token.partition("=")
        self.logs = folder / "log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paddle.distributed.launch", "--log_dir", self.logs, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), name: value},
        )

    def end(self):
        """Returns its exit code; nothing it has started is left then."""
        out, _ = self.process.communicate(timeout=SECONDS)
        assert self.left() == [], out
        return self.process.returncode

    def log(self, name):
        path = self.logs / name
        return path.read_text() if path.exists() else ""

    def is_waiting(self):
        """Whether both workers do, at their last step."""
        return all("waits" in self.log(f"workerlog.{rank}") for rank in range(2))

    def left(self):
        """Returns the ids of all of its processes that run, by their environment."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
                is_zombie = " Z " in (folder / "stat").read_text()
            except OSError:  # it has just ended
                continue
            if self._token.encode() in environment.split(b"\0") and not is_zombie:
                found.append(int(folder.name))
        return found


@pytest.fixture
def launch(tmp_path):
    launchers = []

    def start(*arguments, number=("--server_num", "2", "--trainer_num", "2")):
        launchers.append(Launcher(tmp_path, *number, ROWS, *arguments))
        return launchers[-1]

    yield start
    for launcher in launchers:
        for pid in launcher.left():
            os.kill(pid, signal.SIGKILL)
        launcher.process.communicate()


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
    launcher = launch()
    assert launcher.end() == 0
    assert_trained(launcher)


def test_servers_and_trainers_may_be_named(launch):
    two, more = addresses(2), addresses(2)
    launcher = launch(number=("--servers", ",".join(two), "--trainers", ",".join(more)))
    assert launcher.end() == 0
    assert_trained(launcher)


def test_a_script_that_trains_nothing_ends_too(launch):
    assert launch("--nothing").end() == 0
    assert launch("--help").end() == 0


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when", ["--fail", "--fail-early"])
def test_exit_code_is_that_of_the_trainer_that_failed(when, rank, launch):
    assert launch(when, str(rank)).end() == 7


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_that_is_killed_ends_the_job(rank, launch, wait_until):
    launcher = launch("--wait")
    wait_until(launcher.is_waiting, SECONDS)
    (pid,) = re.findall(rf"worker {rank} is (\d+)", launcher.log(f"workerlog.{rank}"))
    os.kill(int(pid), signal.SIGKILL)
    assert launcher.end() == 256 - signal.SIGKILL  # what sys.exit makes of -9
    other = launcher.log(f"workerlog.{1 - rank}")
    assert re.search(rf"error: .*worker {rank} \(.*:{pid}\)", other), other


def test_ctrl_c_ends_it_all(launch, wait_until):
    launcher = launch("--wait")
    wait_until(launcher.is_waiting, SECONDS)
    launcher.process.send_signal(signal.SIGINT)
    assert launcher.end() == signal.SIGINT  # its own code
