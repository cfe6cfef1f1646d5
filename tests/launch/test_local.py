"""`hetero-pipe launch` with real servers and workers: how it ends, and what is left."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hetero_pipe as hp
from tests.launch.family import ROOT, SECONDS, Family

IDLE = str(Path(__file__).with_name("idle.py"))

LONG = pytest.mark.long

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


class Job(Family):
    """A running `hetero-pipe launch`, as a terminal starts it."""

    def __init__(self, *arguments, **options):
        command = [sys.executable, "-m", "hetero_pipe", "launch", *arguments]
        super().__init__(command, stderr=subprocess.PIPE, start_new_session=True, **options)

    def workers(self, number):
        """Returns what so many workers were told, by name."""
        told = {}
        while len(told) < number:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            match = re.fullmatch(r"\[(\w+ \d)\] (\{.*\})\n", line)
            if match is not None:
                told[match[1]] = json.loads(match[2])
        return told

    def servers(self):
        """Returns the ids of its servers."""
        command = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.pids()}
        return [pid for pid, words in command.items() if b"ps_server" in words.split(b"\0")]


@pytest.fixture
def launch():
    """Returns a function that starts a job; nothing of it may be left in the end."""
    jobs = []

    def start(*arguments, **options):
        jobs.append(Job(*arguments, **options))
        return jobs[-1]

    yield start
    left = [job.kill() for job in jobs]
    assert left == [[] for _ in jobs]


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


@pytest.mark.parametrize(("workers", "code"), [("2", 0), ("1", 7)])
def test_in_mode_elastic_others_go_on_without_the_worker_that_failed(workers, code, launch):
    arguments = ("--workers", workers, IDLE, "--fail", str(int(workers) - 1), "--mode", "elastic")
    found, _, err = launch(*arguments).end()
    assert found == code
    assert "ended with exit code 7; others go on without it\n" in err


def test_one_that_failed_because_of_another_is_not_the_first(launch, tmp_path, wait_until):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    job = launch(IDLE, "--follow", "0", "--fail", "1", "--behind", str(gate))
    follower = job.workers(2)["worker 0"]["pid"]
    wait_until(lambda: not Path(f"/proc/{follower}").exists())
    gate.write_text("go on")
    code, _, err = job.end()
    assert code == 7
    assert err.splitlines() == [
        "[worker 0] error: another is lost",
        "hetero-pipe: worker 1 ended with exit code 7; the others are stopped",
    ]


FOLLOWED = "worker 0 ended with exit code 75, because of another process; the others are stopped"


@pytest.mark.parametrize(
    "others",
    [[], pytest.param(["--workers", "2"], marks=pytest.mark.long)],  # 10 s
)
def test_one_that_failed_because_of_another_is_told_if_no_other_ends(others, launch):
    code, _, err = launch(*(others or ["--workers", "1"]), IDLE, "--follow", "0", "--wait").end()
    assert (code, err.splitlines()[-1]) == (75, f"hetero-pipe: {FOLLOWED}")


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
    assert [pid for pid in job.pids() if os.getsid(pid) == job.process.pid] == [job.process.pid]
    os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does, which reaches its session
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


# ------------------------------------------------------------------ training

FAIL = str(Path(__file__).with_name("fail.py"))
WHOLE, APART = ["--workers", "2"], ["--sparse", "2", "--dense", "1"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "mode", "how", "said"),
    [
        (WHOLE, "bounded", "exit", "worker 1 ended with exit code 7"),
        pytest.param(WHOLE, "async", "raise", "worker 1 ended with exit code 1", marks=LONG),
        pytest.param(WHOLE, "sync", "kill", "worker 1 was ended by signal 9 (Killed)", marks=LONG),
        pytest.param(APART, "sync", "exit", "dense 0 ended with exit code 7", marks=LONG),
        pytest.param(APART, "bounded", "raise", "dense 0 ended with exit code 1", marks=LONG),
    ],
)
def test_of_workers_that_train_the_first_that_failed_is_told(workers, mode, how, said, launch):
    job = launch("--servers", "1", *workers, FAIL, "--mode", mode, "--how", how)
    code, _, err = job.end()
    assert code == {"exit": 7, "raise": 1, "kill": 128 + signal.SIGKILL}[how]
    lines = [line for line in err.splitlines() if line.startswith("hetero-pipe: ")]
    assert lines == [f"hetero-pipe: {said}; the others are stopped"], err


@pytest.mark.long
def test_ctrl_c_of_one_worker_is_130(launch):
    job = launch("--servers", "1", FAIL, "--mode", "bounded", "--how", "interrupt")
    code, _, err = job.end()
    assert code == 130, err
    assert "[worker 1] interrupted\n" in err


TRAIN = str(ROOT / "examples" / "ctr" / "train.py")
RESULT = re.compile(r"\[worker 0\] (\{.*\})\n")


@pytest.mark.long
def test_two_workers_in_step_train_as_one_of_twice_the_batch(launch):
    job = launch(TRAIN, "--epochs", "1", "--json", "--mode", "sync", "--batch-size", "256")
    code, out, err = job.end()
    assert code == 0, err
    found = json.loads(RESULT.fullmatch(out)[1])
    job = launch("--servers", "0", "--workers", "1", TRAIN, "--epochs", "1", "--json")
    code, out, err = job.end()
    assert code == 0, err
    expected = json.loads(RESULT.fullmatch(out)[1])
    for name in ("loss", "log_loss", "auc"):
        assert found[name] == pytest.approx(expected[name], rel=1e-3)  # of 178 steps
    for name in ("rows", "eval_samples"):
        assert found[name] == expected[name]


GPU_ONLY = ("--servers", "0", TRAIN, "--epochs", "1", "--json", "--mode", "gpu_only")


@pytest.mark.slow
def test_two_workers_train_on_a_device_each_without_servers(launch, on_emulated_device):
    code, out, err = launch(*GPU_ONLY, "--batch-size", "2048").end()
    assert code == 0, err
    found = json.loads(RESULT.fullmatch(out)[1])
    assert found["auc"] > 0.6  # of 23 steps
    assert found["rows"] > 10_000


@pytest.mark.slow
def test_a_job_whose_devices_are_full_says_so_and_ends(launch, on_emulated_device, monkeypatch):
    monkeypatch.setenv("EMULATED_MEMORY", "3e6")
    code, out, err = launch(*GPU_ONLY).end()
    assert (code, out) == (1, "")
    assert re.search(r"\[worker \d\] error: .* must fit into the memory of device emulated:0", err)


@pytest.mark.slow
def test_ctrl_c_keeps_what_workers_have_trained(launch, tmp_path, wait_until):
    saved = tmp_path / "checkpoint"
    flags = ["--mode", "sync", "--save", str(saved)]
    job = launch(TRAIN, "--epochs", "100000", *flags)
    wait_until((saved / "manifest.json").exists, SECONDS)
    os.killpg(job.process.pid, signal.SIGINT)
    code, out, err = job.end()
    assert code == 130, out + err
    assert "Traceback" not in err
    epoch = json.loads((saved / "manifest.json").read_text())["position"]["epoch"]
    resumed = launch(TRAIN, "--epochs", str(epoch + 1), "--load", str(saved), "--json", *flags)
    code, out, err = resumed.end()
    assert code == 0, err
    assert json.loads(RESULT.fullmatch(out)[1])["auc"] > 0.75
