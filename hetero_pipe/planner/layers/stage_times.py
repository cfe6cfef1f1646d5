"""StageTimes: what any run of layers takes on any number of units of any type."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.errors import PlanError
from hetero_pipe.planner.layers.stack import LayerStack, StackLayer
from hetero_pipe.units import format_bytes

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
        fewest: Units that have memory enough, `[...]`, at least 1.
    """

    serial: Floats
    parallel: Floats
    fewest: Floats

    def __getitem__(self, index: object) -> "StageTimes":
        """Returns the stages at an index of `[...]`."""
        at = (slice(None), *index) if isinstance(index, tuple) else (slice(None), index)
        return StageTimes(self.serial[at], self.parallel[at], self.fewest[at[1:]])

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

        At least those that have the memory; infinite where no number is enough. Else
        `times` of one unit less is above `target`, in floats as they are.
        """
        shares = self.shares(target)
        possible = (shares <= MOST_UNITS) & (self.fewest <= MOST_UNITS)
        least = np.maximum(np.ceil(shares), self.fewest)
        units = np.where(possible, least, np.inf)
        # The division above has been rounded; what counts is the time.
        while (late := possible & (self.times(units) > target)).any():
            units = units + late
        while (spare := possible & self._has_spare(units, target)).any():
            units = units - spare
        return units

    def _has_spare(self, num_units: Floats, target: float) -> NDArray[np.bool_]:
        """Returns whether one unit less has the memory, and takes at most `target`."""
        one_less = np.maximum(num_units - 1, 1.0)
        spare: NDArray[np.bool_] = (num_units > self.fewest) & (self.times(one_less) <= target)
        return spare


def stage_times(stack: LayerStack) -> StageTimes:
    """Returns the times of all stages there can be: `[parts, first, end, type]`.

    A stage is the layers from `first` up to `end`, which is not in it. Its compute
    and its communication are the sums of its layers'. Where it does not begin or
    end with the model, bytes cross to another stage: each unit sends and receives
    those of its own samples, so the units share them all. There is no stage where what
    each unit holds itself leaves no room for what they hold together.

    Raises:
        PlanError: A layer does not fit on a unit of any type that it can run on.
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
    step, call, byte = (
        np.array([getattr(each, name) for each in stack.types])
        for name in ("step", "call", "message_byte")
    )
    for first in range(num_layers):
        sums[:, first, first + 1 :] = works[:, first:].cumsum(axis=1)
        for end in range(first + 1, num_layers + 1):
            num_cuts, num_bytes = (first > 0) + (end < num_layers), crossing[first] + crossing[end]
            sums[1, first, end] += step + num_cuts * call + num_bytes * byte
            sums[3, first, end] += num_bytes / bandwidth
    fewest = _fewest(stack, shape[1:])
    sums[0] = np.where(np.isinf(fewest), np.inf, sums[0])
    for i, layer in enumerate(layers):
        if np.isinf(sums[0, i, i + 1]).all():
            raise PlanError(_too_large(stack, layer))
    fewest = np.where(np.isinf(fewest), 1.0, fewest)
    if stack.is_overlapped:
        return StageTimes(sums[[0, 2]], sums[[1, 3]], fewest)
    return StageTimes(sums[[0]] + sums[[2]], sums[[1]] + sums[[3]], fewest)


def _fewest(stack: LayerStack, shape: tuple[int, ...]) -> Floats:
    """Returns the units that have memory for each stage `[first, end, type]`; infinite: none has.

    With o bytes on each unit and s that k of them share, `o + s / k` are no more than it has.
    """
    none = (0.0,) * len(stack.types)
    shared = np.array([layer.shared_bytes or none for layer in stack.layers])
    own = np.array([[layer.own_bytes] for layer in stack.layers])
    memory = np.array([each.memory for each in stack.types])
    fewest = np.ones(shape)
    for first in range(len(stack.layers)):
        room = memory - own[first:].cumsum(axis=0)
        together = shared[first:].cumsum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            units = np.where(together > 0, np.maximum(np.ceil(together / room), 1.0), 1.0)
        is_full = (room < 0) | ((room == 0) & (together > 0))
        fewest[first, first + 1 :] = np.where(is_full, np.inf, units)
    return fewest


def _too_large(stack: LayerStack, layer: StackLayer) -> str:
    able = [
        each for each, time in zip(stack.types, layer.compute, strict=True) if time < float("inf")
    ]
    most = max(able, key=lambda each: each.memory)
    return (
        f"layer {layer.name!r} holds {format_bytes(layer.own_bytes)} on each unit, besides what "
        f"units share, and one of {most.name!r} has {format_bytes(most.memory)}, the most of those "
        "that it can run on; lower the batch size, or add a type with more memory"
    )
