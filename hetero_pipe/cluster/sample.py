"""Sampling: how often something is timed, so that its spread can be told."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from hetero_pipe.cluster.check import check_count, check_positive

__all__ = ["Sampling", "sample_times"]


@dataclass(frozen=True)
class Sampling:
    """How much effort a measurement is worth.

    Attributes:
        num_samples: Of each value.
        min_seconds: Of each sample: what is shorter is repeated within it.
        is_quick: Whether fewer and smaller sizes are enough.

    Raises:
        ConfigError: It is none.
    """

    num_samples: int = 9
    min_seconds: float = 0.05
    is_quick: bool = False

    def __post_init__(self) -> None:
        check_count("a sampling", "num_samples", self.num_samples)
        check_positive("a sampling", "min_seconds", self.min_seconds)


def sample_times(
    work: Callable[[], object],
    sampling: Sampling,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Returns the seconds of one call in each sample; the first two calls are of none."""
    work()  # the first one allocates and compiles
    begin = clock()
    work()
    once = max(clock() - begin, 1e-9)
    num_calls = max(1, math.ceil(sampling.min_seconds / once))
    times = []
    for _ in range(sampling.num_samples):
        begin = clock()
        for _ in range(num_calls):
            work()
        times.append(max(clock() - begin, 1e-9) / num_calls)
    return times
