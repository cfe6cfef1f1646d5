"""Measures what stages take longer beside each other than alone, by jobs of a reference model."""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hetero_pipe.cluster import Cluster, Rate, Sampling, Spread
from hetero_pipe.cost import Constants, CostModel, OnCores, beside_factors, workload_of
from hetero_pipe.data import Bags, Batch, measure_statistics
from hetero_pipe.nn import BatchSpec, Device, ReferenceModel, trace
from hetero_pipe.plan import Plan, ProcessPlan
from hetero_pipe.trainer.build import default_plan
from hetero_pipe.trainer.trainer import Trainer

__all__ = ["profile_beside"]

SLOTS = tuple(f"s{i}" for i in range(20))
BATCH = 1536
NUM_BATCHES = 16
KEYS_A_SLOT = 20_000
NUM_SAMPLES = 3  # of a job, each of some steps
SECONDS = 0.8  # of a sample
LEAST_STEPS = 10


def profile_beside(
    cluster: Cluster,
    host: str,
    device: str,
    sampling: Sampling,
    *,
    server: tuple[str, int] | None = None,
) -> Iterator[Rate]:
    """Yields `beside` for each kind of work of a job on a device, all overlapping.

    A job with its tables in this process tells of its stages, one with a server of calls
    and of the server. Nothing else is to run meanwhile.

    Args:
        cluster: With the rates of all that is in such a job.
        host: Name of this one, of the cluster.
        device: As Paddle names it.
        sampling: A quick one has shorter jobs.
        server: HOST:PORT and process id of one that serves nobody else; None leaves out
            what needs one.

    Raises:
        ServerError: It failed or does not answer.
    """
    alone = replace(cluster, rates=tuple(r for r in cluster.rates if r.what != "beside"))
    reader = _Batches(_drawn(), NUM_BATCHES)
    # Clocks of another process are Linux's.
    pairs = [None] if server is None or sys.platform != "linux" else [None, server]
    found: dict[str, list[float]] = defaultdict(list)
    for pair in pairs:
        job = _Job(alone, host, device, pair, SECONDS / 4 if sampling.is_quick else SECONDS)
        for kind, factor in job.factors(reader):
            found[kind].append(factor)
    group = device.partition(":")[0]
    for kind, factors in found.items():
        yield Rate("beside", host, Spread.of(factors), device=group, kind=kind)


@dataclass(frozen=True)
class _Batches:
    """A reader of batches that are there, over and over: reading takes no time."""

    items: Sequence[Batch]
    num_steps: int

    slots = SLOTS
    dense = ()

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[Batch]:
        return (self.items[i % len(self.items)] for i in range(skip, self.num_steps))

    def __iter__(self) -> Iterator[Batch]:
        return self.batches(0)

    def in_order(self) -> "_Batches":
        return self


@dataclass(frozen=True)
class _Job:
    """A job of the reference model.

    Attributes:
        cluster: What is known of this host.
        host: Its name.
        device: Where the dense part is.
        server: HOST:PORT and process id; None has the tables here.
        seconds: That it is measured for.
    """

    cluster: Cluster
    host: str
    device: str
    server: tuple[str, int] | None
    seconds: float

    def factors(self, reader: _Batches) -> Iterator[tuple[str, float]]:
        """Trains, and yields what `beside_factors` finds."""
        Device(self.device).enter()
        model = ReferenceModel(SLOTS)
        servers = None if self.server is None else [self.server[0]]
        plan = default_plan(model, servers=servers, staleness=1)
        samples = self._measured(model, plan, reader)
        graph = trace(model, BatchSpec.of(reader.items[0]))
        tables = {table.name: tuple(table.slots) for table in graph.tables}
        statistics = measure_statistics(reader.items, tables, batch_size=BATCH)
        workload = workload_of(
            graph, statistics, rows=dict.fromkeys(tables, float(KEYS_A_SLOT * len(SLOTS)))
        )
        costs = CostModel(self.cluster, workload, Constants(read_value=0.0))  # they are there
        alone = costs.predict(self._here(plan))
        for found in samples:
            yield from beside_factors(alone, found)

    def _here(self, plan: Plan) -> Plan:
        """Returns the plan with its processes on this host."""
        processes = [ProcessPlan("whole", self.host, self.device.partition(":")[0])]
        if self.server is not None:
            processes.append(ProcessPlan("server", self.host, "cpu"))
        return replace(plan, batch_size=BATCH, processes=tuple(processes))

    def _measured(self, model: ReferenceModel, plan: Plan, reader: _Batches) -> list[OnCores]:
        with Trainer(model, optimizer=model.optimizer(), plan=plan) as trainer:
            trainer.fit(_Batches(_all_keys(), len(_all_keys())), callbacks=[])
            trainer.fit(reader, callbacks=[])
            warm = trainer.fit(reader, callbacks=[])
            num_steps = max(int(self.seconds / warm.seconds * warm.num_steps), LEAST_STEPS)
            measured = replace(reader, num_steps=num_steps)
            return [self._sample(trainer, measured) for _ in range(NUM_SAMPLES)]

    def _sample(self, trainer: Trainer, reader: _Batches) -> OnCores:
        begin, served, num_steps = time.process_time(), self._served(), reader.num_steps
        result = trainer.fit(reader, callbacks=[])
        workers, servers = time.process_time() - begin, self._served() - served
        return OnCores(
            {stage.name: stage.cpu / num_steps for stage in result.timeline.stages},
            workers / num_steps,
            servers / num_steps,
        )

    def _served(self) -> float:
        """Returns the seconds that the server has had cores for; 0 without one."""
        if self.server is None:
            return 0.0
        return time.clock_gettime(~self.server[1] << 3 | 2)  # clock_getcpuclockid(3)


def _drawn() -> list[Batch]:
    """Returns batches whose keys come as those of a log do: few often, many seldom."""
    rng = np.random.default_rng(0)
    ranks = np.exp(rng.random((NUM_BATCHES, len(SLOTS), BATCH)) * np.log(KEYS_A_SLOT))
    return [_batch(each.astype(np.uint64), rng) for each in ranks]


def _all_keys() -> list[Batch]:
    """Returns batches that have each key of each slot."""
    rng = np.random.default_rng(1)
    firsts = np.arange(0, KEYS_A_SLOT, BATCH, dtype=np.uint64)
    one = np.arange(BATCH, dtype=np.uint64)
    return [_batch(np.tile((first + one) % KEYS_A_SLOT, (len(SLOTS), 1)), rng) for first in firsts]


def _batch(keys: np.ndarray, rng: np.random.Generator) -> Batch:
    """Returns a batch of keys `[slot, sample]` within the slots."""
    bags = {
        slot: Bags(np.ascontiguousarray(keys[i] + np.uint64(i * KEYS_A_SLOT)))
        for i, slot in enumerate(SLOTS)
    }
    labels = (rng.random(BATCH) < 0.25).astype(np.float32)
    return Batch(bags, np.empty((BATCH, 0), np.float32), labels)
