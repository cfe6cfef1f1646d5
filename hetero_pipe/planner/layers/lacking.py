"""Why no assignment is enough: which layer or stage is too slow, or which units are lacking."""

import numpy as np

from hetero_pipe.planner.layers.assignment import Assignment
from hetero_pipe.planner.layers.stack import LayerStack
from hetero_pipe.planner.layers.stage_times import StageTimes

__all__ = ["lacking_units", "slow_layer", "slow_stage"]


def slow_layer(stack: LayerStack, target: float) -> str | None:
    """Returns which layer no number of units of any type makes fast enough; None if none is so.

    Counted is the layer alone, without what crosses from and to others: a stage
    takes no less than each of its layers.
    """
    join = max if stack.is_overlapped else sum
    for layer in stack.layers:
        least = [
            # What cannot run at all takes forever, even of a share of 0.
            join((seconds * (1 - layer.compute_fraction), comm * (1 - layer.comm_fraction)))
            if seconds < float("inf")
            else seconds
            for seconds, comm in zip(layer.compute, layer.comm, strict=True)
        ]
        best = least.index(min(least))
        if least[best] > target:
            return (
                f"layer {layer.name!r} takes {least[best]:.4g} s a sample whatever the number of "
                f"units, even on {stack.types[best].name!r}, and may take {target:.4g} s; require "
                f"at most {1 / least[best]:.6g} samples/s, or raise what its units share"
            )
    return None


def slow_stage(stack: LayerStack, times: StageTimes, target: float) -> str:
    """Returns which stage is too slow, whatever the units, where layers cannot be cut to be fast.

    Of all fronts of the stack that can be cut into stages fast enough, that which
    ends last: nothing that begins behind it is fast enough.
    """
    possible = times.least_units(target) < np.inf
    reached = [True] + [False] * len(stack.layers)
    for first in range(len(stack.layers)):
        for end in np.flatnonzero(possible[first].any(axis=1) & reached[first]):
            reached[int(end)] = True
    first = max(i for i, is_reached in enumerate(reached) if is_reached)
    first = min(first, len(stack.layers) - 1)
    starts = times.serial[:, first].max(axis=0)
    end, best = np.unravel_index(int(starts.argmin()), starts.shape)
    return (
        f"no cut into stages is fast enough: the one that begins with layer "
        f"{stack.layers[first].name!r} takes at least {starts[end, best]:.4g} s a sample whatever "
        f"the number of units, on {stack.types[int(best)].name!r}, and may take {target:.4g} s; "
        "require less throughput"
    )


def lacking_units(
    stack: LayerStack, cheapest: Assignment, target: float, *, most_throughput: float | None
) -> str:
    """Returns which units are lacking, and how many.

    Args:
        stack: What was to be assigned.
        cheapest: The cheapest assignment if there were any number of units.
        target: Seconds a sample that were asked for.
        most_throughput: With the units there are; None if not even the slowest fits.
    """
    lacks = [
        f"{cheapest.num_units(each.name)} of {each.name!r}, of which there are {each.count} "
        f"({cheapest.num_units(each.name) - each.count} more)"
        for each in stack.types
        if cheapest.num_units(each.name) > each.count
    ]
    takes = f"more units than there are: the cheapest way takes {' and '.join(lacks)}"
    if most_throughput is None:  # it is not their speed that is lacking
        return f"what all layers hold needs the memory of {takes}; add them"
    return (
        f"{1 / target:.6g} samples/s need {takes}; add them or require at most "
        f"{most_throughput:.6g} samples/s"
    )
