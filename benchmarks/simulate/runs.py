"""Runs of a trainer: what a step takes, where its time goes, on whose cores."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alone import on_cores
from repeated import Repeated

import hetero_pipe as hp
from hetero_pipe.pipeline import Timeline

QUIET = 0.1  # cores that others may hold meanwhile
PART = 0.4  # seconds in which it is told whether others held cores, of which ticks are 0.01
NUM_FILLING = 8  # steps at the start that are not as the others

Server = tuple[str, int]
"""HOST:PORT and process id."""


@dataclass(frozen=True)
class Part:
    """Some steps in a row: seconds of one, on the cores of both processes, and others' cores."""

    step: float
    cpu: float
    server_cpu: float
    others: float


@dataclass(frozen=True)
class Run:
    """One `fit`.

    Attributes:
        parts: Of its steps, but for the first.
        timeline: Of all of them.
        num_steps: In `timeline`.
        pace: How many times as long the cores took for the same work as at first.
    """

    parts: tuple[Part, ...]
    timeline: Timeline
    num_steps: int
    pace: float = 1.0

    @property
    def quiet(self) -> list[Part]:
        """Its parts in which nobody else was there, or the one with the fewest."""
        found = [part for part in self.parts if part.others < QUIET]
        return found or [min(self.parts, key=lambda part: part.others)]

    @property
    def step(self) -> float:
        """Seconds of one, the median of its parts."""
        return statistics.median(part.step for part in self.quiet)

    @property
    def others(self) -> float:
        """Cores that others held in what counts, on average."""
        return statistics.fmean(part.others for part in self.quiet)

    def cpu(self, stage: str) -> float:
        """Seconds of a step that the thread of a stage was on a core."""
        return self.timeline.stage(stage).cpu / self.num_steps


def run(
    trainer: hp.Trainer, batches: Sequence[hp.Batch], server: Server | None, *, seconds: float
) -> Run:
    """Returns a run of about so many seconds."""
    warm = trainer.fit(Repeated(batches, 10), callbacks=[])
    num_steps = NUM_FILLING + int(10 * seconds / warm.seconds) + 10
    parts = _Parts(server)
    result = trainer.fit(Repeated(batches, num_steps), callbacks=[parts])
    parts.end()
    return Run(tuple(parts.found), result.timeline, num_steps)


class Meters:
    """The clock, and what this process, its server and all others hold of the cores."""

    def __init__(self, server: Server | None) -> None:
        self._server = server
        self._before = self._read()

    def part(self, num_steps: int) -> Part:
        """Returns what was held since the last time, in so many steps."""
        before, self._before = self._before, self._read()
        clock, own, served, everyone = (
            now - then for now, then in zip(self._before, before, strict=True)
        )
        others = (everyone - own - served) / clock
        return Part(clock / num_steps, own / num_steps, served / num_steps, others)

    @property
    def seconds(self) -> float:
        """Since the last time."""
        return time.perf_counter() - self._before[0]

    def _read(self) -> tuple[float, float, float, float]:
        with open("/proc/stat") as file:
            user, nice, system, _, _, *rest = (int(each) for each in file.readline().split()[1:9])
        everyone = (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
        served = on_cores(self._server[1]) if self._server else 0.0
        return time.perf_counter(), time.process_time(), served, everyone


class _Parts:
    """Splits a run into parts: a callback of a trainer."""

    def __init__(self, server: Server | None) -> None:
        self.found: list[Part] = []
        self._server = server
        self._meters: Meters | None = None
        self._num_steps = 0

    def on_step(self, report: Any) -> None:
        """Is called after each step."""
        self._num_steps += 1
        if self._meters is None:
            if self._num_steps == NUM_FILLING:
                self._meters, self._num_steps = Meters(self._server), 0
        elif self._meters.seconds >= PART:
            self.found.append(self._meters.part(self._num_steps))
            self._num_steps = 0

    def end(self) -> None:
        """Counts what is left as a part if there is none."""
        if not self.found and self._meters is not None:
            self.found.append(self._meters.part(self._num_steps))

    def on_epoch(self, epoch: int, evaluation: Any) -> None:
        """Is called after each epoch."""
