"""Measured: what training with a plan took."""

from dataclasses import dataclass

__all__ = ["Measured", "MeasuredStage"]


@dataclass(frozen=True)
class MeasuredStage:
    """What a stage of one worker took, a step.

    Attributes:
        name: Of the stage.
        busy: Seconds at its work, also while it waited for a server, a device or a core.
        cpu: Of these, seconds on a core in the stage's own thread.
    """

    name: str
    busy: float
    cpu: float


@dataclass(frozen=True)
class Measured:
    """What training with a plan took, as one worker saw it.

    Attributes:
        step_seconds: A step of this worker.
        samples: Of this worker's steps, in the mean.
        stages: Of this worker, in order.
        num_steps: That were measured.
        num_cores: That this worker's process may run on.
        peak_bytes: Of this process's memory since it began; None is not known.
    """

    step_seconds: float
    samples: float
    stages: tuple[MeasuredStage, ...]
    num_steps: int
    num_cores: int
    peak_bytes: int | None = None

    @property
    def load(self) -> float:
        """The share of its cores that the threads of its stages took."""
        return sum(stage.cpu for stage in self.stages) / self.num_cores / self.step_seconds
