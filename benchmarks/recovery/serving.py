"""A server in a process of its own, asked by its messages alone. For benchmarks/freeze, too."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np

from ps_server.route import Route, ServerRef
from ps_server.spec import Adagrad, TableSpec, Uniform
from ps_server.wire import MAX_MESSAGE_BYTES, ps_pb2, ps_pb2_grpc, route_to_message, spec_to_message

DIM = 16
BATCH = 27_000  # unique keys; about those of 2,048 samples of Criteo
FILL = 250_000  # keys of a push that fills a table
SPEC = TableSpec("t", dim=DIM, optimizer=Adagrad(0.05), initializer=Uniform(-0.1, 0.1))


class Server:
    """A process, and a connection to it."""

    def __init__(self, *arguments: str) -> None:
        start = time.perf_counter()
        command = [sys.executable, "-m", "ps_server", "--listen", "127.0.0.1:0", *arguments]
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self.start_seconds = time.perf_counter() - start
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ]
        self._channel = grpc.insecure_channel(self.address, options=options)
        self.stub = ps_pb2_grpc.ParameterServerStub(self._channel)
        server_id = self.stub.Stats(ps_pb2.StatsRequest()).server_id
        self._route = Route((ServerRef(server_id, "here"),))
        self.step = 0

    def create(self) -> None:
        """Creates the table."""
        spec, route = spec_to_message(SPEC), route_to_message(self._route)
        self.stub.CreateTable(ps_pb2.CreateTableRequest(spec=spec, route=route))

    def push(self, keys: np.ndarray, gradients: np.ndarray) -> float:
        """Pushes; returns the seconds."""
        self.step += 1
        part = ps_pb2.TableGradients(table="t", keys=keys.tobytes(), gradients=gradients.tobytes())
        request = ps_pb2.PushRequest(
            route=self._route.fingerprints[0],
            step=self.step,
            tables=[part],
            worker=1,
            sequence=self.step,
        )
        start = time.perf_counter()
        self.stub.Push(request)
        return time.perf_counter() - start

    def pull(self, keys: np.ndarray) -> float:
        """Pulls; returns the seconds."""
        part = ps_pb2.TableKeys(table="t", keys=keys.tobytes())
        request = ps_pb2.PullRequest(route=self._route.fingerprints[0], insert=True, tables=[part])
        start = time.perf_counter()
        self.stub.Pull(request)
        return time.perf_counter() - start

    def log(self) -> str:
        """Returns what it has logged."""
        self._log.seek(0)
        return self._log.read()

    def checkpoint_seconds(self) -> float | None:
        """Returns how long its first checkpoint took, None while there is none."""
        found = re.search(r"wrote checkpoint \d+ in (\S+) s", self.log())
        return None if found is None else float(found[1])

    def end(self) -> None:
        """Kills it, if it still runs."""
        self._channel.close()
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def serving(*arguments: str) -> Iterator[Server]:
    """Yields a server that is killed at the end."""
    server = Server(*arguments)
    try:
        yield server
    finally:
        server.end()


def durable(folder: Path, *arguments: str) -> list[str]:
    """Returns the flags of a server that comes back."""
    return ["--data-dir", str(folder), "--durability", "process", *arguments]


def keys_of(first: int, end: int) -> np.ndarray:
    """Returns different keys, spread over 64 bits."""
    return (np.arange(first, end, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
