"""`hetero-pipe launch job.toml` with real processes that are really killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hetero_pipe as hp
from hetero_pipe.cli import main
from hetero_pipe.client import Client
from ps_server.spec import SGD, TableSpec
from tests.launch.family import Family

TURN = Path(__file__).with_name("turn.py")


class Job(Family):
    """A running `hetero-pipe launch JOB.toml`.

    Attributes:
        dir: The job's folder.
    """

    def __init__(self, file, *flags):
        self.dir = file.parent / file.stem
        command = [sys.executable, "-m", "hetero_pipe", "launch", *flags, str(file)]
        super().__init__(command, stderr=subprocess.PIPE, start_new_session=True)

    def told(self, number):
        """Returns what the next so many workers that start were told, by rank."""
        told = {}
        while len(told) < number:
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            match = re.fullmatch(r"\[worker \d\] (\{.*\})\n", line)
            if match is not None:
                worker = json.loads(match[1])
                told[worker["worker"]] = worker
        return told

    def says(self, pattern):
        """Reads lines of the supervisor until one is this; returns its match."""
        while True:
            line = self.process.stderr.readline()
            assert line, f"it never said {pattern}"
            match = re.fullmatch(f"hetero-pipe: {pattern}\n", line)
            if match is not None:
                return match

    def status(self):
        return hp.launch.job_status(self.dir)

    def process_of(self, name):
        """Returns the status of a process."""
        return next(each for each in self.status().processes if each.name == name)

    def servers(self):
        """Returns the addresses in the servers file."""
        return json.loads((self.dir / "servers.json").read_text())["servers"]

    def interrupt(self):
        """Ends it as a terminal does; returns the exit code, stdout and stderr."""
        self.process.send_signal(signal.SIGINT)
        return self.end()


@pytest.fixture
def launch(tmp_path):
    """Returns a function that starts a job; nothing of it may be left in the end."""
    jobs = []

    def start(*arguments, flags=(), servers=1, workers=1, restarts=""):
        quoted = ", ".join(f'"{each}"' for each in ("--dir", str(tmp_path), *arguments))
        file = tmp_path / "job.toml"
        file.write_text(
            f'[servers]\nnumber = {servers}\n[workers]\nnumber = {workers}\nscript = "{TURN}"\n'
            f"arguments = [{quoted}]\n[restarts]\n{restarts}\n"
        )
        jobs.append(Job(file, *flags))
        return jobs[-1]

    yield start
    left = [job.kill() for job in jobs]
    assert left == [[] for _ in jobs]


KILLED = r"was ended by signal 9 \(Killed\)"


# ------------------------------------------------------------------ servers


def test_a_server_that_is_killed_starts_again_where_it_was_and_workers_go_on(launch, capsys):
    job = launch("--wait", servers=2, workers=1)
    told = job.told(1)[0]
    assert told["servers"] == job.servers()
    before = job.process_of("server 1")
    with Client(job.servers()) as client:
        client.attach([TableSpec("rows", dim=1)])
        os.kill(before.pid, signal.SIGKILL)
        job.says(
            rf"server 1 {KILLED}; it starts again with its data at once: "
            "restart 1 of 10 within 600 s"
        )
        job.says(rf"server 1 listens again, on {before.address}, after .*")
    with Client(told["servers"]) as client:
        assert len(client.num_rows()) in (0, 1)  # it answers
    after = job.process_of("server 1")
    assert (after.address, after.state, after.restarts) == (before.address, "running", 1)
    assert after.pid != before.pid
    assert (job.dir / "servers" / "1").is_dir()
    worker = job.process_of("worker 0")
    assert (worker.pid, worker.restarts) == (told["pid"], 0)
    assert (job.dir / "logs" / "worker.0.log").read_text() == json.dumps(told) + "\n"

    assert main(["status", str(job.dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"job job runs, pid {job.process.pid}, since ")
    assert re.fullmatch(
        rf"server 1 +running +pid {after.pid} +{after.address} +since .*, restarts 1", lines[2]
    )
    assert main(["status", "--json", str(job.dir)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["processes"][1]["address"] == after.address

    code, _, err = job.interrupt()
    assert code == 130
    assert f"its data and logs stay in {job.dir} " in err


def test_a_server_whose_port_is_taken_is_found_at_another(launch, wait_until):
    job = launch("--wait")
    job.told(1)
    server = job.process_of("server 0")
    port = int(server.address.rpartition(":")[2])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def takes():
            try:
                taken.bind(("127.0.0.1", port))
            except OSError:
                return False
            taken.listen()
            return True

        job.process.send_signal(signal.SIGSTOP)  # it sees nothing until the port is taken
        os.kill(server.pid, signal.SIGKILL)
        wait_until(takes)
        job.process.send_signal(signal.SIGCONT)
        (found,) = job.says(r"server 0 listens again, on (.*), after .*").groups()
    assert found != server.address
    assert job.servers() == [found]
    assert job.process_of("server 0").address == found
    assert job.interrupt()[0] == 130


def test_a_servers_file_that_cannot_be_written_is_tried_again(launch, wait_until):
    job = launch("--wait")
    job.told(1)
    servers = job.servers()
    file = job.dir / "servers.json"
    file.unlink()
    file.with_suffix(".new").mkdir()  # as it would be on a full disk
    os.kill(job.process_of("server 0").pid, signal.SIGKILL)
    job.says(r"where servers listen cannot be written: .*; trying again")
    job.says(r"server 0 listens again, .*")
    file.with_suffix(".new").rmdir()
    wait_until(file.exists)
    assert job.servers() == servers
    assert job.interrupt()[0] == 130


def test_a_server_that_keeps_nothing_takes_the_workers_along(launch):
    job = launch("--wait", flags=["--durability", "none"])
    before = job.told(1)[0]
    os.kill(job.process_of("server 0").pid, signal.SIGKILL)
    job.says(rf"server 0 {KILLED}, and its rows are lost; it and all workers start again .*")
    after = job.told(1)[0]
    assert (before["turn"], after["turn"]) == (1, 2)
    assert job.interrupt()[0] == 130


def test_a_server_that_can_never_start_ends_the_job(launch, tmp_path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "servers").touch()  # no folder
    code, out, err = launch("--wait").end()
    assert (code, out) == (1, "")
    assert re.search(r"; twice the same within 30 s of its start, so the job ends\n", err), err


# ------------------------------------------------------------------ workers


def test_of_workers_that_fail_all_start_again(launch):
    job = launch("--wait", workers=2)
    first = job.told(2)
    server = job.process_of("server 0").pid
    os.kill(first[1]["pid"], signal.SIGKILL)
    job.says(rf"worker 1 {KILLED}; all workers start again at once: restart 1 of 10 within 600 s")
    second = job.told(2)
    lock = (job.dir / "lock").stat().st_ino  # whatever a supervisor has started holds it
    for pid in (second[0]["pid"], server):
        files = [Path(f"/proc/{pid}/fd", fd) for fd in os.listdir(f"/proc/{pid}/fd")]
        assert lock in [file.stat().st_ino for file in files if file.exists()]
    assert [(each["turn"], each["servers"]) for each in second.values()] == [(2, job.servers())] * 2
    assert {each["pid"] for each in first.values()}.isdisjoint(job.pids())
    assert job.process_of("server 0").pid == server
    assert job.process_of("worker 0").restarts == 1
    assert job.interrupt()[0] == 130


def test_a_worker_of_mode_elastic_starts_again_alone_and_the_others_go_on(launch):
    job = launch("--mode", "elastic", "--wait", workers=2)
    first = job.told(2)
    dying = first[1]
    for turn, when in ((1, "at once"), (2, "in 500 ms")):
        os.kill(dying["pid"], signal.SIGKILL)
        said = rf"worker 1 {KILLED}; it starts again {when}, and the others go on: restart"
        job.says(rf"{said} {turn} of 10 within 600 s")
        (dying,) = job.told(1).values()
        assert (dying["worker"], dying["turn"]) == (1, turn + 1)
    assert first[0]["pid"] in job.pids()
    assert [job.process_of(f"worker {i}").restarts for i in range(2)] == [0, 2]
    assert job.interrupt()[0] == 130


def test_workers_of_mode_elastic_are_done_when_each_has_succeeded(launch):
    job = launch("--fail", "1", "2", "--mode", "elastic", workers=2, restarts="delay = 0")
    code, _, err = job.end()
    assert code == 0, err
    turns = [(job.dir.parent / f"turns.{i}").read_text().count("turn") for i in range(2)]
    assert turns == [1, 3]


def test_a_job_whose_workers_succeed_at_last_is_done(launch):
    job = launch("--fail", "0", "2", servers=0, restarts="delay = 0")
    code, _, err = job.end()
    assert code == 0, err
    assert [line for line in err.splitlines() if " start again " in line] == [
        f"hetero-pipe: worker 0 ended with exit code 7 (error: no luck in turn {i}); "
        f"all workers start again at once: restart {i} of 10 within 600 s"
        for i in (1, 2)
    ]
    assert f"hetero-pipe: job job is done; its data and logs stay in {job.dir} " in err


@pytest.mark.parametrize(
    ("arguments", "turns", "code", "why"),
    [
        ([], 3, 7, r"\(error: no luck in turn 3\); restarts are at their limit, 2 within 600 s"),
        (["--same"], 2, 7, r"\(error: no luck\); twice the same within 30 s of its start"),
        (["--code", "2"], 1, 2, r"\(error: .*\); nothing would be different next time"),
    ],
)
def test_workers_that_fail_again_and_again_end_the_job(arguments, turns, code, why, launch):
    job = launch(
        *("--fail", "1", "9", "--wait", "--mode", "cpu_only", *arguments),
        servers=0,
        workers=2,
        flags=["--restarts", "2"],
        restarts="delay = 0",
    )
    found, _, err = job.end()
    assert found == code
    assert re.search(rf"worker 1 ended with exit code {code} {why}, so the job ends\n", err), err
    assert len((job.dir.parent / "turns.1").read_text().splitlines()) == turns


@pytest.mark.long  # test_workers.py has it without a supervisor
def test_workers_that_followed_are_no_success(launch):
    job = launch("--fail", "0", "1", "--code", "75", servers=0)
    code, _, err = job.end()
    assert code == 0, err
    assert "worker 0 ended with exit code 75, because of another process (error: no luck" in err


# ------------------------------------------------------------------ the supervisor


def test_a_folder_has_one_supervisor_and_one_that_was_killed_leaves_nobody(launch):
    job = launch("--wait")
    job.told(1)
    code, _, err = launch("--wait").end()
    assert code == 1
    assert re.search(r"one supervisor at a time runs the job in .* already, pid \d+, or", err)
    assert job.process_of("worker 0").state == "running"

    assert len(job.pids()) == 3
    job.process.kill()
    again = launch("--wait")
    assert again.told(1)[0]["turn"] == 2
    assert job.pids() == []
    assert again.interrupt()[0] == 130


def test_sigterm_ends_it_all(launch):
    job = launch("--wait", servers=0)
    job.told(1)
    job.process.terminate()
    assert job.end()[0] == 143


# ------------------------------------------------------------------ rows


def test_rows_outlive_their_server_and_the_supervisor(launch):
    keys = np.arange(100, dtype=np.uint64)
    gradients = np.arange(100, dtype=np.float32)[:, None]
    table = TableSpec("rows", dim=1, optimizer=SGD(1.0), initializer=hp.Constant(0.0))

    def rows(client):
        client.attach([table])
        route = {"rows": client.route(keys)}
        return route, client.pull(route, insert=True)["rows"]

    job = launch("--wait", servers=2)
    job.told(1)
    with Client(job.servers()) as client:
        route, _ = rows(client)
        client.push(route, {"rows": -gradients}, step=1)
    for name in ("server 0", "server 1"):
        os.kill(job.process_of(name).pid, signal.SIGKILL)
        job.says(f"{name} listens again, on .*")
    with Client(job.servers()) as client:
        np.testing.assert_array_equal(rows(client)[1], gradients)
    job.process.kill()
    again = launch("--wait", servers=2)
    again.told(1)
    with Client(again.servers()) as client:
        np.testing.assert_array_equal(rows(client)[1], gradients)
    assert again.interrupt()[0] == 130


# ------------------------------------------------------------------ scaling

COUNTS = TableSpec("rows", dim=1, optimizer=SGD(1.0), initializer=hp.Constant(0.0))
KEYS = np.arange(500, dtype=np.uint64)


def count(client, step):
    """Pushes -1 to each row, which then holds how often it was pushed; returns the rows."""
    keys = {"rows": client.route(KEYS)}
    client.push(keys, {"rows": np.full((len(KEYS), 1), -1, np.float32)}, step=step)
    return set(client.pull(keys, insert=False)["rows"].ravel().tolist())


def test_servers_come_and_go_while_rows_are_pushed(launch, capsys, monkeypatch):
    job = launch("--wait", servers=2)
    job.told(1)
    with Client([f"@{job.dir / 'servers.json'}"]) as client:
        assert main(["scale", "--servers", "3", str(job.dir)]) == 1
        assert "wait until training has begun" in capsys.readouterr().err
        client.attach([COUNTS])
        assert count(client, 1) == {1}
        assert main(["scale", "--servers", "3", "--json", str(job.dir)]) == 0
        done = json.loads(capsys.readouterr().out)
        assert (done["servers"], done["buckets"], done["failures"]) == (3, 1365, 0)
        assert count(client, 2) == {2}
        assert set(client.addresses) == set(job.servers())
        new = job.process_of("server 2")
        assert new.address in client.addresses
        os.kill(new.pid, signal.SIGKILL)
        job.says(r"server 2 listens again, on .*")
        assert count(client, 3) == {3}
        monkeypatch.chdir(job.dir.parent)
        assert main(["scale", "--servers", "1"]) == 0
        text = capsys.readouterr().out
        assert re.match(r"1 servers; 273[01] of 4096 buckets moved in .*, pushes were held", text)
        assert count(client, 4) == {4}
        assert client.addresses == tuple(job.servers())
    assert [each.name for each in job.status().processes] == ["server 0", "worker 0"]
    assert job.interrupt()[0] == 130
    job = launch("--wait", servers=2)
    job.told(1)
    job.says(r"job job goes on with 1 servers, whose data are in .*, not with 2; .*")
    with Client(job.servers()) as client:
        client.attach([COUNTS])
        assert count(client, 5) == {5}
    assert job.interrupt()[0] == 130


def test_a_job_whose_servers_keep_nothing_cannot_be_scaled(launch, capsys, tmp_path):
    job = launch("--wait", flags=["--durability", "none"])
    job.told(1)
    with Client(job.servers()) as client:
        client.attach([COUNTS])
    assert main(["scale", "--servers", "2", str(job.dir)]) == 1
    assert "where they keep their rows (durability = process)" in capsys.readouterr().err
    assert main(["scale", "--servers", "0", str(job.dir)]) == 1
    assert "at least 1 server, got --servers 0" in capsys.readouterr().err
    assert main(["scale", "--servers", "2", str(tmp_path / "logs")]) == 1
    assert "or one folder in it has, got none in" in capsys.readouterr().err
    assert job.interrupt()[0] == 130
