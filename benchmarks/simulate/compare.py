"""Simulated beside measured: the configurations of benchmarks/overlap on this machine."""

import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "overlap"))

from alone import AloneLoop, StageCost, on_cores, wake_seconds
from device import SleepingDevice
from main import daemon
from repeated import Repeated

import hetero_pipe as hp
from hetero_pipe.cluster import Cluster, Device, Host
from hetero_pipe.pipeline import Timeline
from hetero_pipe.plan import (
    Breakdown,
    Part,
    Plan,
    Prediction,
    ProcessPlan,
    StagePlan,
    StagePrediction,
)
from hetero_pipe.simulate import Conditions, Simulation, simulate

STALENESS = (0, 1, 2, 4)
NUM_CORES = len(os.sched_getaffinity(0))
QUIET = 0.1  # cores that others may hold meanwhile
PATIENCE = 4


@dataclass(frozen=True)
class Result:
    """One configuration.

    Attributes:
        tables: `embedded` or `ps-server`.
        device_ms: Of the sleep that is the device.
        staleness: Of the plan.
        measured: Milliseconds a step, median of the rounds.
        spread: Least and most of them.
        simulated: Milliseconds a step.
        plain: Likewise, of the stages' times alone: neither interpreter nor wakes.
        bottleneck: The busiest stage, measured and simulated.
        busy: Milliseconds a step of each stage, measured and simulated.
        others: Cores that other processes held, on average.
    """

    tables: str
    device_ms: int
    staleness: int
    measured: float
    spread: tuple[float, float]
    simulated: float
    plain: float
    bottleneck: tuple[str | None, str | None]
    busy: Mapping[str, tuple[float, float]]
    others: float

    @property
    def error(self) -> float:
        """Of the throughput: 0.05 is 5% more simulated than measured."""
        return self.measured / self.simulated - 1

    @property
    def is_near_tie(self) -> bool:
        """Whether both bottlenecks are busy for as long, to a tenth, in what was measured."""
        first, second = (self.busy[name or ""][0] for name in self.bottleneck)
        return abs(first - second) <= 0.1 * max(first, second)

    def to_dict(self) -> dict:
        """Returns it for JSON."""
        return asdict(self) | {"error": self.error}


def compare(
    *, tables: Sequence[str], devices: Sequence[int], rounds: int, num_steps: int = 60
) -> Iterator[Result]:
    """Yields the configurations one after another, each measured and simulated."""
    batches = list(hp.synthetic_criteo(num_samples=4096 * 16, seed=1))
    slots = tuple(batches[0].bags)
    wake = statistics.median(wake_seconds() for _ in range(5))
    for where in tables:
        with daemon() if where == "ps-server" else nullcontext(None) as server:
            for ms in devices:

                def model(ms: int = ms) -> SleepingDevice:
                    return SleepingDevice(slots, batches[0].size * len(slots), ms / 1e3)

                costs, runs = measure(model, batches, server, rounds=rounds, num_steps=num_steps)
                for staleness, found in runs.items():
                    beside = both(costs, wake, staleness, num_steps=num_steps)
                    yield judge((where, ms, staleness), found, *beside)


@dataclass
class Run:
    """One `fit`: milliseconds a step, where time went, cores that others held."""

    ms: float
    timeline: Timeline
    others: float


def measure(
    model, batches, server, *, rounds: int, num_steps: int
) -> tuple[dict[str, StageCost], dict[int, list[Run]]]:
    """Returns what stages take alone, in the quietest round, and the runs by staleness.

    They take turns in each round, so that what else the machine does hits all of them. It
    takes up to `PATIENCE` times as many rounds until so many were quiet.
    """
    found: dict[int, list[Run]] = {k: [] for k in STALENESS}
    alone = []
    with ExitStack() as stack:
        loop = AloneLoop(model(), None, server)
        stack.callback(loop.close)
        loop.run(batches, time.perf_counter)  # makes rows, warms caches
        trainers = {}
        for k in STALENESS:
            trainer = hp.Trainer(model(), servers=server and [server[0]], staleness=k)
            trainers[k] = stack.enter_context(trainer)
            trainers[k].fit(Repeated(batches, 10), callbacks=[])
        for _ in range(PATIENCE * rounds):
            num_quiet = min(sum(run.others < QUIET for run in runs) for runs in found.values())
            if num_quiet >= rounds and min(others for others, _ in alone) < QUIET:
                break
            others = _Others(server)
            costs = loop.measure(list(Repeated(batches, 24)))
            # One thread holds the interpreter meanwhile, of this process.
            alone.append((others.cores(), costs))
            for k, trainer in trainers.items():
                others = _Others(server)
                result = trainer.fit(Repeated(batches, num_steps), callbacks=[])
                ms = 1e3 * result.seconds / num_steps
                found[k].append(Run(ms, result.timeline, others.cores()))
    return min(alone, key=lambda each: each[0])[1], found


def both(
    costs: Mapping[str, StageCost], wake: float, staleness: int, *, num_steps: int
) -> tuple[Simulation, Simulation]:
    """Returns simulated runs: with the interpreter and the wakes of threads, and without."""
    shares = {name: cost.interpreter for name, cost in costs.items()}
    conditions = Conditions(interpreter=shares, wake_seconds=wake)
    return (
        simulated(costs, staleness, conditions, num_steps=num_steps),
        simulated(costs, staleness, Conditions(), num_steps=num_steps),
    )


def judge(
    which: tuple[str, int, int], runs: Sequence[Run], found: Simulation, plain: Simulation
) -> Result:
    """Returns the runs of one configuration beside its simulations."""
    quiet = [run for run in runs if run.others < QUIET] or [min(runs, key=lambda run: run.others)]
    num_steps = found.num_steps
    middle = sorted(quiet, key=lambda run: run.ms)[(len(quiet) - 1) // 2]
    timeline = found.readers[0].timeline
    return Result(
        *which,
        statistics.median(run.ms for run in quiet),
        (min(run.ms for run in quiet), max(run.ms for run in quiet)),
        1e3 * found.seconds / num_steps,
        1e3 * plain.seconds / num_steps,
        (middle.timeline.bottleneck, found.bottleneck),
        {
            stage.name: (
                1e3 * stage.busy / num_steps,
                1e3 * timeline.stage(stage.name).busy / num_steps,
            )
            for stage in middle.timeline.stages
        },
        statistics.fmean(run.others for run in quiet),
    )


def simulated(
    costs: Mapping[str, StageCost], staleness: int, conditions: Conditions, *, num_steps: int
) -> Simulation:
    """Returns a simulated run of stages that take this alone."""
    capacities = {"read": 4, "route": 2, "pull": 1 + staleness, "dense": 1, "push": 16}
    is_served = any(cost.server_cpu for cost in costs.values())
    here = ["server"] * is_served + ["whole"]
    plan = Plan(
        stages=tuple(StagePlan(name, "cpu", capacity) for name, capacity in capacities.items()),
        tables=(),
        staleness=staleness,
        processes=tuple(ProcessPlan(role, "here", "cpu") for role in here),
    )
    stages = [StagePrediction("read", "whole", Breakdown.of("read", 1e-5, "worker"), 1e-5)]
    for name, cost in costs.items():
        parts = breakdown(name, cost)
        stages.append(StagePrediction(name, "whole", parts, parts.total))
    longest = max(stage.cost.total for stage in stages)
    prediction = Prediction(longest, 4096.0, tuple(stages), (), (Part("longest", longest),))
    cluster = Cluster((Host("here", (Device("cpu", memory=1 << 30, cores=NUM_CORES),)),))
    return simulate(
        plan,
        cluster=cluster,
        num_steps=num_steps,
        prediction=prediction,
        conditions=conditions,
        is_recorded=False,
    )


def breakdown(name: str, cost: StageCost) -> Breakdown:
    """Returns the parts of a stage: packed here, served there, unpacked here, waited for.

    Client and server are on cores at once for a part of a request. A breakdown has one
    part after another, so both are scaled to what the clock says.
    """
    busy = cost.cpu + cost.server_cpu
    scale = min(1.0, cost.wall / busy)
    cpu, served, rest = cost.cpu * scale, cost.server_cpu * scale, max(cost.wall - busy, 0.0)
    parts = [
        ("pack", cpu / 2, "worker"),
        ("serve", served, "server"),
        ("unpack", cpu / 2, "worker"),
    ]
    parts.append(("kernel", rest, "device" if name == "dense" else "wait"))
    return Breakdown(tuple(Part(*part) for part in parts if part[1] > 0))


class _Others:
    """Tells how many cores processes other than this one and its server have held since then."""

    def __init__(self, server: tuple[str, int] | None) -> None:
        self._server = server
        self._start = time.perf_counter(), self._seconds()

    def cores(self) -> float:
        """Returns them, on average."""
        start, seconds = self._start
        return (self._seconds() - seconds) / (time.perf_counter() - start)

    def _seconds(self) -> float:
        with open("/proc/stat") as file:
            user, nice, system, _, _, *rest = (int(each) for each in file.readline().split()[1:9])
        all_cores = (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
        return all_cores - time.process_time() - (on_cores(self._server[1]) if self._server else 0)
