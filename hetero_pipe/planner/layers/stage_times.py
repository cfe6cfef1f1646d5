"""StageTimes: what any run of layers takes on any number of units of any type."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.planner.layers.stack import LayerStack

__all__ = ["MOST_UNITS", "Floats", "StageTimes", "stage_times"]

Floats: TypeAlias = NDArray[np.float64]

MOST_UNITS = 2.0**31
"""Nobody has as many; beyond it rounding could hide what one more unit brings."""


@dataclass(frozen=True)
class StageTimes:
    """Stages that each take `max over parts of serial + parallel / k` seconds a sample on k units.

    A part is what cannot overlap with itself: compute and communication are two
    parts where they overlap, one where they do not.

    Attributes:
        serial: Seconds that no unit shortens, `[parts, ...]`; infinite where there is no such
            stage.
        parallel: Seconds that units share, `[parts, ...]`.
    """

    serial: Floats
    parallel: Floats

    def __getitem__(self, index: object) -> "StageTimes":
        """Returns the stages at an index of `[...]`."""
        at = (slice(None), *index) if isinstance(index, tuple) else (slice(None), index)
        return StageTimes(self.serial[at], self.parallel[at])

    def times(self, num_units: Floats) -> Floats:
        """Returns seconds a sample `[...]` on so many units `[...]`."""
        times: Floats = (self.serial + self.parallel / num_units).max(axis=0)
        return times

    def shares(self, target: float) -> Floats:
        """Returns units `[...]` with which each stage takes `target` seconds, as if units split.

        `parallel / (target - serial)`, the greatest of the parts; infinite where no
        number of units is enough. Times `target`, it never grows with `target`.
        """
        room = target - self.serial
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(room > 0, self.parallel / room, np.inf)
        # Nothing to share takes no unit; it just must not be too long already.
        shares = np.where((self.parallel == 0) & (room >= 0), 0.0, shares)
        most: Floats = shares.max(axis=0)
        return most

    def least_units(self, target: float) -> Floats:
        """Returns the least whole units `[...]` with which each stage takes at most `target`.

        One at least; infinite where no number is enough. `times` of one unit less
        is above `target`, in floats as they are.
        """
        shares = self.shares(target)
        possible = shares <= MOST_UNITS
        units = np.where(possible, np.maximum(np.ceil(shares), 1.0), np.inf)
        # The division above has been rounded; what counts is the time.
        while (late := possible & (self.times(units) > target)).any():
            units = units + late
        while (spare := possible & (units > 1) & self._is_enough(units - 1, target)).any():
            units = units - spare
        return units

    def _is_enough(self, num_units: Floats, target: float) -> NDArray[np.bool_]:
        enough: NDArray[np.bool_] = self.times(np.maximum(num_units, 1.0)) <= target
        return enough


def stage_times(stack: LayerStack) -> StageTimes:
    """Returns the times of all stages there can be: `[parts, first, end, type]`.

    A stage is the layers from `first` up to `end`, which is not in it. Its compute
    and its communication are the sums of its layers'. Where it does not begin or
    end with the model, bytes cross to another stage: each unit sends and receives
    those of its own samples, so the units share them all.
    """
    layers, num_layers = stack.layers, len(stack.layers)
    compute = np.array([layer.compute for layer in layers])
    comm = np.array([layer.comm for layer in layers])
    alpha = np.array([[layer.compute_fraction] for layer in layers])
    beta = np.array([[layer.comm_fraction] for layer in layers])
    bandwidth = np.array([each.bandwidth for each in stack.types])
    crossing = np.array([0.0, *(layer.cut_bytes for layer in layers)])
    crossing[-1] = 0.0  # behind the last layer is nobody
    # Where a layer cannot run, no unit helps, whatever fraction it has.
    serial = np.where(np.isinf(compute), np.inf, np.nan_to_num(compute, posinf=0) * (1 - alpha))
    parallel = np.where(np.isinf(compute), 0.0, np.nan_to_num(compute, posinf=0) * alpha)
    works = np.stack([serial, parallel, comm * (1 - beta), comm * beta])  # [4, layer, type]
    shape = (4, num_layers + 1, num_layers + 1, len(stack.types))
    sums = np.concatenate([np.full((1, *shape[1:]), np.inf), np.zeros((3, *shape[1:]))])
    for first in range(num_layers):
        sums[:, first, first + 1 :] = works[:, first:].cumsum(axis=1)
        for end in range(first + 1, num_layers + 1):
            sums[3, first, end] += (crossing[first] + crossing[end]) / bandwidth
    if stack.is_overlapped:
        return StageTimes(sums[[0, 2]], sums[[1, 3]])
    return StageTimes(sums[[0]] + sums[[2]], sums[[1]] + sums[[3]])
