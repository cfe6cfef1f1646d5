"""Provisioning: how many units each stage gets once it is known which type runs it."""

from collections.abc import Sequence

import numpy as np

from hetero_pipe.errors import PlanError
from hetero_pipe.planner.layers.assignment import Assignment, Run, assemble, runs_of
from hetero_pipe.planner.layers.objective import Goal, Objective
from hetero_pipe.planner.layers.stack import LayerStack
from hetero_pipe.planner.layers.stage_times import StageTimes, stage_times
from hetero_pipe.planner.layers.targets import below, slowest_target

__all__ = ["Provisioner", "provision"]


def provision(stack: LayerStack, types: Sequence[str], objective: Objective) -> Assignment:
    """Returns the best numbers of units for a type of each layer; exact.

    Args:
        stack: What is assigned.
        types: Name of the type of each layer.
        objective: What shall be least.

    Raises:
        PlanError: The units there are are too few; names the stage, or the types that lack units.
    """
    names = [each.name for each in stack.types]
    for name in types:
        if name not in names:
            raise PlanError(f"a device type is one of {', '.join(names)}, got {name!r}")
    if len(types) != len(stack.layers):
        raise PlanError(f"each of {len(stack.layers)} layers has a type, got {len(types)} types")
    return Provisioner(stack, objective).provision([names.index(name) for name in types])


class Provisioner:
    """Provisions one assignment after another of a stack, for one objective."""

    def __init__(self, stack: LayerStack, objective: Objective) -> None:
        self.stack = stack
        self.objective = objective
        self.times = stage_times(stack)
        self._target = slowest_target(self.times, objective)
        self._limits = np.array([each.count for each in stack.types])
        self._prices = np.array([each.price_per_hour for each in stack.types])

    def provision(self, types: Sequence[int]) -> Assignment:
        """Returns what `provision` does, of types by number."""
        runs = runs_of(types)
        stages = self.times[tuple(np.array(runs).T)]
        target = self._target
        if not self._fits(stages, runs, target):
            raise PlanError(self._reason(stages, runs, target))
        if self.objective.goal is Goal.PRICE_PER_SAMPLE:
            target = self._cheapest_target(stages, runs, target)
        elif self.objective.goal is Goal.TIME_PER_SAMPLE:
            target = self._fastest_target(stages, runs, target)
        return assemble(self.stack, self.times, runs, target=target)

    def _lack(self, stages: StageTimes, runs: Sequence[Run], target: float) -> list[float]:
        """Returns of each type how many more units are needed than there are."""
        used = np.zeros(len(self._limits))
        for (_, _, number), num_units in zip(runs, stages.least_units(target), strict=True):
            used[number] += num_units
        return [float(lack) for lack in np.maximum(used - self._limits, 0)]

    def _fits(self, stages: StageTimes, runs: Sequence[Run], target: float) -> bool:
        return not any(self._lack(stages, runs, target))

    def _cheapest_target(self, stages: StageTimes, runs: Sequence[Run], target: float) -> float:
        """Returns the target at which a sample costs least.

        Between two targets at which a stage needs one more unit, slower only costs
        more; so it looks at those alone, from the slowest on. If units could be
        split, a sample would cost less the slower it is: once even that is no less
        than the best, no faster target is better.
        """
        prices = self._prices[[number for _, _, number in runs]]
        best, cheapest = float("inf"), target
        while self._fits(stages, runs, target):
            units = stages.least_units(target)
            target = self._time(stages, target)
            if (price := target * float(prices @ units)) < best:
                best, cheapest = price, target
            if not target or target * (prices @ stages.shares(target)) >= best:
                break
            target = below(target)
        return cheapest

    def _fastest_target(self, stages: StageTimes, runs: Sequence[Run], target: float) -> float:
        """Returns the least target that fits: halves what is open until no stage's units differ."""
        fits, misses = self._time(stages, target), 0.0
        while fits and not np.array_equal(
            stages.least_units(misses), stages.least_units(below(fits))
        ):
            middle = (fits + misses) / 2
            if self._fits(stages, runs, middle):
                fits = self._time(stages, middle)
            else:
                misses = middle
        return fits

    def _time(self, stages: StageTimes, target: float) -> float:
        return float(stages.times(stages.least_units(target)).max())

    def _reason(self, stages: StageTimes, runs: Sequence[Run], target: float) -> str:
        layers = self.stack.layers
        for (first, end, number), serial in zip(runs, stages.serial.max(axis=0), strict=True):
            name = self.stack.types[number].name
            where = f"stage {layers[first].name!r} to {layers[end - 1].name!r} on {name!r}"
            if np.isinf(serial):
                return f"a layer runs where it can, got {where}; assign another type"
            if serial > target:
                return (
                    f"no number of units is enough: {where} takes {serial:.4g} s a sample that no "
                    f"unit shortens, for {1 / target:.6g} samples/s; assign fewer layers to it"
                )
        lack = ", ".join(
            f"{more:.0f} more than {each.count} of {each.name!r}"
            for each, more in zip(self.stack.types, self._lack(stages, runs, target), strict=True)
            if more
        )
        return (
            f"{1 / target:.6g} samples/s need more units than there are: {lack}; "
            "add them, or require less throughput"
        )
