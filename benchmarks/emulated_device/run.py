"""What a run gave, and the table of all."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import hetero_pipe as hp

# The processes keep the cores busy: whatever the stages do, they wait for those.
CORES_BUSY = 0.85


@dataclass(frozen=True)
class Run:
    """What one run gave.

    Attributes:
        samples_per_second: Trained.
        limit: Samples a second if the device never waited.
        busy: By stage, the share of the time in which it was at work, also while
            it waited for device, server or core.
        cpu_ms: Of all processes, a batch.
        cores: The share of all cores that this is.
    """

    samples_per_second: float
    limit: float
    busy: Mapping[str, float]
    cpu_ms: float
    cores: float

    @property
    def share(self) -> float:
        """Of the device's limit."""
        return self.samples_per_second / self.limit

    @property
    def bound(self) -> str:
        """What was busy most, and how much of the time."""
        stage = max(self.busy, key=lambda name: self.busy[name])
        said = f"{stage} {self.busy[stage]:.0%}"
        return f"cores {self.cores:.0%}, then {said}" if self.cores >= CORES_BUSY else said


def busy_shares(timeline: hp.Timeline, seconds: float, prefix: str = "") -> dict[str, float]:
    """Returns the share of the time in which each stage was at work, as `Run.busy`.

    Without `recv`: that is a wait for another worker.
    """
    return {
        f"{prefix}{stage.name}": stage.busy / seconds
        for stage in timeline.stages
        if stage.name != "recv"
    }


HEADER = (
    "| emulated, ms a batch | way | samples/s | of the device's limit, median (min, max) "
    "| busiest stage | CPU ms a batch | cores busy |\n| --- | --- | --- | --- | --- | --- | --- |"
)


def row(milliseconds: float, way: str, runs: Sequence[Run]) -> str:
    """Returns the line of a table for the rounds of one way."""
    shares = [run.share for run in runs]
    middle = sorted(runs, key=lambda run: run.share)[len(runs) // 2]
    cells = [
        f"{milliseconds:g}",
        way,
        f"{statistics.median(run.samples_per_second for run in runs):,.0f}",
        f"{statistics.median(shares):.2f} ({min(shares):.2f}, {max(shares):.2f})",
        middle.bound,
        f"{statistics.median(run.cpu_ms for run in runs):.1f}",
        f"{statistics.median(run.cores for run in runs):.0%}",
    ]
    return f"| {' | '.join(cells)} |"
