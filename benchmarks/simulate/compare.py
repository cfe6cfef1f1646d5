"""Simulated beside measured: the configurations of benchmarks/overlap on this machine."""

import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1] / "overlap"))

from alone import AloneLoop, StageCost, middle_cost, wake_seconds
from device import SleepingDevice
from main import daemon
from repeated import Repeated
from runs import QUIET, Meters, Run, Server, run

import hetero_pipe as hp
from hetero_pipe.cluster import Cluster, Device, Host
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
NUM_STEPS = 400  # simulated
PATIENCE = 3
ENOUGH = 3  # rounds, of which a median is worth something


@dataclass(frozen=True)
class Result:
    """One configuration.

    Attributes:
        tables: `embedded` or `ps-server`.
        device_ms: Of the sleep that is the device.
        staleness: Of the plan.
        measured: Milliseconds a step, median over parts of all rounds.
        spread: Least and most of the rounds.
        simulated: Milliseconds a step.
        plain: Likewise, of the stages as they are alone: neither interpreter nor wakes.
        bottleneck: The busiest stage, measured and simulated.
        busy: Milliseconds a step of each stage, measured and simulated.
        pace: How many times as long cores took for the same work as when stages were alone.
        others: Cores that other processes held, on average.
    """

    tables: str
    device_ms: float
    staleness: int
    measured: float
    spread: tuple[float, float]
    simulated: float
    plain: float
    bottleneck: tuple[str | None, str | None]
    busy: Mapping[str, tuple[float, float]]
    pace: float
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

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> "Result":
        """Returns what `to_dict` told."""
        return Result(**{field.name: document[field.name] for field in fields(Result)})


def compare(
    which: Sequence[tuple[str, float]], *, rounds: int, seconds: float = 0.6
) -> Iterator[Result]:
    """Yields configurations one after another, each measured and simulated.

    Args:
        which: Tables, and milliseconds of the device.
        rounds: Quiet ones that there shall be.
        seconds: Of a run.
    """
    wake = statistics.median(wake_seconds() for _ in range(5))
    for where, ms in which:
        with daemon() if where == "ps-server" else nullcontext(None) as server:
            costs, runs = measure(ms, server, rounds=rounds, seconds=seconds)
        for staleness, found in runs.items():
            pace = statistics.median(run.pace for run in _undisturbed(found))
            simulations = both(at(costs, pace), wake, staleness)
            yield judge((where, ms, staleness), found, *simulations)


def measure(
    ms: float, server: Server | None, *, rounds: int, seconds: float
) -> tuple[dict[str, StageCost], dict[int, list[Run]]]:
    """Returns what stages take alone, at the cores' first pace, and the runs by staleness.

    All take turns in each round, so that what else the machine does, and how fast it is, hits
    all of them. There are up to `PATIENCE` times as many rounds until so many were quiet.
    """
    runs: dict[int, list[Run]] = {k: [] for k in STALENESS}
    alone: list[tuple[float, dict[str, StageCost]]] = []
    with ExitStack() as stack:
        job = stack.enter_context(Job(server, ms))
        trainers = {k: stack.enter_context(job.trainer(k)) for k in STALENESS}
        pace = Pace(job)
        for _ in range(PATIENCE * rounds):
            num_quiet = [sum(run.others < QUIET for run in each) for each in runs.values()]
            if min(*num_quiet, sum(others < QUIET for others, _ in alone)) >= rounds:
                break
            others, costs = job.alone()
            alone.append((others, at(costs, 1 / pace.since())))
            for k, trainer in trainers.items():
                done = run(trainer, job.batches, server, seconds=seconds)
                runs[k].append(replace(done, pace=pace.since()))
    return middle_cost(_quietest(alone)), runs


Found = TypeVar("Found")


def _quietest(found: Sequence[tuple[float, Found]]) -> list[Found]:
    """Returns what was measured while others held few cores; at least the quietest `ENOUGH`."""
    by_others = sorted(others for others, _ in found)
    most = max(QUIET, by_others[min(ENOUGH, len(found)) - 1])
    return [each for others, each in found if others <= most]


def _undisturbed(runs: Sequence[Run]) -> list[Run]:
    return _quietest([(run.others, run) for run in runs])


class Pace:
    """How many times as long the cores take as they did at first, for what is always the same.

    Others' virtual machines share them: a job takes up to 1.4 times as long some seconds later.
    """

    def __init__(self, job: "Job") -> None:
        self._job = job
        self._first = self._before = job.route()

    def since(self) -> float:
        """Returns it, of the time since the last call."""
        before, self._before = self._before, self._job.route()
        return (before + self._before) / 2 / self._first


def at(costs: Mapping[str, StageCost], pace: float) -> dict[str, StageCost]:
    """Returns stages on cores that take so many times as long for all."""
    return {name: cost.at(pace) for name, cost in costs.items()}


class Job(ExitStack):
    """What is trained, in a loop of its stages and by trainers.

    Args:
        server: That has the tables; None has them here.
        device_ms: Of the sleep that is the device.

    Attributes:
        batches: Are trained on over and over.
    """

    def __init__(self, server: Server | None, device_ms: float) -> None:
        super().__init__()
        self.batches = list(hp.synthetic_criteo(num_samples=4096 * 16, seed=1))
        self._server = server
        self._device_ms = device_ms
        self._loop = AloneLoop(self._model(), None, server)
        self.callback(self._loop.close)
        self._loop.run(self.batches, time.perf_counter)  # makes rows, warms caches

    def _model(self) -> SleepingDevice:
        slots = tuple(self.batches[0].bags)
        return SleepingDevice(slots, self.batches[0].size * len(slots), self._device_ms / 1e3)

    def trainer(self, staleness: int) -> hp.Trainer:
        """Returns one that has no rows yet but those of the server."""
        servers = self._server and [self._server[0]]
        trainer = hp.Trainer(self._model(), servers=servers, staleness=staleness)
        trainer.fit(Repeated(self.batches, len(self.batches)), callbacks=[])
        return trainer

    def route(self) -> float:
        """Returns the seconds on a core of routing a batch."""
        return self._loop.route(self.batches)

    def alone(self) -> tuple[float, dict[str, StageCost]]:
        """Returns the cores that others held, and what stages take alone meanwhile."""
        meters = Meters(self._server)
        costs = self._loop.measure(list(Repeated(self.batches, 24)))
        return meters.part(1).others, costs


def both(
    costs: Mapping[str, StageCost], wake: float, staleness: int
) -> tuple[Simulation, Simulation]:
    """Returns simulated runs: with the interpreter and the wakes of threads, and without."""
    shares = {name: cost.interpreter for name, cost in costs.items()}
    conditions = Conditions(interpreter=shares, wake_seconds=wake)
    return simulated(costs, staleness, conditions), simulated(costs, staleness, Conditions())


def judge(
    which: tuple[str, float, int],
    runs: Sequence[Run],
    found: Simulation,
    plain: Simulation,
) -> Result:
    """Returns the runs of one configuration beside its simulations."""
    quiet = sorted(_undisturbed(runs), key=lambda run: run.step)
    middle = quiet[(len(quiet) - 1) // 2].timeline
    num_steps = quiet[(len(quiet) - 1) // 2].num_steps
    timeline = found.readers[0].timeline
    return Result(
        *which,
        statistics.median(1e3 * part.step for run in quiet for part in run.quiet),
        (1e3 * quiet[0].step, 1e3 * quiet[-1].step),
        1e3 * found.step_seconds,
        1e3 * plain.step_seconds,
        (middle.bottleneck, found.bottleneck),
        {
            stage.name: (
                1e3 * stage.busy / num_steps,
                1e3 * timeline.stage(stage.name).busy / found.num_steps,
            )
            for stage in middle.stages
        },
        statistics.median(run.pace for run in quiet),
        statistics.fmean(run.others for run in quiet),
    )


def simulated(costs: Mapping[str, StageCost], staleness: int, conditions: Conditions) -> Simulation:
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
    stages += [prediction(name, cost) for name, cost in costs.items()]
    longest = max(stage.cost.total for stage in stages)
    cluster = Cluster((Host("here", (Device("cpu", memory=1 << 30, cores=NUM_CORES),)),))
    return simulate(
        plan,
        cluster=cluster,
        num_steps=NUM_STEPS,
        prediction=Prediction(longest, 4096.0, tuple(stages), (), (Part("longest", longest),)),
        conditions=conditions,
        is_recorded=False,
    )


def prediction(name: str, cost: StageCost) -> StagePrediction:
    """Returns a stage: packed here, served there, waited for, unpacked here; and what is aside.

    Client and server are on cores at once for a part of a request. What would make it longer
    than the clock said, one after another, is aside.
    """
    others = cost.calls + cost.server_cpu
    share = min(max(cost.wall - cost.thread, 0.0) / others, 1.0) if others else 0.0
    here = cost.thread + share * cost.calls
    parts = (
        ("pack", here / 2, "worker"),
        ("serve", share * cost.server_cpu, "server"),
        ("kernel", cost.wall - cost.on_cores, "device" if name == "dense" else "wait"),
        ("unpack", here / 2, "worker"),
    )
    aside = (
        ("calls", (1 - share) * cost.calls, "worker"),
        ("serve", (1 - share) * cost.server_cpu, "server"),
    )
    found, beside = (
        Breakdown(tuple(Part(*part) for part in each if part[1] > 0)) for each in (parts, aside)
    )
    return StagePrediction(name, "whole", found, found.total, beside)
