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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Thread", "expected_share", "shared_step_time", "stretches"]

ITERATIONS = 40
ROUNDS, CLOSE = 200, 1e-10
"""Of the fixed point, at most; and how near is enough."""


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


def expected_share(others: int, present: float, cores: int) -> float:
    """Returns the mean share of a core that a thread gets beside others.

    Args:
        others: Threads of its machine.
        present: Of them, in the mean.
        cores: Of the machine.

    >>> expected_share(1, 1.0, cores=2), expected_share(3, 3.0, cores=2)
    (1.0, 0.5)
    """
    if others < cores or present <= 0:
        return 1.0
    p = present / others
    if p >= 1:
        return cores / (others + 1)
    # The mean of C / (N + 1), and what min(1, .) takes from it where fewer than C are there.
    found = cores * (1 - (1 - p) ** (others + 1)) / ((others + 1) * p)
    probability = (1 - p) ** others
    for n in range(cores - 1):
        found += (1 - cores / (n + 1)) * probability
        probability *= (others - n) / (n + 1) * p / (1 - p)
    return min(found, 1.0)


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
    numbers = {host: sum(t.count for t in threads if t.host == host) for host in cores}
    if all(numbers[host] <= cores[host] for host in numbers):
        return found
    weights = [of_cycle if thread.is_in_cycle else 1.0 for thread in threads]
    for _ in range(ROUNDS):
        there = [
            min(thread.seconds * stretch / step, 1.0) * weight
            for thread, stretch, weight in zip(threads, found, weights, strict=True)
        ]
        present = dict.fromkeys(cores, 0.0)
        for thread, each in zip(threads, there, strict=True):
            present[thread.host] += thread.count * each
        before = found
        found = [
            1 / expected_share(numbers[t.host] - 1, present[t.host] - each, cores[t.host])
            for t, each in zip(threads, there, strict=True)
        ]
        if all(now - then <= CLOSE * now for now, then in zip(found, before, strict=True)):
            break
    return found


def shared_step_time(bound: float, at_least: Callable[[float], float]) -> float:
    """Returns the least step that is no shorter than a bound, nor than what it makes of itself.

    Args:
        bound: Seconds, above 0.
        at_least: Of a step, seconds that it is not below: falls as the step rises.
    """
    if at_least(bound) <= bound:
        return bound
    low, high = bound, 2 * bound
    while at_least(high) > high:
        low, high = high, 2 * high
    for _ in range(ITERATIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if at_least(middle) <= middle else (middle, high)
    return high
