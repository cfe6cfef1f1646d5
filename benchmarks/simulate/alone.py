"""What each stage of a step takes when nothing else runs: of the clock, and of the cores."""

import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

import hetero_pipe as hp
from hetero_pipe.client import Client
from hetero_pipe.data import Lookup, occurrences
from hetero_pipe.metrics import StreamingAuc
from hetero_pipe.nn import DenseStep, Device, TableRows, find_embeddings
from hetero_pipe.pipeline import Executor, StalenessGate

STAGES = ("route", "pull", "dense", "push")
SWITCH = 5e-5  # what a thread waits for the interpreter before it asks the holder to give it up


@dataclass(frozen=True)
class StageCost:
    """One stage, in seconds a step: medians over the steps.

    Attributes:
        wall: Of the clock.
        thread: Of the stage's thread, on cores.
        calls: Of other threads of this process, likewise: they are gRPC's.
        server_cpu: Of the server's process.
        interpreter: The share of `thread` and `calls` in which the interpreter is held.
    """

    wall: float
    thread: float
    calls: float
    server_cpu: float
    interpreter: float

    @property
    def on_cores(self) -> float:
        """Seconds of all threads; those of a request are partly at once."""
        return self.thread + self.calls + self.server_cpu

    def at(self, pace: float) -> "StageCost":
        """Returns it on cores that take so many times as long for all."""
        return replace(
            self,
            wall=self.wall + (pace - 1) * min(self.wall, self.on_cores),
            thread=pace * self.thread,
            calls=pace * self.calls,
            server_cpu=pace * self.server_cpu,
        )


def middle_cost(found: Sequence[Mapping[str, StageCost]]) -> dict[str, StageCost]:
    """Returns the medians of what was measured several times."""
    names = [field.name for field in fields(StageCost)]
    return {
        stage: StageCost(
            *(statistics.median(getattr(each[stage], name) for each in found) for name in names)
        )
        for stage in STAGES
    }


Meter = Callable[[], float]


class AloneLoop:
    """Runs the stages of a step in one thread, one after another.

    Args:
        model: Has Embeddings.
        optimizer: Of its dense part, or None.
        server: HOST:PORT and process id of a server; None has the tables here.
    """

    def __init__(self, model, optimizer, server: tuple[str, int] | None) -> None:
        self._layers = find_embeddings(model)
        self._dense = DenseStep(model, loss=None, optimizer=optimizer, device=Device("cpu"))
        self._client = Client(None if server is None else [server[0]])
        self._pid = None if server is None else server[1]
        specs = [layer.spec(name) for name, layer in self._layers.items()]
        self._step = self._client.attach(specs)
        self._auc = StreamingAuc()

    def measure(self, batches: Sequence[hp.Batch]) -> dict[str, StageCost]:
        """Returns what each stage takes. Meters have passes of their own: they disturb."""
        wall = self.run(batches, time.perf_counter)
        cpu = self.run(batches, time.process_time)
        thread = self.run(batches, time.thread_time)
        served = self.run(batches, lambda: on_cores(self._pid)) if self._pid else None
        with _rival() as rival:
            held = self.run(batches, lambda: time.perf_counter() - rival())
        found = {}
        for name in STAGES:
            is_call = served is not None and name in ("pull", "push")
            on_core, whole = statistics.median(thread[name]), statistics.median(cpu[name])
            calls = max(whole - on_core, 0.0) if is_call else 0.0
            found[name] = StageCost(
                statistics.median(wall[name]),
                on_core,
                calls,
                statistics.median(served[name]) if is_call else 0.0,
                min(max(statistics.median(held[name]) / (on_core + calls), 0.0), 1.0),
            )
        return found

    def route(self, batches: Sequence[hp.Batch]) -> float:
        """Returns the seconds on a core of routing batches, the median of them."""
        laps = []
        for batch in batches:
            start = time.thread_time()
            for layer in self._layers.values():
                self._client.route(occurrences(batch, layer.slots))
            laps.append(time.thread_time() - start)
        return statistics.median(laps)

    def run(self, batches: Sequence[hp.Batch], meter: Meter) -> Mapping[str, list[float]]:
        """Trains on the batches; returns what a meter says of each stage of each step."""
        laps: dict[str, list[float]] = {name: [] for name in STAGES}
        for batch in batches:
            at = [meter()]
            keys, lookups = {}, {}
            for name, layer in self._layers.items():
                keys[name] = self._client.route(occurrences(batch, layer.slots))
                lookups[name] = Lookup.of(batch, layer.slots, keys[name].inverse)
            at.append(meter())
            rows = self._client.pull(keys, insert=True)
            tables = {name: TableRows(rows[name], lookups[name]) for name in rows}
            at.append(meter())
            output = self._dense.train(self._step, batch, tables)
            at.append(meter())
            self._step += 1
            self._client.push(keys, output.gradients, step=self._step)
            # A trainer counts what it has pushed, in the same thread.
            if np.all((batch.label == 0) | (batch.label == 1)):
                self._auc.add(batch.label, output.probabilities)
            at.append(meter())
            for i, name in enumerate(STAGES):
                laps[name].append(at[i + 1] - at[i])
        return laps

    def close(self) -> None:
        """Gives up the connection."""
        self._client.close()


@contextmanager
def _rival() -> Iterator[Meter]:
    """Has another thread hold the interpreter whenever nobody else does; tells for how long it did.

    It computes as long as it holds it, so what is left of the time the others had it.
    """
    before, is_over = sys.getswitchinterval(), threading.Event()

    def spin() -> None:
        while not is_over.is_set():
            pass

    thread = threading.Thread(target=spin)
    sys.setswitchinterval(SWITCH)
    thread.start()
    try:
        assert thread.ident is not None, "it was started"
        clock = time.pthread_getcpuclockid(thread.ident)
        yield lambda: time.clock_gettime(clock)
    finally:
        is_over.set()
        thread.join()
        sys.setswitchinterval(before)


def wake_seconds(num_steps: int = 400) -> float:
    """Returns what a thread that waits takes to go on: of stages that do nothing, in turn."""
    gate = StalenessGate(0)
    stages = [
        _Nothing("pull", gate.wait_to_pull),
        _Nothing("dense"),
        _Nothing("push", gate.acknowledge),
    ]
    start = time.perf_counter()
    with Executor(iter(range(num_steps)), stages, capacities=[4, 1, 1, 16]) as executor:
        for _ in executor.results():
            pass
    return (time.perf_counter() - start) / num_steps / 3  # dense, push, and pull at the gate


@dataclass
class _Nothing:
    name: str
    do: Callable[[int], object] = lambda step: None

    def run(self, step: int, item: object) -> object:
        self.do(step)
        return item

    def close(self) -> None:
        """Never waits."""


def on_cores(pid: int) -> float:
    """Returns the seconds that the threads of a process were on a core, to the nanosecond."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except FileNotFoundError:  # it has just ended
            continue
    return total / 1e9
