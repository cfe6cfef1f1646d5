"""How much longer is a step because its stages share cores? A fixed point.

A stage that computes c seconds on a machine of N cores takes longer if others are
there, for the time slices are theirs, too. With `rho` the share of the cores that
all others have, it takes `c / (1 - rho**N)`: a stage's time in an M/M/N queue that
is shared evenly, exact for N of 1 and 2. The others have that share of a step, so
a longer step is a smaller share, and there is one step that is as long as it makes
its stages. Threads of a process also wait for one another's turns at its interpreter,
as for a machine of one core.

Reference:
    Kleinrock, "Queueing Systems", volume 2, 1976, chapter 4: processor sharing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Sharing", "shared_step_time"]

ROUNDING = 1e-12
"""Relative: how near to the least step the one that is found is."""


@dataclass(frozen=True)
class Sharing:
    """What one stage holds of the cores of machines.

    Attributes:
        rest: Seconds of a step on no core: on a device, a link, or waiting.
        cores: By host, seconds on a core of one of its machines.
        locks: By process, seconds of these in which it holds the interpreter.
    """

    rest: float
    cores: Mapping[str, float]
    locks: Mapping[str, float] = field(default_factory=dict)

    def seconds(self, step: float, others: Mapping[str, float], cores: Mapping[str, int]) -> float:
        """Returns how long it takes in a step.

        Args:
            step: Seconds.
            others: By host, seconds of a step that all others hold the cores of a machine;
                by process, that its other threads hold the interpreter.
            cores: By host, of a machine.
        """
        total = self.rest
        for host, own in self.cores.items():
            load = others[host] / (cores[host] * step)
            free = 1.0 - load ** cores[host]
            if free <= 0:
                return float("inf")
            total += own / free
        for process, own in self.locks.items():
            free = 1.0 - others[process] / step
            if free <= 0:
                return float("inf")
            total += own * (1.0 / free - 1.0)
        return total


def shared_step_time(bound: float, at_least: Sequence[Callable[[float], float]]) -> float:
    """Returns the least step that is no shorter than a bound, nor than what it makes of others.

    Args:
        bound: Seconds, above 0.
        at_least: Of a step, seconds that it is not below: falls as the step rises.
    """

    def over(step: float) -> float:
        return max(least(step) for least in at_least) - step

    low, over_low = bound, over(bound)
    if over_low <= 0:
        return bound
    high = 2 * bound
    while (over_high := over(high)) > 0:
        low, over_low, high = high, over_high, 2 * high
    kept = 0  # the end that the last chord kept, negative for the low one
    while high - low > ROUNDING * high:
        middle = high - over_high * (high - low) / (over_high - over_low)
        if not low < middle < high:  # as where the low end is too short for its load
            middle = (low + high) / 2
        if not low < middle < high:
            break
        if (found := over(middle)) > 0:
            low, over_low = middle, found
            # Of an end that stays, less is taken (Illinois): else it would stay for ever.
            over_high *= 0.5 if kept > 0 else 1.0
            kept = 1
        else:
            high, over_high = middle, found
            over_low *= 0.5 if kept < 0 else 1.0
            kept = -1
    return high
