"""`hetero-pipe profile`: what it measures, what it writes, how it ends."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from hetero_pipe.cli import main
from hetero_pipe.cluster import BESIDE, HOST_PRESETS, RATES, cluster_from_toml, load_cluster
from hetero_pipe.nn import OP_KINDS

ROOT = Path(__file__).parents[2]

FILE = """\
# two machines
[[host]]
name = "here"
[[host.device]]
kind = "cpu"
cores = 2
memory = "1GiB"

[[host]]
name = "there"
preset = "2xXeon-8480"

[[link]]
between = ["here", "there"]
kind = "NIC"
bandwidth = "25Gbit/s"
latency = "5us"
"""

EMULATED = """\
[[host.device]]
kind = "custom"
name = "emulated"
memory = "1GiB"
[[host.link]]
between = ["emulated", "cpu"]
kind = "PCIe"
bandwidth = "1GB/s"
latency = "5us"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    return path


@contextmanager
def profile(*arguments):
    """A running `hetero-pipe profile`; its stderr can be read line by line."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hetero_pipe", "profile", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(*arguments):
    with profile(*arguments) as process:
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err


def children(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_help_lists_the_presets(capsys):
    with pytest.raises(SystemExit):
        main(["profile", "--help"])
    text = capsys.readouterr().out
    for part in (*HOST_PRESETS, "--cluster FILE", "--listen HOST:PORT", "Ctrl-C"):
        assert part in text


@pytest.mark.slow
def test_what_is_measured_goes_into_the_file(file, tmp_path):
    arguments = ("--cluster", file, "--host", "here", "--quick", "--folder", tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (0, ""), err
    assert file.read_text().startswith(FILE)
    rates = load_cluster(file).rates
    # It has no device with copies, and no other host.
    assert {rate.what for rate in rates} == RATES.keys() - {
        *("upload", "upload_core", "download", "link_latency", "link_bandwidth")
    }
    assert {rate.kind for rate in rates if rate.what == "beside"} == set(BESIDE) - {"cut"}
    assert {rate.host for rate in rates} == {"here"}
    assert {rate.kind for rate in rates if rate.what == "op"} == set(OP_KINDS)
    said = [line for line in err.splitlines() if not re.match(r"W\d{4} ", line)]  # Paddle's
    assert len(said) == len(rates), err
    assert all(rate.value.samples >= 3 for rate in rates)
    assert os.listdir(tmp_path) == [file.name]


@pytest.mark.slow
@pytest.mark.usefixtures("on_emulated_device")
def test_a_device_that_is_no_cpu_has_copies_too(file):
    file.write_text(FILE.replace('memory = "1GiB"\n', f'memory = "1GiB"\n{EMULATED}'))
    code, out, err = run("--cluster", file, "--host", "here", "--quick", "--json")
    assert code == 0, err
    rates = [rate for rate in json.loads(out)["rate"] if rate.get("device") == "emulated"]
    whats = {"matmul", "elementwise", "linear", "op", "launch", "dense_step"}
    whats |= {"upload", "upload_core", "download", "beside"}
    assert {rate["what"] for rate in rates} == whats


@pytest.mark.slow
def test_a_host_that_is_not_described_is_found():
    code, out, err = run("--quick")
    assert code == 0, err
    (host,) = cluster_from_toml(out).hosts
    assert host.cores >= 1


@pytest.mark.slow
def test_ctrl_c_writes_nothing_and_leaves_no_server(file, wait_until):
    with profile("--cluster", file, "--host", "here", "--quick") as process:
        for line in process.stderr:
            if line.startswith("push adam"):
                break
        while not (started := children(process.pid)):  # the server is next
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("hetero-pipe: interrupted, nothing was written\n")
    assert "Traceback" not in err
    assert file.read_text() == FILE
    wait_until(lambda: not any(is_running(pid) for pid in started))


def test_a_link_is_measured_from_one_host_to_another(file):
    with profile("--listen", "127.0.0.1:0") as listener:
        address = listener.stdout.readline().split()[-1]
        with socket.create_connection(address.split(":")) as stranger:
            stranger.sendall(b"\xff" * 8)  # more than any message
            assert stranger.recv(1) == b""
        arguments = ("--cluster", file, "--host", "here", "--peer", "there", "--quick")
        code, out, err = run(*arguments, "--link", address)
        assert (code, out) == (0, ""), err
        listener.send_signal(signal.SIGINT)
        assert listener.communicate(timeout=30) == ("", "")
        assert listener.returncode == 0
    latency, bandwidth = load_cluster(file).rates
    assert (latency.what, latency.peer, latency.unit) == ("link_latency", "there", "s")
    assert (bandwidth.what, bandwidth.peer, bandwidth.unit) == ("link_bandwidth", "there", "B/s")
    assert latency.value.max < 1
    assert bandwidth.value.min > 1e6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--cluster", "FILE"], "has the hosts here, there, got none that is this one"),
        (["--cluster", "FILE", "--host", "ther"], "got 'ther'; did you mean 'there'?"),
        (["--cluster", "none.toml"], "a cluster file must be readable, got none.toml"),
        (["--peer", "there"], "got --peer without --link HOST:PORT"),
        (["--cluster", "FILE", "--host", "here", "--link", "x"], "an address is HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "a port from 0 to 65535, got '127.0.0.1:99999'"),
        (["--listen", "192.0.2.1:0"], "at a free address, got 192.0.2.1:0"),
    ],
)
def test_a_mistake_is_told(arguments, said, file, capsys):
    arguments = [str(file) if each == "FILE" else each for each in arguments]
    assert main(["profile", *arguments]) == 1
    assert said in capsys.readouterr().err
    assert file.read_text() == FILE
