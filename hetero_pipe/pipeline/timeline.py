"""Timeline: where the time of each stage went, and so which one holds the others up."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ps_server.spans import SpanRing

__all__ = ["CREDIT", "GATE", "INPUT", "OUTPUT", "StageClock", "StageTime", "Timeline"]

INPUT = "waiting for input"
OUTPUT = "waiting for output"
GATE = "waiting at the gate"
CREDIT = "waiting for credit"
"""How a span of waiting is named; one of work is named as its stage."""


@dataclass(frozen=True)
class StageTime:
    """Where the time of one stage's thread went, in seconds.

    Attributes:
        name: Of the stage.
        num_steps: It has run.
        busy: At its own work, also while it waits for a server, a device or a core.
        cpu: Of `busy`, on a core, in this thread: a server, a device and the
            threads of a library do the rest.
        waiting_for_input: Until the stage before it handed on.
        waiting_for_output: Until the stage after it had room.
        waiting_at_gate: Until enough pushes were acknowledged; of pull alone.
        waiting_for_credit: Until a worker that it sends to had room.
    """

    name: str
    num_steps: int = 0
    busy: float = 0.0
    cpu: float = 0.0
    waiting_for_input: float = 0.0
    waiting_for_output: float = 0.0
    waiting_at_gate: float = 0.0
    waiting_for_credit: float = 0.0

    @property
    def waiting(self) -> float:
        """Seconds without anything to do: for input, or at the gate."""
        return self.waiting_for_input + self.waiting_at_gate

    @property
    def blocked(self) -> float:
        """Seconds without anywhere to put what is done: for output, or for credit."""
        return self.waiting_for_output + self.waiting_for_credit

    def plus(self, other: "StageTime") -> "StageTime":
        """Returns the time of this and of another run of the stage.

        >>> StageTime("pull", 2, busy=1.0).plus(StageTime("pull", 3, busy=0.5))
        ... # doctest: +ELLIPSIS
        StageTime(name='pull', num_steps=5, busy=1.5, ...)
        """
        assert self.name == other.name, f"{self.name} and {other.name} are two stages"
        return StageTime(
            self.name,
            self.num_steps + other.num_steps,
            self.busy + other.busy,
            self.cpu + other.cpu,
            self.waiting_for_input + other.waiting_for_input,
            self.waiting_for_output + other.waiting_for_output,
            self.waiting_at_gate + other.waiting_at_gate,
            self.waiting_for_credit + other.waiting_for_credit,
        )


@dataclass(frozen=True)
class Timeline:
    """Where the time of every stage went, in the order of the stages.

    Printed, it is a table of milliseconds a step, with a column for credit where a
    stage waits for it::

        stage       steps    busy     cpu   input  output    gate
        read          100   0.031   0.030   0.004   5.611   0.000
        ...

    Attributes:
        stages: One each; none if nothing ran.
    """

    stages: tuple[StageTime, ...] = ()

    @property
    def bottleneck(self) -> str | None:
        """The stage that was busy longest, None if nothing ran.

        No run of these stages is faster than it. Where staleness is 0, pull,
        dense and push take turns: the time is their sum, this one its largest part.
        """
        if not self.stages:
            return None
        return max(self.stages, key=lambda stage: stage.busy).name

    def stage(self, name: str) -> StageTime:
        """Returns the time of a stage by its name.

        Raises:
            KeyError: There is none of that name.
        """
        return {stage.name: stage for stage in self.stages}[name]

    def plus(self, other: "Timeline") -> "Timeline":
        """Returns the time of this and of another run of the same stages."""
        if not self.stages or not other.stages:
            return self if self.stages else other
        pairs = zip(self.stages, other.stages, strict=True)
        return Timeline(tuple(mine.plus(theirs) for mine, theirs in pairs))

    def __str__(self) -> str:
        columns = dict(_COLUMNS)
        if not any(stage.waiting_for_credit for stage in self.stages):
            del columns["credit"]
        lines = [f"{'stage':8} {'steps':>8}" + "".join(f"{name:>8}" for name in columns)]
        for stage in self.stages:
            steps = max(stage.num_steps, 1)
            seconds = (getattr(stage, attribute) for attribute in columns.values())
            cells = "".join(f"{1e3 * each / steps:8.3f}" for each in seconds)
            lines.append(f"{stage.name:8} {stage.num_steps:8}{cells}")
        return "\n".join(lines)


_COLUMNS = {
    "busy": "busy",
    "cpu": "cpu",
    "input": "waiting_for_input",
    "output": "waiting_for_output",
    "gate": "waiting_at_gate",
    "credit": "waiting_for_credit",
}


class StageClock:
    """Adds up where the time of a stage goes. Started and told by the stage's own thread.

    Args:
        name: Of the stage.
        ring: Records each piece of it; None records none.
        clock: Tells the time, in seconds.
        cpu_clock: Tells the seconds that the calling thread was on a core.
    """

    def __init__(
        self,
        name: str,
        *,
        ring: SpanRing | None = None,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._name = name
        self._ring = ring
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._num_steps = 0
        self._busy = self._cpu = self._input = self._output = 0.0
        self._last = self._last_cpu = 0.0

    def start(self) -> None:
        """Begins the first wait."""
        self._last, self._last_cpu = self._clock(), self._cpu_clock()

    def has_input(self, step: int) -> None:
        """Ends the wait for the input of a step."""
        self._input += self._lap(INPUT, step)[0]

    def has_run(self, step: int) -> None:
        """Ends the work of a step."""
        seconds, cpu = self._lap(self._name, step)
        self._busy += seconds
        self._cpu += cpu
        self._num_steps += 1

    def has_output(self, step: int) -> None:
        """Ends the wait for room for the output of a step."""
        self._output += self._lap(OUTPUT, step)[0]

    def _lap(self, name: str, step: int) -> tuple[float, float]:
        """Returns the seconds since the last call, and those on a core."""
        now, cpu = self._clock(), self._cpu_clock()
        lap = now - self._last, cpu - self._last_cpu
        if self._ring is not None:
            self._ring.record(self._name, name, step, self._last, now)
        self._last, self._last_cpu = now, cpu
        return lap

    def time(self, *, waiting_at_gate: float = 0.0, waiting_for_credit: float = 0.0) -> StageTime:
        """Returns what is added up, of any thread; seconds of waits in `run` are no work."""
        return StageTime(
            self._name,
            self._num_steps,
            max(self._busy - waiting_at_gate - waiting_for_credit, 0.0),
            self._cpu,
            self._input,
            self._output,
            waiting_at_gate,
            waiting_for_credit,
        )
