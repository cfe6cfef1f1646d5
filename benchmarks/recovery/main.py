"""How soon is a killed server back, and what does its journal cost while it lives?

Servers are processes of their own on this host. One that keeps a journal
(--durability process) and one that keeps none take turns, batch by batch, so
that ratios are of one run.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np

from ps_server.route import Route, ServerRef
from ps_server.spec import Adagrad, TableSpec, Uniform
from ps_server.wire import MAX_MESSAGE_BYTES, ps_pb2, ps_pb2_grpc, route_to_message, spec_to_message

DIM = 16
BATCH = 27_000  # unique keys; about those of 2,048 samples of Criteo
NUM_KEYS = 1_000_000  # of the table that is pushed
FILL = 250_000  # keys of a push that fills a table
SPEC = TableSpec("t", dim=DIM, optimizer=Adagrad(0.05), initializer=Uniform(-0.1, 0.1))
TRAIN = Path(__file__).parents[2] / "examples" / "ctr" / "train.py"


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


def quartiles(values: list[float]) -> dict[str, float]:
    """Returns the median, and what half of the values lie between."""
    low, median, high = statistics.quantiles(values, n=4)
    return {"median": median, "low": low, "high": high}


def push_cost(rounds: int) -> dict[str, object]:
    """Pushes, and pulls and pushes, with a journal and without one, in turns."""
    rng = np.random.default_rng(0)
    keys = keys_of(0, NUM_KEYS)
    gradients = rng.normal(scale=1e-2, size=(BATCH, DIM)).astype(np.float32)
    seconds: dict[str, list[float]] = {"none": [], "process": []}
    steps: dict[str, list[float]] = {"none": [], "process": []}
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder, ExitStack() as stack:
        servers = {
            "none": stack.enter_context(serving()),
            "process": stack.enter_context(serving(*durable(Path(folder)))),
        }
        for server in servers.values():
            server.create()
            server.pull(keys)
        for number in range(rounds + 5):
            batch = rng.choice(keys, BATCH, replace=False)
            for name in list(servers)[:: 1 if number % 2 else -1]:
                pull = servers[name].pull(batch)
                push = servers[name].push(batch, gradients)
                if number >= 5:  # the first are warming up
                    seconds[name].append(push)
                    steps[name].append(pull + push)
    return {
        "push_seconds": {name: quartiles(times) for name, times in seconds.items()},
        "push_throughput_of_none": statistics.median(seconds["none"])
        / statistics.median(seconds["process"]),
        "pull_and_push_throughput_of_none": statistics.median(steps["none"])
        / statistics.median(steps["process"]),
    }


def trainer_cost(rounds: int) -> dict[str, object]:
    """Trains the example on a server with a journal and on one without, in turns."""
    rates: dict[str, list[float]] = {"none": [], "process": []}
    for number in range(rounds):
        for name in ("none", "process")[:: 1 if number % 2 else -1]:
            with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
                flags = durable(Path(folder)) if name == "process" else []
                with serving(*flags) as server:
                    command = [sys.executable, str(TRAIN), "--epochs", "1", "--json"]
                    command += ["--servers", server.address]
                    done = subprocess.run(command, check=True, capture_output=True, text=True)
            result = json.loads(done.stdout.splitlines()[-1])
            rates[name].append(result["samples_per_second"])
    return {
        "samples_per_second": rates,
        "samples_per_second_of_none": statistics.median(rates["process"])
        / statistics.median(rates["none"]),
    }


def recovery(num_rows: int, journal_pushes: int) -> dict[str, float]:
    """Fills a table, has a checkpoint written, pushes on, kills, and waits for the first pull."""
    rng = np.random.default_rng(1)
    gradients = rng.normal(scale=1e-2, size=(FILL, DIM)).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        folder = Path(name)
        with serving() as bare:
            start_seconds = bare.start_seconds
        with serving(*durable(folder, "--journal-limit", "1TiB")) as server:
            server.create()
            for first in range(0, num_rows, FILL):
                server.push(keys_of(first, first + FILL), gradients)
            step = server.step
        # It finds its journal too long, and writes a checkpoint of all rows.
        with serving(*durable(folder, "--journal-limit", "16MiB")) as server:
            while "wrote checkpoint" not in server.log():
                time.sleep(0.05)
            (seconds,) = re.findall(r"wrote checkpoint \d+ in (\S+) s", server.log())
        before = sum(path.stat().st_size for path in folder.rglob("*.log"))
        with serving(*durable(folder, "--journal-limit", "1TiB")) as server:
            server.step = step
            keys = keys_of(0, num_rows)
            for _ in range(journal_pushes):
                server.push(rng.choice(keys, BATCH), gradients[:BATCH])
            killed = time.perf_counter()
            server.end()
            with serving(*durable(folder, "--journal-limit", "1TiB")) as after:
                after.pull(keys[:BATCH])
                back = time.perf_counter() - killed
                said = re.search(
                    r"recovered .* checkpoint \d+ in (\S+) s, (\d+) records in (\S+) s", after.log()
                )
        journal_bytes = sum(path.stat().st_size for path in folder.rglob("*.log")) - before
        assert said is not None, after.log()
    return {
        "rows": num_rows,
        "write_checkpoint_seconds": float(seconds),
        "journal_bytes": journal_bytes,
        "kill_to_pull_seconds": back,
        "start_of_an_empty_server_seconds": start_seconds,
        "read_checkpoint_seconds": float(said[1]),
        "replay_seconds": float(said[3]),
        "replayed_records": float(said[2]),
    }


def while_it_writes_a_checkpoint(num_rows: int) -> dict[str, object]:
    """Pulls and pushes until the journal is so long that a checkpoint is written, and meanwhile."""
    rng = np.random.default_rng(2)
    gradients = rng.normal(scale=1e-2, size=(FILL, DIM)).astype(np.float32)
    keys = keys_of(0, num_rows)
    seconds: dict[str, list[list[float]]] = {"before": [[], []], "while": [[], []]}
    with tempfile.TemporaryDirectory(prefix="recovery-") as name:
        limit = f"{num_rows * (8 + 4 * DIM) * 1.15 / 2**20 + 200:.0f}MiB"
        with serving(*durable(Path(name), "--journal-limit", limit)) as server:
            server.create()
            for first in range(0, num_rows, FILL):
                server.push(keys[first : first + FILL], gradients)
            while "wrote checkpoint" not in server.log():
                batch = rng.choice(keys, BATCH)
                is_begun = len(list(Path(name, "journal").iterdir())) > 1
                times = seconds["while" if is_begun else "before"]
                times[0].append(server.pull(batch))
                times[1].append(server.push(batch, gradients[:BATCH]))
    return {
        "rows": num_rows,
        **{
            f"{operation}_seconds_{when}": dict(
                zip(
                    ("p50", "p99", "worst"),
                    np.percentile(times[at], [50, 99, 100]).tolist(),
                    strict=True,
                )
            )
            for at, operation in enumerate(("pull", "push"))
            for when, times in seconds.items()
        },
    }


def main() -> None:
    """Measures and prints what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, 1 million rows alone")
    parser.add_argument("--json", action="store_true", help="last line is one JSON object")
    parser.add_argument(
        "--only", choices=["push", "train", "checkpoint", "recovery"], help="one part; default: all"
    )
    parser.add_argument("--rows", type=int, nargs="+", help="default: 1 and 10 million")
    flags = parser.parse_args()
    results: dict[str, object] = {"cores": os.cpu_count()}
    if flags.only in (None, "push"):
        results["push"] = show("push", push_cost(20 if flags.quick else 100))
    if flags.only in (None, "train"):
        results["train"] = show("train", trainer_cost(1 if flags.quick else 3))
    if flags.only in (None, "checkpoint"):
        rows = 1_000_000 if flags.quick else 10_000_000
        results["checkpoint"] = show("checkpoint", while_it_writes_a_checkpoint(rows))
    if flags.only in (None, "recovery"):
        sizes = flags.rows or ([1_000_000] if flags.quick else [1_000_000, 10_000_000])
        results["recovery"] = [
            show("recovery", recovery(rows, 20 if flags.quick else 100)) for rows in sizes
        ]
    if flags.json:
        print(json.dumps(results))


def show(title: str, figures: dict[str, object]) -> dict[str, object]:
    """Prints figures, one a line, and returns them."""
    print(title)
    for name, value in figures.items():
        print(f"  {name:36} {value}", flush=True)
    return figures


if __name__ == "__main__":
    main()
