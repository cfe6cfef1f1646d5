"""`hetero-pipe launch` with real servers and workers: how it ends, and what is left."""

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

import hetero_pipe as hp

ROOT = Path(__file__).parents[2]
IDLE = str(Path(__file__).with_name("idle.py"))
SECONDS = 60.0

# ------------------------------------------------------------------ what each is told


def test_whole_workers_are_told_their_rank():
    job = hp.launch.LocalJob((IDLE,), num_readers=2)
    shared = "--servers h:1,h:2 --num-workers 2 --coordinator h:3"
    assert job.worker_arguments(servers=["h:1", "h:2"], coordinator="h:3", dense=[]) == {
        "worker 0": f"{shared} --worker 0".split(),
        "worker 1": f"{shared} --worker 1".split(),
    }


def test_sparse_and_dense_workers_are_told_their_stage():
    job = hp.launch.LocalJob((IDLE,), num_readers=2, num_dense=1)
    shared = "--servers h:1 --num-workers 2 --coordinator h:3 --dense-workers h:4"
    assert job.worker_arguments(servers=["h:1"], coordinator="h:3", dense=["h:4"]) == {
        "sparse 0": f"{shared} --stage sparse --worker 0".split(),
        "sparse 1": f"{shared} --stage sparse --worker 1".split(),
        "dense 0": f"{shared} --stage dense --worker 0".split(),
    }


def test_without_servers_none_are_named():
    job = hp.launch.LocalJob((IDLE,), num_servers=0, num_readers=1)
    (arguments,) = job.worker_arguments(servers=[], coordinator="h:3", dense=[]).values()
    assert "--servers" not in arguments


@pytest.mark.parametrize("counts", [{"num_readers": 0}, {"num_servers": -1}, {"num_dense": -1}])
def test_a_job_of_nobody_is_refused(counts):
    with pytest.raises(hp.ConfigError, match="a job has a worker that reads"):
        hp.launch.LocalJob((IDLE,), **counts)


# ------------------------------------------------------------------ real processes


class Job:
    """A running `hetero-pipe launch`.

    Attributes:
        process: Its Popen.
        lines: Of its stdout, those read so far.
    """

    def __init__(self, *arguments, path=()):
        self._token = f"HETERO_PIPE_TEST={uuid.uuid4()}"
        name, _, value = self._token.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hetero_pipe", "launch", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), name: value},
        )
        self.lines = []

    def workers(self, number):
        """Returns what so many workers were told, by name."""
        told = {}
        while len(told) < number:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            self.lines.append(line)
            match = re.fullmatch(r"\[(\w+ \d)\] (\{.*\})\n", line)
            if match is not None:
                told[match[1]] = json.loads(match[2])
        return told

    def pids(self):
        """Returns every process of the job, by its environment: servers and strangers, too."""
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

    def servers(self):
        """Returns the ids of its servers."""
        command = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.pids()}
        return [pid for pid, words in command.items() if b"ps_server" in words.split(b"\0")]

    def end(self):
        """Returns its exit code, the rest of its stdout, and its stderr."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err


@pytest.fixture
def launch():
    """Returns a function that starts a job; nothing of it may be left in the end."""
    jobs = []

    def start(*arguments, **options):
        jobs.append(Job(*arguments, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        left = job.pids()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        job.process.communicate()
        assert left == []


def test_workers_find_every_server_and_all_end_together(launch):
    job = launch(IDLE)
    told = job.workers(2)
    assert {name: (t["stage"], t["worker"], t["servers"]) for name, t in told.items()} == {
        "worker 0": ("whole", 0, [True, True]),
        "worker 1": ("whole", 1, [True, True]),
    }
    assert job.end() == (0, "", "")


def test_sparse_and_dense_workers_start_too(launch):
    job = launch("--servers", "1", "--sparse", "2", "--dense", "1", IDLE)
    assert {name: t["stage"] for name, t in job.workers(3).items()} == {
        "sparse 0": "sparse",
        "sparse 1": "sparse",
        "dense 0": "dense",
    }
    assert job.end()[0] == 0


def test_a_log_folder_gets_the_lines_as_they_are(launch, tmp_path):
    job = launch("--log-dir", str(tmp_path / "logs"), IDLE)
    told = job.workers(2)
    assert job.end()[0] == 0
    files = {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()}
    assert {*files} == {"server.0.log", "server.1.log", "worker.0.log", "worker.1.log"}
    assert json.loads(files["worker.1.log"]) == told["worker 1"]


def test_exit_code_is_that_of_the_worker_that_failed(launch):
    code, _, err = launch(IDLE, "--fail", "1").end()
    assert code == 7
    assert err == "hetero-pipe: worker 1 ended with exit code 7; the others are stopped\n"


def test_a_log_folder_that_cannot_be_made_is_told(launch, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = launch("--log-dir", str(tmp_path / "file"), IDLE).end()
    assert code == 1
    assert err.startswith("hetero-pipe: error: a log folder can be written to, got [Errno 17]")


@pytest.mark.parametrize("who", ["worker", "server"])
def test_a_process_that_is_killed_is_named_and_ends_the_job(who, launch):
    job = launch(IDLE, "--wait")
    told = job.workers(2)
    os.kill(told["worker 1"]["pid"] if who == "worker" else job.servers()[0], signal.SIGKILL)
    code, _, err = job.end()
    assert code == 128 + signal.SIGKILL
    assert re.search(rf"hetero-pipe: {who} \d was ended by signal 9 \(Killed\)", err)


def test_ctrl_c_reaches_workers_once_and_servers_outlive_them(launch):
    job = launch(IDLE, "--wait")
    job.workers(2)
    os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does
    code, out, err = job.end()
    assert code == 130
    assert sorted(out.splitlines()) == [
        "[worker 0] servers are [True, True]",
        "[worker 1] servers are [True, True]",
    ]
    assert sorted(err.splitlines()) == ["[worker 0] interrupted", "[worker 1] interrupted"]


def test_sigterm_ends_it_all(launch):
    job = launch(IDLE, "--wait")
    job.workers(2)
    job.process.terminate()
    assert job.end() == (143, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGINT, signal.SIGINT]])
def test_workers_that_do_not_listen_are_killed(numbers, launch):
    job = launch("--workers", "1", IDLE, "--wait", "--deaf")
    job.workers(1)
    for number in numbers:  # one by one: two of a kind that wait are one
        job.process.send_signal(number)
        assert job.process.stdout.readline() == "[worker 0] what?\n"
    assert job.end()[0] == 128 + numbers[0]


def test_nothing_outlives_a_launcher_that_is_killed(launch, wait_until):
    job = launch(IDLE, "--wait")
    job.workers(2)
    assert len(job.pids()) == 5
    job.process.kill()
    job.process.wait()
    wait_until(lambda: job.pids() == [])


def test_what_a_worker_leaves_behind_ends_with_it(launch):
    job = launch("--workers", "1", IDLE, "--leave-behind")
    job.workers(1)
    assert job.end()[0] == 0
    assert job.pids() == []


def test_workers_go_on_when_nobody_reads_their_lines(launch):
    job = launch("--workers", "1", IDLE, "--lines", "100000")
    job.process.stdout.readline()
    job.process.stdout.close()
    assert job.process.wait(SECONDS) == 0
    assert job.process.stderr.read() == ""


NO_SERVER = """\
import os, sys
if "ps_server" in sys.orig_argv:
    os.write(2, b"no server today\\n")
    os._exit(5)
"""


def test_a_server_that_cannot_start_is_told(launch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(NO_SERVER)
    job = launch(IDLE, path=[tmp_path])
    code, out, err = job.end()
    assert (code, out) == (5, "")
    assert re.search(r"\[server \d\] no server today\n", err)
    assert re.search(
        r"hetero-pipe: server \d ended with exit code 5; the others are stopped\n", err
    )
