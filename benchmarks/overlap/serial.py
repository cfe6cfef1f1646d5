"""The stages of a step one after the other, each of them timed."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import paddle

import hetero_pipe as hp
from hetero_pipe.client import Client
from hetero_pipe.data import Lookup, occurrences
from hetero_pipe.nn import DenseStep, Device, TableRows, find_embeddings

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """What a run took.

    Attributes:
        num_steps: It ran.
        wall: Seconds.
        cpu: Seconds on a core, of this process, all threads.
        server_cpu: Seconds on a core, of the server; 0 if the tables are here.
        stages: Seconds of each stage, by name, where they were timed.
    """

    num_steps: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    server_cpu: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)


class Meter:
    """Measures wall and CPU seconds from `with` to its end.

    Args:
        server_pid: Whose CPU seconds count too; None for no server.
    """

    def __init__(self, server_pid: int | None) -> None:
        self._pid = server_pid
        self.cost = Cost()

    def __enter__(self) -> Cost:
        self._start = self._now()
        return self.cost

    def __exit__(self, *error: object) -> None:
        ends = zip(self._now(), self._start, strict=True)
        self.cost.wall, self.cost.cpu, self.cost.server_cpu = (now - was for now, was in ends)

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), _cpu_of(self._pid)


def _cpu_of(pid: int | None) -> float:
    if pid is None:
        return 0.0
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND  # user and system


class SerialLoop:
    """Routes, pulls, trains and pushes in one thread.

    Args:
        model: Has Embeddings.
        optimizer: Of its dense part, or None.
        servers: As of a Trainer.
        device: Of the dense part, as Paddle names it.
    """

    def __init__(
        self,
        model: paddle.nn.Layer,
        optimizer,
        servers: Sequence[str] | None,
        *,
        device: str = "cpu",
    ) -> None:
        self._layers = find_embeddings(model)
        self._dense = DenseStep(model, loss=None, optimizer=optimizer, device=Device(device))
        self._client = Client(servers)
        specs = [layer.spec(name) for name, layer in self._layers.items()]
        self._step = self._client.attach(specs)

    def run(self, batches: Sequence[hp.Batch], server_pid: int | None) -> Cost:
        """Trains on the batches and returns what that took, stage by stage."""
        stages = dict.fromkeys(("route", "pull", "dense", "push"), 0.0)
        with Meter(server_pid) as cost:
            for batch in batches:
                at = [time.perf_counter()]
                routed = {}
                for slots in {layer.slots for layer in self._layers.values()}:
                    keys = self._client.route(occurrences(batch, slots))
                    routed[slots] = keys, Lookup.of(batch, slots, keys.inverse)
                keys = {name: routed[layer.slots][0] for name, layer in self._layers.items()}
                at.append(time.perf_counter())
                rows = self._client.pull(keys, insert=True)
                at.append(time.perf_counter())
                lookups = {name: routed[layer.slots][1] for name, layer in self._layers.items()}
                tables = {name: TableRows(rows[name], lookups[name]) for name in rows}
                output = self._dense.train(self._step, batch, tables)
                at.append(time.perf_counter())
                self._step += 1
                self._client.push(keys, output.gradients, step=self._step)
                at.append(time.perf_counter())
                for i, name in enumerate(stages):
                    stages[name] += at[i + 1] - at[i]
        cost.num_steps, cost.stages = len(batches), stages
        return cost

    def close(self) -> None:
        """Gives up the connection."""
        self._client.close()


class DenseLoop:
    """The dense step alone, on rows that were pulled before: as fast as a pipeline could be.

    Args:
        model: Has Embeddings.
        optimizer: Of its dense part, or None.
        batches: Distinct ones.
    """

    def __init__(self, model: paddle.nn.Layer, optimizer, batches: Sequence[hp.Batch]) -> None:
        layers = find_embeddings(model)
        self._dense = DenseStep(model, loss=None, optimizer=optimizer, device=Device("cpu"))
        self._inputs = []
        with Client(None) as client:
            client.attach([layer.spec(name) for name, layer in layers.items()])
            for batch in batches:
                keys = {
                    name: client.route(occurrences(batch, each.slots))
                    for name, each in layers.items()
                }
                rows = client.pull(keys, insert=True)
                tables = {
                    name: TableRows(rows[name], Lookup.of(batch, each.slots, keys[name].inverse))
                    for name, each in layers.items()
                }
                self._inputs.append((batch, tables))

    def run(self, num_steps: int) -> Cost:
        """Runs so many dense steps."""
        with Meter(None) as cost:
            for step in range(num_steps):
                batch, tables = self._inputs[step % len(self._inputs)]
                self._dense.train(step, batch, tables)
        cost.num_steps = num_steps
        return cost
