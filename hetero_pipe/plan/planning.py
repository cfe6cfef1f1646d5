"""Planning: how a planner is handed to a trainer, and told what came of its plan."""

from dataclasses import dataclass
from typing import Protocol

from hetero_pipe.data import Batch
from hetero_pipe.graph import Graph
from hetero_pipe.plan.plan import Plan

__all__ = ["Measured", "MeasuredStage", "Planning"]


@dataclass(frozen=True)
class MeasuredStage:
    """What a stage of this worker took, a step.

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
    """What training with a plan took.

    Attributes:
        step_seconds: A step of this worker.
        stages: Of this worker, in order.
        num_steps: That were measured.
        peak_bytes: Of this process's memory; None is not known.
    """

    step_seconds: float
    stages: tuple[MeasuredStage, ...]
    num_steps: int
    peak_bytes: int | None = None


class Planning(Protocol):
    """Chooses the plan of a model when a trainer has it."""

    @property
    def sample(self) -> Batch:
        """A batch like those that the model will be trained on."""

    def choose(self, graph: Graph) -> Plan:
        """Returns the plan for a model.

        Raises:
            PlanError: No plan fits.
        """

    def learn(self, plan: Plan, measured: Measured) -> None:
        """Is told what training with its plan took."""
