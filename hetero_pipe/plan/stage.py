"""StagePlan: one stage of the pipeline."""

from dataclasses import dataclass

from hetero_pipe.errors import PlanError
from hetero_pipe.plan.check import is_count

__all__ = ["STAGES", "StagePlan"]

STAGES = ("read", "route", "pull", "dense", "push")
"""The stages of a training step, in order."""


@dataclass(frozen=True)
class StagePlan:
    """One stage of the pipeline.

    Attributes:
        name: One of `STAGES`.
        device: Where it computes, as Paddle names it: `cpu`, `gpu:0`.
        capacity: Steps that may wait in front of the next stage, at least 1.
        layers: Of the graph, those that run in it; none if nobody traced the model.
    """

    name: str
    device: str
    capacity: int
    layers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not is_count(self.capacity, least=1):
            raise PlanError(f"a stage needs capacity >= 1, got {self}")
