"""Timeline: where the time of each stage went, and so which one holds the others up."""

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["StageClock", "StageTime", "Timeline"]


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
    """

    name: str
    num_steps: int = 0
    busy: float = 0.0
    cpu: float = 0.0
    waiting_for_input: float = 0.0
    waiting_for_output: float = 0.0
    waiting_at_gate: float = 0.0

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
        )


@dataclass(frozen=True)
class Timeline:
    """Where the time of every stage went, in the order of the stages.

    Printed, it is a table of milliseconds a step::

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
        lines = [f"{'stage':8} {'steps':>8}" + "".join(f"{name:>8}" for name in _COLUMNS)]
        for stage in self.stages:
            seconds = (
                stage.busy,
                stage.cpu,
                stage.waiting_for_input,
                stage.waiting_for_output,
                stage.waiting_at_gate,
            )
            steps = max(stage.num_steps, 1)
            cells = "".join(f"{1e3 * each / steps:8.3f}" for each in seconds)
            lines.append(f"{stage.name:8} {stage.num_steps:8}{cells}")
        return "\n".join(lines)


_COLUMNS = ("busy", "cpu", "input", "output", "gate")


class StageClock:
    """Adds up where the time of a stage goes. Started and told by the stage's own thread.

    Args:
        name: Of the stage.
        clock: Tells the time, in seconds.
        cpu_clock: Tells the seconds that the calling thread was on a core.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._name = name
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._num_steps = 0
        self._busy = self._cpu = self._input = self._output = 0.0
        self._last = self._last_cpu = 0.0

    def start(self) -> None:
        """Begins the first wait."""
        self._lap()

    def has_input(self) -> None:
        """Ends a wait for input."""
        self._input += self._lap()[0]

    def has_run(self) -> None:
        """Ends the work of a step."""
        seconds, cpu = self._lap()
        self._busy += seconds
        self._cpu += cpu
        self._num_steps += 1

    def has_output(self) -> None:
        """Ends a wait for output."""
        self._output += self._lap()[0]

    def _lap(self) -> tuple[float, float]:
        """Returns the seconds since the last call, and those on a core."""
        now, cpu = self._clock(), self._cpu_clock()
        lap = now - self._last, cpu - self._last_cpu
        self._last, self._last_cpu = now, cpu
        return lap

    def time(self, *, waiting_at_gate: float = 0.0) -> StageTime:
        """Returns what is added up, of any thread; seconds at a gate are taken off the work."""
        return StageTime(
            self._name,
            self._num_steps,
            max(self._busy - waiting_at_gate, 0.0),
            self._cpu,
            self._input,
            self._output,
            waiting_at_gate,
        )
