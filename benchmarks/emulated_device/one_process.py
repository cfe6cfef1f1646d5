"""The ways of one process, its tables in it: stages one after another, or a staleness of k."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "overlap"))

from repeated import Repeated
from run import Run, busy_shares
from serial import Cost, Meter, SerialLoop
from stated import NAME, StatedTime

import hetero_pipe as hp

SERIAL = "serial"
STALENESS = {f"k = {k}": k for k in (0, 1, 2, 4)}
WAYS = (SERIAL, *STALENESS)
NUM_CORES = len(os.sched_getaffinity(0))


class OneProcess:
    """Trains in any of `WAYS`, each with a model and rows of its own. A context manager.

    Args:
        batches: That are repeated.
        seconds: That the device takes for each.
    """

    def __init__(self, batches: Sequence[hp.Batch], seconds: float) -> None:
        self._batches = batches
        self._seconds = seconds
        self._resources = ExitStack()
        slots = tuple(batches[0].bags)
        self._loop = SerialLoop(StatedTime(slots, seconds), None, None, device=NAME)
        self._resources.callback(self._loop.close)
        self._trainers = {
            way: self._resources.enter_context(
                hp.Trainer(StatedTime(slots, seconds), staleness=staleness)
            )
            for way, staleness in STALENESS.items()
        }

    def __enter__(self) -> "OneProcess":
        return self

    def __exit__(self, *error: object) -> None:
        self._resources.close()

    def run(self, way: str, num_steps: int) -> Run:
        """Trains so many batches in a way of `WAYS`."""
        reader = Repeated(self._batches, num_steps)
        if way == SERIAL:
            cost = self._loop.run(list(reader), None)
            busy = {name: seconds / cost.wall for name, seconds in cost.stages.items()}
            return self._told(cost, busy)
        with Meter(None) as cost:
            result = self._trainers[way].fit(reader, callbacks=[])
        cost.num_steps = result.num_steps
        return self._told(cost, busy_shares(result.timeline, result.seconds))

    def _told(self, cost: Cost, busy: dict[str, float]) -> Run:
        size = self._batches[0].size
        return Run(
            samples_per_second=size * cost.num_steps / cost.wall,
            limit=size / self._seconds,
            busy=busy,
            cpu_ms=1e3 * cost.cpu / cost.num_steps,
            cores=cost.cpu / cost.wall / NUM_CORES,
        )
