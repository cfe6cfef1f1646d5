"""What an assignment shall be good for, and what a scheduler answers."""

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from hetero_pipe.errors import ConfigError
from hetero_pipe.planner.layers.assignment import Assignment
from hetero_pipe.planner.layers.stack import LayerStack

__all__ = ["Goal", "Objective", "Scheduler", "Solution"]

GAP = 1e-9  # relative: losses this near are equal, for they are sums of rounded terms


class Goal(Enum):
    """What shall be least."""

    PRICE_PER_HOUR = "money an hour, at a required throughput"
    PRICE_PER_SAMPLE = "money a sample, so that of an epoch, at a required throughput or more"
    TIME_PER_SAMPLE = "seconds a sample, so most throughput, with the units there are"


@dataclass(frozen=True)
class Objective:
    """A goal, and what must hold.

    Attributes:
        goal: What shall be least.
        throughput: Samples/s that are required; 0 if none are.

    Raises:
        ConfigError: The throughput is negative, infinite, or missing where the goal needs one.
    """

    goal: Goal
    throughput: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.throughput < math.inf:
            raise ConfigError(
                f"an objective needs throughput of at least 0, got throughput={self.throughput!r}"
            )
        if self.goal is Goal.PRICE_PER_HOUR and not self.throughput:
            raise ConfigError(
                "the least price an hour is that of no unit, unless a throughput is required; got "
                "throughput=0"
            )

    def loss(self, assignment: Assignment) -> float:
        """Returns what shall be least of an assignment."""
        if self.goal is Goal.PRICE_PER_HOUR:
            return assignment.price_per_hour
        if self.goal is Goal.PRICE_PER_SAMPLE:
            return assignment.price_per_sample
        return assignment.bottleneck.time


@dataclass(frozen=True)
class Solution:
    """What a scheduler found.

    Attributes:
        assignment: The best that it met.
        loss: What the objective wants least, of it.
        bound: No assignment has less loss than this; None if the scheduler cannot tell.
    """

    assignment: Assignment
    loss: float
    bound: float | None = None

    @property
    def gap(self) -> float | None:
        """How much less loss there could be at most, as a share of it; None is not known."""
        if self.bound is None:
            return None
        return max(0.0, 1 - self.bound / self.loss) if self.loss else 0.0

    @property
    def is_optimal(self) -> bool:
        """Whether it is proven, up to rounding, that nothing is better."""
        return self.gap is not None and self.gap <= GAP


class Scheduler(Protocol):
    """Assigns the layers of a stack to device types, and provisions units for each stage."""

    def __call__(self, stack: LayerStack, objective: Objective) -> Solution:
        """Returns the best assignment that it meets.

        Raises:
            PlanError: It meets none that does what the objective requires within the units
                there are.
        """
        ...
