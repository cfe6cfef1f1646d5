"""Real servers for tests, in this process and in processes of their own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ps_server.server import Server

ROOT = Path(__file__).parent.parent


# A shell without job control starts what it runs in the background deaf to Ctrl-C; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    started = set(threading.enumerate()) - before
    for thread in started:  # those of a closed channel need a moment
        thread.join(10)
    left = [thread.name for thread in started if thread.is_alive()]
    assert not left, f"threads left behind: {left}"


@pytest.fixture
def servers():
    """Returns a function that starts n servers in this process and gives their addresses."""
    with ExitStack() as stack:

        def start(number):
            return [stack.enter_context(Server("127.0.0.1:0")).address for _ in range(number)]

        yield start


@pytest.fixture
def server(servers):
    """The address of a server in this process."""
    return servers(1)[0]


def state_of(task):
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Daemon:
    """A `python -m ps_server` of its own process.

    Attributes:
        process: Its Popen; stdout is a pipe of text.
        address: HOST:PORT from its first line.
    """

    def __init__(self, arguments, log, **options):
        # One that is killed leaves its temporary folder behind: in the test's own.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(log.parent)}
        environment.update(options.pop("env", {}))
        options.setdefault("stdout", subprocess.PIPE)
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*options.pop("prefix", ()), sys.executable, "-m", "ps_server", *arguments],
                stderr=stderr,
                text=True,
                env=environment,
                **options,
            )
        self.address = ""

    def wait_until_ready(self):
        self.first_line = self.process.stdout.readline()
        assert self.first_line.startswith("listening on "), self.stderr()
        self.address = self.first_line.split()[-1]
        return self

    def signal(self, number):
        os.kill(self.process.pid, number)

    def freeze(self):
        """Stops every thread of it: what is asked from now on stays under way."""
        self.signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        while any(state_of(task) != "T" for task in tasks.iterdir()):
            time.sleep(0.002)

    def stderr(self):
        return self._log.read_text()

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def spawn(tmp_path):
    """Returns a function that starts a daemon and does not wait for it."""
    daemons = []

    def start(*arguments, **options):
        daemons.append(Daemon(arguments, tmp_path / f"daemon-{len(daemons)}.log", **options))
        return daemons[-1]

    yield start
    for daemon in daemons:
        daemon.end()


@pytest.fixture
def daemon(spawn):
    """Returns a function that starts a daemon on a free port and waits until it listens."""

    def start(*arguments):
        listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
        return spawn(*listen, *arguments).wait_until_ready()

    return start


@pytest.fixture
def free_address():
    """127.0.0.1:PORT where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
def wait_until():
    """Returns a function that looks again and again until its argument holds."""

    def wait(holds, seconds=30.0):
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, "it never came true"
            time.sleep(0.002)

    return wait


@pytest.fixture(scope="session")
def emulated():
    """The module that builds a device that is not the CPU, if it can be built here."""
    paddle = pytest.importorskip("paddle")
    if shutil.which("g++") is None:
        pytest.skip("a custom device is compiled by g++, got none")
    if paddle.__version__.startswith("2."):
        pytest.skip(f"a custom device of Paddle 3, got Paddle {paddle.__version__}")
    folder = str(ROOT / "benchmarks" / "emulated_device")
    sys.path.insert(0, folder)
    try:
        import emulated
    finally:
        sys.path.remove(folder)
    return emulated


@pytest.fixture
def on_emulated_device(emulated, monkeypatch):
    """Has processes that the test starts see `emulated:0`, which Paddle then takes by itself."""
    for name, value in emulated.environment(emulated.build()).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["cpu", "emulated:0"])
def device(request):
    """The name of a device that Paddle takes in processes that the test starts."""
    if request.param != "cpu":
        request.getfixturevalue("on_emulated_device")
    return request.param
