"""`begin` and `run` as a script has them: exit codes, signals, roles."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.test_paddle import SERVER, TRAINER

ROOT = Path(__file__).parents[2]
SECONDS = 30.0

HEAD = """\
import json, os, signal, sys
import hetero_pipe as hp
hp.launch.begin()
def main(arguments):
"""
TAIL = "\nhp.launch.run(main)\n"


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts a script whose main has this body."""
    started = []

    def start(body, *arguments, head=HEAD, **environment):
        script = tmp_path / "script.py"
        script.write_text(f"{head}    {body}{TAIL}")
        process = subprocess.Popen(
            [sys.executable, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def end(process):
    """Returns its exit code, stdout and stderr."""
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


# ------------------------------------------------------------------ exit codes


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("return None", 0, ""),
        ("return 3", 3, ""),
        ("sys.exit(4)", 4, ""),
        ("raise hp.DataError('line 3')", 1, "error: line 3\n"),
        ("raise hp.StageError('no reply')", 1, "error: no reply\n"),
        ("raise hp.WorkerLost('worker 0 is lost')", 75, "error: worker 0 is lost\n"),
        ("raise hp.ServerUnavailable('server 0')", 75, "error: server 0\n"),
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "interrupted\n"),
        ("raise KeyboardInterrupt('worker 0 was')", 130, "interrupted: worker 0 was\n"),
    ],
)
def test_exit_code_is_that_of_main(body, code, said, start):
    assert end(start(body)) == (code, "", said)


def test_another_error_shows_its_traceback(start):
    code, _, err = end(start("raise ZeroDivisionError('by zero')"))
    assert code == 1
    assert "Traceback" in err
    assert "by zero" in err


def test_a_stage_that_failed_of_a_models_error_shows_its_traceback(start):
    code, _, err = end(start("raise hp.StageError('dense failed') from ZeroDivisionError('by 0')"))
    assert code == 1
    assert err.endswith("ZeroDivisionError: by 0\nerror: dense failed\n")


def test_a_stage_that_failed_of_our_error_shows_its_message_alone(start):
    code, _, err = end(start("raise hp.StageError('push failed') from hp.ServerError('full')"))
    assert (code, err) == (1, "error: push failed\n")


def test_arguments_are_those_of_the_command_line(start):
    code, out, _ = end(start("print(json.dumps(arguments))", "--epochs", "3"))
    assert (code, json.loads(out)) == (0, ["--epochs", "3"])


def test_a_trainer_of_paddles_launcher_gets_its_place_as_arguments(start):
    process = start("print(json.dumps(arguments), flush=True)", "--epochs", "3", **TRAINER)
    assert json.loads(process.stdout.readline()) == [
        *("--epochs", "3"),
        *("--servers", "10.0.0.1:40001,10.0.0.1:40002"),
        *("--worker", "1", "--num-workers", "2", "--coordinator", "10.0.0.1:40003"),
    ]


def test_a_trainer_started_alone_says_which_role_is_missing(start):
    code, out, err = end(start("print('trained')", TRAINING_ROLE="TRAINER"))
    assert (code, out) == (1, "")
    assert err.startswith(
        "error: a process with TRAINING_ROLE=TRAINER needs one with TRAINING_ROLE=PSERVER"
    )
    assert "Traceback" not in err


def test_a_script_that_ends_before_its_server_listens_says_goodbye(start, spawn, free_address):
    place = {
        "PADDLE_PSERVERS_IP_PORT_LIST": free_address,
        "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:1",
        "PADDLE_TRAINERS_NUM": "1",
        "PADDLE_TRAINER_ID": "0",
    }
    process = start("print('ended', flush=True)", **{**TRAINER, **place})
    assert process.stdout.readline() == "ended\n"
    server = spawn("--listen", free_address, "--num-workers", "1")
    assert end(process)[0] == 0
    assert server.process.wait(SECONDS) == 0


# ------------------------------------------------------------------ signals

WAIT = "print('up', flush=True); signal.pause()"


@pytest.mark.parametrize(
    ("number", "environment", "code"),
    [
        (signal.SIGINT, {}, 130),
        (signal.SIGTERM, {}, -signal.SIGTERM),
        # Its code would hide that of the process for whose sake it is stopped.
        (signal.SIGTERM, TRAINER, 0),
    ],
)
def test_a_signal_ends_main(number, environment, code, start):
    process = start(WAIT, **environment)
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    assert end(process)[0] == code


IN_PADDLES_IMPORT = """\
class Pause:
    def find_spec(self, name, path=None, target=None):
        status = open("/proc/self/status").read()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        if caught >> signal.SIGTERM - 1 & 1 and name.startswith("paddle."):  # Paddle's handler
            sys.meta_path.remove(self)
            print("importing", flush=True)
            signal.pause()
sys.meta_path.insert(0, Pause())
import paddle
def main"""


@pytest.mark.parametrize(("environment", "code"), [({}, 128 + signal.SIGTERM), (TRAINER, 0)])
def test_sigterm_within_paddles_import_is_no_fatal_error(environment, code, start):
    process = start("pass", head=HEAD.replace("def main", IN_PADDLES_IMPORT), **environment)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGTERM)
    found, _, err = end(process)
    assert found == code
    assert "FatalError" not in err


def test_sigterm_reaches_a_handler_of_the_script_again_in_main(start):
    # No pause(): the signal may come before it.
    handle = "signal.signal(signal.SIGTERM, lambda *_: (print('told', flush=True), told.set()))"
    wait = "print('up', flush=True); told.wait()"
    process = start(f"import threading; told = threading.Event(); {handle}; {wait}")
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert end(process) == (0, "told\n", "")


def test_sigterm_ends_a_script_of_paddle_without_a_word(start):
    process = start(WAIT, head=HEAD.replace("def main", "import paddle\ndef main"))
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    code, _, err = end(process)
    assert code == -signal.SIGTERM
    assert "FatalError" not in err


@pytest.mark.parametrize(
    ("number", "environment", "code"),
    [(signal.SIGINT, {}, -signal.SIGINT), (signal.SIGTERM, TRAINER, 0)],
)
def test_a_signal_ends_the_imports_after_begin(number, environment, code, start):
    head = HEAD.replace("def main", "print('importing', flush=True); signal.pause()\ndef main")
    process = start("pass", head=head, **environment)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    assert end(process) == (code, "", "")


@pytest.mark.parametrize(
    "error",
    [
        "raise hp.WorkerLost('worker 0 is lost')",
        "raise hp.ServerUnavailable('server 0 is gone')",
        "raise hp.StageError('stage push failed') from hp.WorkerLost('worker 0 is lost')",
    ],
)
def test_a_trainer_that_lost_another_process_leaves_its_launcher_the_others_code(error, start):
    process = start(error, **TRAINER)
    assert process.stderr.readline().startswith("error: ")
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == 0


def test_a_worker_of_nobodys_launcher_ends_at_once_when_another_is_lost(start):
    assert end(start("raise hp.WorkerLost('worker 0 is lost')"))[0] == 75


LATE = """\
class Late:
    def __del__(self, write=os.write, read=os.read):
        write(1, b"ending\\n")
        read(0, 1)
sys.late = Late()  # goes when Python ends
"""


@pytest.mark.parametrize(("environment", "code"), [({}, -signal.SIGTERM), (TRAINER, 7)])
def test_sigterm_while_python_ends_changes_no_code_under_a_launcher(environment, code, start):
    process = start("return 7", head=HEAD.replace("def main", f"{LATE}def main"), **environment)
    assert process.stdout.readline() == "ending\n"
    process.send_signal(signal.SIGTERM)
    assert end(process)[0] == code  # which closes stdin


# ------------------------------------------------------------------ servers


def test_begin_comes_before_all_that_takes_long_to_import(start):
    head = HEAD.replace("def main", "print([m for m in HEAVY if m in sys.modules])\ndef main")
    heavy = "HEAVY = 'paddle', 'numpy', 'grpc', 'ps_server._native'\n"
    assert end(start("pass", head=heavy + head)) == (0, "[]\n", "")


def test_a_server_serves_in_begin_and_needs_no_more_of_the_script(start, free_address):
    host, _, port = free_address.rpartition(":")
    place = {"PADDLE_PSERVERS_IP_PORT_LIST": free_address, "POD_IP": host, "PADDLE_PORT": port}
    head = HEAD.replace("def main", "print('went on')\ndef main")
    process = start("print('trained')", head=head, **{**SERVER, **place})
    assert process.stdout.readline() == f"listening on {free_address}\n"
    process.send_signal(signal.SIGTERM)
    code, out, _ = end(process)
    assert (code, out) == (0, "")


PAUSE = """\
import signal, sys
class Pause:
    def find_spec(self, name, path=None, target=None):
        if name == "grpc":
            print("loading", flush=True)
            signal.pause()
sys.meta_path.insert(0, Pause())
"""


def test_sigterm_is_code_0_while_a_server_loads(start):
    process = start("pass", head=PAUSE + HEAD, **SERVER)
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGTERM)
    assert end(process) == (0, "", "")
