"""Assignment: which device type runs each layer of a stack, and on how many units."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from hetero_pipe.planner.layers.stack import LayerStack
from hetero_pipe.planner.layers.stage_times import StageTimes

__all__ = ["AssignedStage", "Assignment", "Run", "assemble", "runs_of"]

Run = tuple[int, int, int]
"""A stage without its units: first layer, the layer after its last, number of its type."""


@dataclass(frozen=True)
class AssignedStage:
    """Layers that follow each other on one type.

    Attributes:
        layers: Names, in order.
        type: Name of the device type.
        num_units: Of that type, for this stage alone.
        time: Seconds a sample.
    """

    layers: tuple[str, ...]
    type: str
    num_units: int
    time: float


@dataclass(frozen=True)
class Assignment:
    """What of a stack runs where, on how many units; and so how fast, and for how much.

    Attributes:
        stages: In the order in which a sample passes them; two that follow each
            other are of different types.
        price_per_hour: Of all units together.
    """

    stages: tuple[AssignedStage, ...]
    price_per_hour: float

    @property
    def bottleneck(self) -> AssignedStage:
        """The stage that takes longest."""
        return max(self.stages, key=lambda stage: stage.time)

    @property
    def throughput(self) -> float:
        """Samples/s: those of the bottleneck; infinite if nothing takes time."""
        return 1 / self.bottleneck.time if self.bottleneck.time else float("inf")

    @property
    def price_per_sample(self) -> float:
        """What a sample costs; times the samples of an epoch, what that costs."""
        return self.price_per_hour * self.bottleneck.time / 3600

    @property
    def types(self) -> tuple[str, ...]:
        """The type of each layer."""
        return tuple(stage.type for stage in self.stages for _ in stage.layers)

    def num_units(self, type_name: str) -> int:
        """Returns the units of a type over all stages."""
        return sum(stage.num_units for stage in self.stages if stage.type == type_name)


def runs_of(types: Sequence[int]) -> list[Run]:
    """Returns the stages of a type for each layer: its maximal runs of equal ones.

    >>> runs_of([0, 0, 1])
    [(0, 2, 0), (2, 3, 1)]
    """
    runs, first = [], 0
    for number, run in groupby(types):
        end = first + len(list(run))
        runs.append((first, end, number))
        first = end
    return runs


def assemble(
    stack: LayerStack, times: StageTimes, runs: Sequence[Run], *, target: float
) -> Assignment:
    """Returns the assignment of the least units with which no stage takes above `target` seconds.

    Args:
        stack: What is assigned.
        times: Its `stage_times`.
        runs: The stages, each of which some number of units makes fast enough.
        target: Seconds a sample.
    """
    chosen = times[tuple(np.array(runs).T)]
    units = chosen.least_units(target)
    stages = tuple(
        AssignedStage(
            layers=tuple(layer.name for layer in stack.layers[first:end]),
            type=stack.types[number].name,
            num_units=int(num_units),
            time=float(time),
        )
        for (first, end, number), num_units, time in zip(
            runs, units, chosen.times(units), strict=True
        )
    )
    prices = (stack.types[number].price_per_hour for _, _, number in runs)
    price = sum(price * stage.num_units for price, stage in zip(prices, stages, strict=True))
    return Assignment(stages, price)
