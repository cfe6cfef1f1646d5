"""`hetero-pipe`: what it teaches, what it refuses, and the worker it becomes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hetero_pipe as hp
from hetero_pipe.cli import main

ROOT = Path(__file__).parents[2]
IDLE = str(ROOT / "tests" / "launch" / "idle.py")
DENSE = ["--servers", "h:1", "--dense-workers", "h:2", "--coordinator", "h:3", "--stage", "dense"]


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "hetero_pipe", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--help"], ["launch", "worker", "ps-server", "paddle.distributed.launch"]),
        (["launch", "--help"], ["--sparse N", "--log-dir DIR", "SCRIPT", "JOB.toml", "exit code"]),
        (
            ["status", "--help"],
            ["--json", "DIR", "supervisor"],
        ),
        (
            ["worker", "--help"],
            ["--stage", "--dense-workers", "--coordinator", "two hosts", "--num-workers 2"],
        ),
    ],
)
def test_help_teaches(arguments, parts, capsys):
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 0
    text = capsys.readouterr().out
    for part in parts:
        assert part in text


def test_version_is_the_packages():
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"hetero-pipe {hp.__version__} (Python 3.")


def test_no_command_is_a_mistake(capsys):
    with pytest.raises(SystemExit) as raised:
        main([])
    assert raised.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["launch", "worker"])
def test_of_what_is_missing_the_script_alone_is_required(command, capsys):
    with pytest.raises(SystemExit) as raised:
        main([command])
    assert raised.value.code == 2
    assert capsys.readouterr().err.endswith("the following arguments are required: SCRIPT\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["launch", "nowhere.py"], "a job runs a script, got no file 'nowhere.py'"),
        (["launch", "--workers", "0", IDLE], "got 2 servers, 0 workers that read, 0 dense ones"),
        (["launch", "--sparse", "1", IDLE], "got no dense worker; add --dense N"),
        (["launch", "--dense", "1", IDLE], "got no sparse worker; add --sparse N"),
        (["launch", "--sparse", "1", "--dense", "0", IDLE], "need a dense one, got --dense 0"),
        (
            ["launch", "--workers", "2", "--sparse", "1", "--dense", "1", IDLE],
            "got --workers 2 beside --sparse 1; leave one out",
        ),
        (["launch", "--servers", "0", IDLE], "got 0 servers for 2 workers in mode bounded; leave"),
        (
            ["launch", "--servers", "0", "--sparse", "2", "--dense", "1", IDLE, "--mode", "async"],
            "got 0 servers for 3 workers in mode async; leave --servers out",
        ),
        (["launch", "--dir", "d", IDLE], "--dir is of a job that is supervised, got the script"),
        (["launch", "nowhere.toml"], "a job file must be readable, got nowhere.toml"),
        (["status", "nowhere"], "no supervisor runs in nowhere; start its job with"),
        (["worker", "--stage", "dense", IDLE], "a dense worker needs the addresses"),
        (["worker", *DENSE[2:], IDLE], "dense worker 0 shares its tables on parameter servers"),
        (["worker", *DENSE, "--worker", "1", IDLE], "got dense worker 1"),
        (["worker", *DENSE, "nowhere.py"], "a worker runs a script, got no file 'nowhere.py'"),
    ],
)
def test_a_mistake_is_told_and_starts_nothing(arguments, said, capsys):
    assert main(arguments) == 1
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("hetero-pipe: error: ")
    assert said in found.err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--servers", "0"], "got 0 servers for 2 workers in mode bounded"),
        (["--workers", "0"], "got 1 servers, 0 workers that read"),
        (
            ["--servers", "0", "--sparse", "3", "--dense", "1"],
            "got 0 servers for 4 workers in mode",
        ),
        (["--restarts", "-1"], "restarts need limit of at least 0, got limit=-1"),
    ],
)
def test_flags_override_a_job_file(flags, said, tmp_path, capsys):
    job = tmp_path / "job.toml"
    job.write_text(f'[servers]\nnumber = 1\n[workers]\nscript = "{IDLE}"\n')
    assert main(["launch", *flags, str(job)]) == 1
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["job.toml"]


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_a_worker_is_the_script_with_the_flags_behind_its_own(separator, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import json, sys; print(json.dumps(sys.argv[1:])); sys.exit(9)")
    done = run("worker", *DENSE, *separator, str(script), "--epochs", "3")
    assert (done.returncode, done.stderr) == (9, "")
    assert json.loads(done.stdout) == ["--epochs", "3", *DENSE]


def test_a_worker_knows_who_it_is():
    done = run("worker", *DENSE[2:], "--servers", "127.0.0.1:9", IDLE)
    told = json.loads(done.stdout)
    assert (told["stage"], told["worker"], told["servers"]) == ("dense", 0, [False])
