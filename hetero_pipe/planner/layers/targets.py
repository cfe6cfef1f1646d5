"""Targets: the seconds a sample that are asked of every stage."""

import numpy as np

from hetero_pipe.planner.layers.objective import Goal, Objective
from hetero_pipe.planner.layers.stage_times import StageTimes

__all__ = ["below", "slowest_of", "slowest_target"]

SLACK = 1e-12  # relative: 0.003 s shared by 30 units is enough for 10 000 samples/s


def slowest_target(times: StageTimes, objective: Objective) -> float:
    """Returns the most seconds a sample that an objective allows.

    Without a required throughput, those of the slowest stage on one unit: more is
    asked of none.
    """
    if objective.throughput and objective.goal is not Goal.TIME_PER_SAMPLE:
        return (1 + SLACK) / objective.throughput
    return slowest_of(times)


def slowest_of(times: StageTimes) -> float:
    """Returns the seconds a sample of the slowest stage there can be, on one unit."""
    alone = times.times(np.ones(times.serial.shape[1:]))
    return float(alone[alone < np.inf].max())


def below(target: float) -> float:
    """Returns the next target below: what takes as long as `target` misses it."""
    return float(np.nextafter(target, 0.0))
