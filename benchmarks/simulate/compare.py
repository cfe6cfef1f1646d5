"""Simulated beside measured: the configurations of benchmarks/overlap on this machine."""

import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parents[1] / "overlap"))

from alone import STAGES, AloneLoop, StageCost, middle_cost, wake_seconds
from beside import ALONE, REFERENCES, Beside, found_beside, middle
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
        beside: What stages take beside each other, as `Beside`.
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
    beside: Mapping[str, Any]
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
    which: Sequence[tuple[str, float]], *, rounds: int, seconds: float = 1.2
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
            costs, beside, runs = measure(ms, server, rounds=rounds, seconds=seconds)
        for staleness, found in runs.items():
            simulations = both(costs, beside, wake, staleness)
            yield judge((where, ms, staleness), found, beside, *simulations)


def measure(
    ms: float, server: Server | None, *, rounds: int, seconds: float
) -> tuple[dict[str, StageCost], Beside, dict[int, list[Run]]]:
    """Returns what stages take alone, what they take beside each other, and runs by staleness.

    All take turns in each round, so that what else the machine does, and how fast it is, hits
    all of them. There are up to `PATIENCE` times as many rounds until so many were quiet.
    """
    runs: dict[int, list[Run]] = {k: [] for k in STALENESS}
    alone: list[tuple[float, dict[str, StageCost]]] = []
    found: list[tuple[float, Beside]] = []
    with ExitStack() as stack:
        job = stack.enter_context(
            Job(server, ms, list(hp.synthetic_criteo(num_samples=4096 * 16, seed=1)))
        )
        judged = {k: stack.enter_context(job.trainer(k)) for k in STALENESS}
        references = []
        for each in REFERENCES:
            reader = hp.synthetic_criteo(
                num_samples=each.batch_size * 12,
                batch_size=each.batch_size,
                seed=7,
                scale=each.scale,
            )
            other = stack.enter_context(Job(server, each.device_ms, list(reader)))
            references.append((other, stack.enter_context(other.trainer(each.staleness))))
        for _ in range(PATIENCE * rounds):
            num_quiet = [sum(run.others < QUIET for run in each) for each in runs.values()]
            num_quiet += [sum(others < QUIET for others, _ in each) for each in (alone, found)]
            if min(num_quiet) >= rounds:
                break
            alone.append(job.alone())
            for other, trainer in references:
                others, costs = other.alone()
                reference = run(trainer, other.batches, server, seconds=seconds)
                found.append((max(others, reference.others), found_beside(costs, reference)))
            for k, trainer in judged.items():
                runs[k].append(run(trainer, job.batches, server, seconds=seconds))
    return middle_cost(_quietest(alone)), middle(_quietest(found)), runs


Found = TypeVar("Found")


def _quietest(found: Sequence[tuple[float, Found]]) -> list[Found]:
    """Returns what was measured while others held few cores, or while they held the fewest."""
    least = max(QUIET, min(others for others, _ in found))
    return [each for others, each in found if others <= least]


class Job(ExitStack):
    """What is trained, in a loop of its stages and by trainers.

    Args:
        server: That has the tables; None has them here.
        device_ms: Of the sleep that is the device.
        batches: Are trained on over and over.
    """

    def __init__(self, server: Server | None, device_ms: float, batches: list[hp.Batch]) -> None:
        super().__init__()
        self.batches = batches
        self._server = server
        self._device_ms = device_ms
        self._loop = AloneLoop(self._model(), None, server)
        self.callback(self._loop.close)
        self._loop.run(batches, time.perf_counter)  # makes rows, warms caches

    def _model(self) -> SleepingDevice:
        slots = tuple(self.batches[0].bags)
        return SleepingDevice(slots, self.batches[0].size * len(slots), self._device_ms / 1e3)

    def trainer(self, staleness: int) -> hp.Trainer:
        """Returns one that has no rows yet but those of the server."""
        servers = self._server and [self._server[0]]
        trainer = hp.Trainer(self._model(), servers=servers, staleness=staleness)
        trainer.fit(Repeated(self.batches, len(self.batches)), callbacks=[])
        return trainer

    def alone(self) -> tuple[float, dict[str, StageCost]]:
        """Returns the cores that others held, and what stages take alone meanwhile."""
        meters = Meters(self._server)
        costs = self._loop.measure(list(Repeated(self.batches, 24)))
        return meters.part(1).others, costs


def both(
    costs: Mapping[str, StageCost], beside: Beside, wake: float, staleness: int
) -> tuple[Simulation, Simulation]:
    """Returns simulated runs: of threads beside each other, and of stages as they are alone."""
    shares = {
        name: cost.interpreter * InTurn.of(name, cost, beside).share_of_thread
        for name, cost in costs.items()
    }
    conditions = Conditions(interpreter=shares, wake_seconds=wake)
    return (
        simulated(costs, beside, staleness, conditions),
        simulated(costs, ALONE, staleness, Conditions()),
    )


def judge(
    which: tuple[str, float, int],
    runs: Sequence[Run],
    beside: Beside,
    found: Simulation,
    plain: Simulation,
) -> Result:
    """Returns the runs of one configuration beside its simulations."""
    fewest = max(QUIET, min(run.others for run in runs))
    quiet = sorted((run for run in runs if run.others <= fewest), key=lambda run: run.step)
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
        asdict(beside),
        statistics.fmean(run.others for run in quiet),
    )


def simulated(
    costs: Mapping[str, StageCost], beside: Beside, staleness: int, conditions: Conditions
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
    stages += [prediction(name, cost, beside) for name, cost in costs.items()]
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


def prediction(name: str, cost: StageCost, beside: Beside) -> StagePrediction:
    """Returns a stage: packed here, served there, unpacked here, waited for; and what is aside."""
    held, rest = InTurn.of(name, cost, beside), max(cost.wall - cost.on_cores, 0.0)
    parts = (
        ("pack", (held.thread + held.calls) / 2, "worker"),
        ("serve", held.server, "server"),
        ("unpack", (held.thread + held.calls) / 2, "worker"),
        ("kernel", rest, "device" if name == "dense" else "wait"),
    )
    aside = (
        ("calls", cost.calls * beside.call - held.calls, "worker"),
        ("serve", cost.server_cpu * beside.server - held.server, "server"),
        ("between", beside.between / len(STAGES), "worker"),
    )
    found, others = (
        Breakdown(tuple(Part(*part) for part in each if part[1] > 0)) for each in (parts, aside)
    )
    return StagePrediction(name, "whole", found, found.total, others)


@dataclass(frozen=True)
class InTurn:
    """Seconds on cores that follow one another in a stage's own time, beside other stages.

    Attributes:
        thread: Of its thread.
        calls: Of gRPC's, here.
        server: Of the server's.
    """

    thread: float
    calls: float
    server: float

    @staticmethod
    def of(name: str, cost: StageCost, beside: Beside) -> "InTurn":
        """Returns them.

        Client and server are on cores at once for a part of a request. All of it on cores is so
        many times as much beside others, and so is the time that is not spent waiting: which
        of its threads have the work differs, and says nothing of its time.
        """
        thread, calls = cost.thread * beside.stages[name], cost.calls * beside.call
        server = cost.server_cpu * beside.server
        times = (thread + calls + server) / cost.on_cores
        seconds = min(cost.wall, cost.on_cores) * times
        share = (seconds - thread) / (calls + server) if calls + server else 0.0
        share = min(max(share, 0.0), 1.0)
        return InTurn(thread, share * calls, share * server)

    @property
    def share_of_thread(self) -> float:
        """Of what is on cores here."""
        return self.thread / (self.thread + self.calls)
