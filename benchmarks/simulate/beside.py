"""What stages take beside each other, by those alone: found from jobs that are not judged."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alone import STAGES, StageCost
from runs import Run


@dataclass(frozen=True)
class Reference:
    """A job that tells what threads that take turns take, and is none of those that are judged.

    Attributes:
        device_ms: Of its device.
        batch_size: Of its batches.
        staleness: Of its plan.
        scale: Of its tables' rows, by those of Criteo's.
    """

    device_ms: float
    batch_size: int
    staleness: int
    scale: float


REFERENCES = (Reference(3.5, 3000, 3, 0.3), Reference(7.0, 5500, 1, 0.5))


@dataclass(frozen=True)
class Beside:
    """How many times as long what is on cores takes in a run as in a loop of its stages.

    Attributes:
        stages: The threads of stages.
        call: Other threads of the worker, those of gRPC.
        server: All threads of the server.
        between: Seconds of a step on cores of the worker that are neither's: threads that wait
            for each other, and who counts the steps. Where there are calls, it is with them.
    """

    stages: Mapping[str, float]
    call: float
    server: float
    between: float


ALONE = Beside(dict.fromkeys(STAGES, 1.0), 1.0, 1.0, 0.0)


def found_beside(costs: Mapping[str, StageCost], run: Run) -> Beside:
    """Returns what one run of a job tells, whose stages take so much alone.

    What no stage's thread was on cores is between them; where there are calls, it is theirs.
    """
    threads = sum(stage.cpu for stage in run.timeline.stages) / run.num_steps
    left = statistics.median(part.cpu for part in run.quiet) - threads
    stages = {name: run.cpu(name) / costs[name].thread for name in STAGES}
    served = sum(cost.server_cpu for cost in costs.values())
    if not served:
        return Beside(stages, 1.0, 1.0, max(left, 0.0))
    calls = sum(cost.calls for cost in costs.values())
    server_cpu = statistics.median(part.server_cpu for part in run.quiet)
    return Beside(stages, left / calls, server_cpu / served, 0.0)


def middle(found: Sequence[Beside]) -> Beside:
    """Returns the medians of several runs of one job, or of several jobs."""
    return Beside(
        {name: statistics.median(each.stages[name] for each in found) for name in STAGES},
        *(
            statistics.median(getattr(each, what) for each in found)
            for what in ("call", "server", "between")
        ),
    )
