"""Simulation: what a plan would do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.pipeline import ENOUGH_STEPS, ServerTime, Summary, Timeline
from hetero_pipe.plan import Plan, Prediction
from hetero_pipe.units import format_seconds
from ps_server.spans import Spans

__all__ = ["ResourceTime", "Simulation", "WorkerRun", "joined"]

WARM = 0.2
"""The share of the steps in which the pipeline fills, at the start."""


@dataclass(frozen=True, eq=False)
class WorkerRun:
    """What one worker did.

    Attributes:
        role: One of `hetero_pipe.plan.ROLES`.
        rank: Among those of its role.
        machine: Where it is.
        num_cores: Of that machine.
        timeline: Where the time of its stages went, as that of a real run.
        ends: Seconds at which each step was done, float64 `[num_steps]`; of what was done
            again after a restart, the last time.
        source_end: Seconds at which its source had the last one; infinite is not known.
        mean_staleness: The pushes of its own that a pull has missed.
        max_staleness: The most of them.
    """

    role: str
    rank: int
    machine: str
    num_cores: int
    timeline: Timeline
    ends: NDArray[np.float64]
    source_end: float = math.inf
    mean_staleness: float = 0.0
    max_staleness: int = 0

    @property
    def name(self) -> str:
        """As its trace has it."""
        return f"{self.role} worker {self.rank}" if self.role != "whole" else f"worker {self.rank}"

    @property
    def num_steps(self) -> int:
        """That it has done."""
        return len(self.ends)

    @property
    def step_seconds(self) -> float:
        """Of a step while the pipeline is full: neither at the start nor at the end, if it ever is.

        Who has read all has cores for what is left, which is then done faster.
        """
        if len(self.ends) < 2:
            return float(self.ends[0]) if len(self.ends) else 0.0
        full = self.ends[: int(np.searchsorted(self.ends, self.source_end, "right"))]
        ends = full if len(full) >= ENOUGH_STEPS else self.ends
        first = min(int(WARM * len(ends)), len(ends) - 2)
        return float((ends[-1] - ends[first]) / (len(ends) - 1 - first))


@dataclass(frozen=True)
class ResourceTime:
    """How much of the time something was held.

    Attributes:
        name: `cores of HOST`, `network from HOST`, `network to HOST`.
        busy: The share of it that was, of the whole run.
    """

    name: str
    busy: float


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a plan would do. Printed, it says what `print(result.summary)` says of a real run.

    Attributes:
        plan: That was simulated.
        prediction: What each stage was said to take.
        num_steps: Of each worker that reads, as asked for.
        workers: Those that read, in the order of their ranks, then dense ones.
        seconds: Until the last step was done.
        spans: Of each worker, then of the servers, one for all; none if not recorded.
        resources: Of all machines, the busiest first.
        num_repeated: Steps done once more after failures.
        lost_seconds: In them, until training went on, and in writing checkpoints.
    """

    plan: Plan
    prediction: Prediction
    num_steps: int
    workers: tuple[WorkerRun, ...]
    seconds: float
    spans: tuple[Spans, ...]
    resources: tuple[ResourceTime, ...]
    num_repeated: int = 0
    lost_seconds: float = 0.0

    @property
    def readers(self) -> tuple[WorkerRun, ...]:
        """Workers that read."""
        return tuple(worker for worker in self.workers if worker.role != "dense")

    @property
    def is_whole(self) -> bool:
        """Whether every worker has done all of its steps."""
        return all(worker.num_steps == self.num_steps for worker in self.readers)

    @property
    def num_samples(self) -> float:
        """Trained, by all workers."""
        steps = sum(worker.num_steps for worker in self.readers)
        return steps * self.prediction.samples / len(self.readers)

    @property
    def samples_per_second(self) -> float:
        """Of all workers, over the whole run; 0 if nothing was trained."""
        return self.num_samples / self.seconds if self.seconds else 0.0

    @property
    def step_seconds(self) -> float:
        """Of a step of one worker that reads, once the pipeline is full: what is predicted."""
        found = [worker.step_seconds for worker in self.readers]
        return sum(found) / len(found)

    @property
    def bottleneck(self) -> str | None:
        """The busiest stage of the first worker that reads, as a real run's timeline has it."""
        return self.readers[0].timeline.bottleneck

    def summary(self, worker: int = 0) -> Summary:
        """Returns what bounds the run of one of `workers`, by its place there."""
        run, mode = self.workers[worker], self.plan.workers.mode
        servers = [ServerTime.of(each) for each in self.spans if each.role.startswith("ps-server")]
        num_dense = sum(each.role == "dense" for each in self.workers) or len(self.readers)
        on_servers = any(
            part.resource == "server" for s in self.prediction.stages for part in s.cost.parts
        )
        return Summary(
            timeline=run.timeline,
            num_samples=round(self.num_samples * run.num_steps / max(self._num_worked, 1)),
            seconds=self.seconds,
            staleness=None if mode == "async" else self.plan.staleness,
            mode=mode,
            num_workers=num_dense,
            num_servers=max(len(self.plan.servers or ()), int(on_servers)),
            num_cores=run.num_cores,
            servers=tuple(servers),
        )

    @property
    def _num_worked(self) -> int:
        return sum(worker.num_steps for worker in self.readers)

    def __str__(self) -> str:
        held = ", ".join(f"{each.name} {each.busy:.0%}" for each in self.resources[:3])
        lines = [
            f"simulated: {len(self.workers)} workers, {self.num_steps} steps each, "
            f"{self.samples_per_second:,.0f} samples/s in all; a step takes "
            f"{format_seconds(self.step_seconds)}, predicted "
            f"{format_seconds(self.prediction.step_seconds)}",
            f"{self.workers[0].name}, {self.summary()}",
            f"held most: {held}",
        ]
        if self.num_repeated or self.lost_seconds:
            lines.append(
                f"lost: {format_seconds(self.lost_seconds)}; {self.num_repeated} steps were done "
                "again"
            )
        if not self.is_whole:
            least = min(worker.num_steps for worker in self.readers)
            lines.append(f"not all steps were done: the fewest of a worker are {least}")
        return "\n".join(lines)


def joined(pieces: Sequence[Spans]) -> Spans:
    """Returns the spans of one process from several, one after the other; texts may differ."""
    if len(pieces) == 1:
        return pieces[0]
    texts = tuple(dict.fromkeys(text for each in pieces for text in each.texts))
    tracks, names = [], []
    for each in pieces:
        numbers = np.array([texts.index(text) for text in each.texts], np.int16)
        tracks.append(numbers[each.tracks])
        names.append(numbers[each.names])
    return replace(
        pieces[0],
        texts=texts,
        starts=np.concatenate([each.starts for each in pieces]),
        ends=np.concatenate([each.ends for each in pieces]),
        steps=np.concatenate([each.steps for each in pieces]),
        tracks=np.concatenate(tracks),
        names=np.concatenate(names),
        num_dropped=sum(each.num_dropped for each in pieces),
    )
