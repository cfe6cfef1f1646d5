"""How much longer is a step because its threads share cores? A fixed point.

A thread is there, on a core or waiting for one, for a share of a step: its seconds by
those of the step, and as many times that as others make it wait. With N others there,
a machine of C cores gives it `min(1, C / (N + 1))` of one. So each thread is as long as
all others make it, and they are as long as it makes them. Of the times that all of
them agree on, these are the least::

    there_i = seconds_i * stretch_i / step
    stretch_i = 1 / E[min(1, C / (N + 1))]    N ~ Binomial(threads - 1, mean of there_j)

Up to C threads never wait. A longer step is a smaller share, and there is one step
that is as long as it makes its stages.

Reference:
    Kleinrock, "Queueing Systems", volume 2, 1976, chapter 4: processor sharing. Here a
    finite number of threads share, each of which is there once.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Thread", "expected_share", "shared_step_time", "stretches"]

ROUNDS = 100
"""Of a fixed point or a root, at most."""

CLOSE = 1e-7
"""By how much of it a root or a fixed point may be off."""

TINY = 1e-12

POINTS = 257
"""Of the curve that is straight between them: a thread's stretch over who else is there."""


@dataclass(frozen=True)
class Thread:
    """A thread that computes in each step, on each machine of a host.

    Attributes:
        host: Whose cores it needs.
        seconds: On a core, in a step.
        count: Threads alike on a machine.
        is_in_cycle: Whether it works for the batch that a pull waits for, between that
            batch's pull and its push.
    """

    host: str
    seconds: float
    count: int = 1
    is_in_cycle: bool = False


def expected_share(others: int, present: NDArray[Any], cores: int) -> NDArray[Any]:
    """Returns the mean share of a core that a thread gets beside others.

    Args:
        others: Threads of its machine.
        present: Of them, in the mean: any number of cases.
        cores: Of the machine.

    >>> expected_share(3, np.array([0.0, 3.0]), cores=2).round(6).tolist()
    [1.0, 0.5]
    """
    if others < cores:
        return np.ones(len(present))
    p = np.clip(present / others, TINY, 1 - TINY)
    log_p, log_q = np.log(p), np.log1p(-p)
    # The mean of C / (N + 1), and what min(1, .) takes from it where fewer than C are there.
    found: NDArray[Any] = cores * -np.expm1((others + 1) * log_q) / ((others + 1) * p)
    for n in range(cores - 1):
        ways = math.lgamma(others + 1) - math.lgamma(n + 1) - math.lgamma(others - n + 1)
        found += (1 - cores / (n + 1)) * np.exp(ways + n * log_p + (others - n) * log_q)
    shares: NDArray[Any] = np.minimum(found, 1.0)
    return shares


@cache
def _stretch_table(others: int, cores: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns numbers of threads that are there, and one over what `expected_share` is of each."""
    present = np.linspace(0.0, others, POINTS)
    return present, np.maximum.accumulate(1 / expected_share(others, present, cores))


def stretches(
    threads: Sequence[Thread], step: float, cores: Mapping[str, int], *, of_cycle: float = 1.0
) -> list[float]:
    """Returns how many times as long each thread takes as if it had the machine to itself.

    Args:
        threads: Of all hosts.
        step: Seconds.
        cores: Of a machine of each host.
        of_cycle: Of what is in the cycle, the share that is there beside the thread.
    """
    found = [1.0] * len(threads)
    for host, number in cores.items():
        places = [i for i, thread in enumerate(threads) if thread.host == host]
        its = [threads[i] for i in places]
        if sum(thread.count for thread in its) > number:
            longer = _stretches(its, step, number, of_cycle)
            for i, each in zip(places, longer, strict=True):
                found[i] = each
    return found


def _stretches(threads: Sequence[Thread], step: float, cores: int, of_cycle: float) -> list[float]:
    counts = np.array([thread.count for thread in threads], float)
    shares = np.array([thread.seconds / step for thread in threads])
    weights = np.array([of_cycle if thread.is_in_cycle else 1.0 for thread in threads])
    table = _stretch_table(int(counts.sum()) - 1, cores)
    # From below, so that what they come to is the least.
    found = np.ones(len(threads))
    for _ in range(ROUNDS):
        there = np.minimum(shares * found, 1.0) * weights
        before, found = found, np.interp(counts @ there - there, *table)
        if (found - before).max() <= CLOSE:
            break
    result: list[float] = found.tolist()
    return result


def shared_step_time(bound: float, at_least: Callable[[float], float]) -> float:
    """Returns the least step that is no shorter than a bound, nor than what it makes of itself.

    Args:
        bound: Seconds, above 0.
        at_least: Of a step, seconds that it is not below: falls as the step rises.
    """
    if at_least(bound) <= bound:
        return bound
    low, high = bound, 2 * bound
    while (left := at_least(high) - high) > 0:
        low, high = high, 2 * high
    over = at_least(low) - low
    # Regula falsi, with the end that stays weighed by half (Illinois).
    for _ in range(ROUNDS):
        if high - low <= CLOSE * high or left == 0:
            break
        middle = (low * left - high * over) / (left - over)
        middle = min(max(middle, low + CLOSE / 4 * high), high - CLOSE / 4 * high)
        found = at_least(middle) - middle
        if found > 0:
            low, over, left = middle, found, left / 2
        else:
            high, left, over = middle, found, over / 2
    return high
