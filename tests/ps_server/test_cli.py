"""`ps-server` as a process: what it prints, how it ends."""

import os
import re
import signal
import subprocess
import sys
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ps_server.daemon import run
from ps_server.version import VERSION
from ps_server.wire import ps_pb2, ps_pb2_grpc

AT_MOST = 5.0  # seconds from a signal to the end
LATER = 30.0


def assert_ends_well(daemon):
    assert daemon.process.wait(AT_MOST) == 0
    assert "Traceback" not in daemon.stderr()


def health(address):
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=LATER)


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as raised:
        run(["--help"])
    assert raised.value.code == 0
    text = capsys.readouterr().out
    for part in (
        *("--listen HOST:PORT", "--data-dir DIR", "--log-level", "--version", "examples:"),
        *(
            "--num-workers N",
            "said goodbye",
            "127.0.0.1:7000",
            "port 0 picks",
            "--servers HOST:PORT",
            "SIGTERM",
            "no password",
        ),
    ):
        assert part in text


def test_version_names_what_it_is_made_of(capsys):
    with pytest.raises(SystemExit) as raised:
        run(["--version"])
    assert raised.value.code == 0
    assert f"ps-server {VERSION} (native core by " in capsys.readouterr().out


@pytest.mark.parametrize("listen", ["7000", ":7000", "host:", "host:x", "host:65536", "h:²", ""])
def test_bad_address_is_refused(capsys, listen):
    with pytest.raises(SystemExit) as raised:
        run(["--listen", listen])
    assert raised.value.code == 2
    error = capsys.readouterr().err
    assert f"an address is HOST:PORT with a port from 0 to 65535, got {listen!r}" in error


@pytest.mark.parametrize("number", ["0", "-1", "65", "two", ""])
def test_bad_number_of_workers_is_refused(capsys, number):
    with pytest.raises(SystemExit) as raised:
        run(["--num-workers", number])
    assert raised.value.code == 2
    assert f"a number of workers is from 1 to 64, got {number!r}" in capsys.readouterr().err


def test_bad_log_level_is_refused(capsys):
    with pytest.raises(SystemExit):
        run(["--log-level", "loud"])
    assert "debug" in capsys.readouterr().err


def test_line_of_stdout_is_exact_and_alone(daemon):
    server = daemon()
    assert re.fullmatch(r"listening on 127\.0\.0\.1:[1-9]\d*\n", server.first_line)
    health(server.address)
    server.signal(signal.SIGTERM)
    assert_ends_well(server)
    assert server.process.stdout.read() == ""
    assert re.search(r"INFO stopping at SIGTERM\n.*INFO stopped\n", server.stderr())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_also_while_a_client_is_connected(daemon, number):
    server = daemon("--log-level", "warning")
    with grpc.insecure_channel(server.address) as channel:
        stub = ps_pb2_grpc.ParameterServerStub(channel)
        assert stub.Stats(ps_pb2.StatsRequest()).server_id
        server.signal(number)
        assert_ends_well(server)
    assert server.stderr() == ""


def test_many_signals_at_once_end_it_as_one_does(daemon):
    server = daemon()
    for _ in range(50):
        for number in (signal.SIGINT, signal.SIGTERM):
            server.signal(number)
    assert_ends_well(server)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_before_its_first_line_ends_it_well_if_it_was_started_with_signals_blocked(
    spawn, number
):
    """Before that line only the kernel can hold a signal; a launcher may ask it to."""
    for _ in range(3):
        held = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
        try:
            server = spawn("--listen", "127.0.0.1:0")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        server.signal(number)
        assert_ends_well(server)
        assert server.stderr() == ""


@pytest.mark.parametrize("module", ["grpc", "google.protobuf", "ps_server.table"])
def test_signal_while_it_loads_ends_it_well(tmp_path, module):
    """The launcher that gives up a job stops servers that have not come up yet."""
    command = [sys.executable, "-X", "importtime", "-m", "ps_server", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        # A line is printed when a module has been loaded.
        loaded = next(line for line in process.stderr if line.split()[-1] == module.encode())
        process.send_signal(signal.SIGTERM)
        assert b"Traceback" not in loaded + process.stderr.read()
        assert process.wait(AT_MOST) == 0
        assert process.stdout.read() == b""


def test_signal_ends_it_while_a_request_runs(daemon, tmp_path, wait_until):
    server = daemon("--data-dir", str(tmp_path / "data"))
    release = threading.Event()

    def requests():
        yield ps_pb2.LoadRequest(table="user")
        release.wait(LATER)

    with grpc.insecure_channel(server.address) as channel:
        call = ps_pb2_grpc.ParameterServerStub(channel).Load.future(requests())
        wait_until(lambda: list((tmp_path / "data").glob("load-*")))
        server.signal(signal.SIGTERM)
        assert_ends_well(server)
        with pytest.raises((grpc.RpcError, grpc.FutureCancelledError)):
            call.result(LATER)
        release.set()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["lock"]


def test_temporary_folder_goes_with_the_process(spawn, tmp_path):
    folder = tmp_path / "tmp"
    folder.mkdir()
    server = spawn("--listen", "127.0.0.1:0", env={"TMPDIR": str(folder)}).wait_until_ready()
    assert len(list(folder.iterdir())) == 1
    server.signal(signal.SIGTERM)
    assert_ends_well(server)
    assert list(folder.iterdir()) == []


def refused(*arguments):
    command = [sys.executable, "-m", "ps_server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LATER, check=False)


def test_port_in_use_is_one_line_and_exit_code_one(server):
    done = refused("--listen", server)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"ps-server: error: cannot listen on {server}: Address already in use; ")
    assert "--listen HOST:PORT" in line


def test_folder_in_use_is_one_line_and_exit_code_one(daemon, tmp_path):
    daemon("--data-dir", str(tmp_path / "data"))
    done = refused("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "is another server's; give each its own --data-dir" in line


def test_it_serves_though_nobody_reads_its_stdout(spawn, free_address):
    read, write = os.pipe()
    os.close(read)
    server = spawn("--listen", free_address, stdout=write)
    os.close(write)
    assert health(free_address).status == health_pb2.HealthCheckResponse.SERVING
    server.signal(signal.SIGTERM)
    assert_ends_well(server)
    assert "stdout is closed" in server.stderr()


def test_it_runs_without_paddle_and_without_hetero_pipe():
    script = (
        "import sys; import ps_server.daemon; "
        "print([name for name in ('paddle', 'hetero_pipe') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LATER, check=True
    )
    assert done.stdout == "[]\n"
