"""Comparison: what was predicted of a plan beside what training took."""

from collections.abc import Iterator
from dataclasses import dataclass

from hetero_pipe.plan.measured import Measured, MeasuredStage
from hetero_pipe.plan.prediction import Prediction, StagePrediction
from hetero_pipe.units import format_seconds

__all__ = ["Comparison", "ComparisonRow"]

TOLERANCE = 0.2
"""Of what was predicted: a difference that is worth a word."""

NOTED = 0.05
"""Of a step: a stage that is off by less changes nothing."""

BUSY = 0.9
"""Share of the cores above which threads wait for one another."""


@dataclass(frozen=True)
class ComparisonRow:
    """One quantity, predicted and measured, in seconds.

    Attributes:
        name: `step`, or of a stage.
        predicted: What a plan said.
        measured: What training took.
    """

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """How far the prediction is off, by what was measured: 0.2 is a fifth too high."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Comparison:
    """A prediction beside a run of it. Printed, it is a table and its warnings.

    Attributes:
        predicted: Of the plan.
        measured: Of one worker that ran it.
        batch_size: Of the plan; None if it left that open.
    """

    predicted: Prediction
    measured: Measured
    batch_size: int | None = None

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """The step, then each stage that both know of."""
        step = ComparisonRow("step", self.predicted.step_seconds, self.measured.step_seconds)
        return (
            step,
            *(ComparisonRow(mine.name, mine.busy, its.busy) for mine, its in self._stages()),
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each that is off by more than `TOLERANCE`, with the likely reason."""
        found = []
        step = self.rows[0]
        for row in self.rows:
            difference = abs(row.measured - row.predicted)
            is_off = difference > TOLERANCE * row.predicted
            if is_off and difference > NOTED * step.measured:
                found.append(
                    f"{row.name} took {format_seconds(row.measured)}, predicted were "
                    f"{format_seconds(row.predicted)}: {self._reason(row)}"
                )
        return tuple(found)

    def _stages(self) -> Iterator[tuple[StagePrediction, MeasuredStage]]:
        by_name = {stage.name: stage for stage in self.measured.stages}
        for stage in self.predicted.stages:
            if stage.name in by_name and by_name[stage.name].busy > 0:
                yield stage, by_name[stage.name]

    def _reason(self, row: ComparisonRow) -> str:
        """Returns what most likely makes the difference: the first that applies."""
        batch = self.measured.samples
        if self.batch_size and abs(batch / self.batch_size - 1) > TOLERANCE:
            return (
                f"a step had {batch:,.0f} samples, planned were {self.batch_size:,}; plan for the "
                "batches that are read"
            )
        is_slower = row.measured > row.predicted
        if is_slower and self.measured.load > BUSY:
            return (
                f"the stages keep {self.measured.load:.0%} of {self.measured.num_cores} cores "
                "busy, so they wait for one; add cores, or workers on other hosts"
            )
        said = self._reason_of_stage(row) if row.name != "step" else self._reason_of_step()
        if said is None and self.predicted.assumed:
            said = (
                f"{self.predicted.assumed[0]} was assumed, not measured; run hetero-pipe profile "
                "there and plan again"
            )
        if said is not None:
            return said
        return (
            "something else ran on the machine, or its rates have changed; run hetero-pipe "
            "profile again"
        )

    def _reason_of_step(self) -> str | None:
        """Returns which stage is off most, if that is why the step is."""
        stages = self.rows[1:]
        if not stages:
            return None
        worst = max(stages, key=lambda row: abs(row.measured - row.predicted))
        step = self.rows[0]
        if abs(worst.measured - worst.predicted) < abs(step.measured - step.predicted) / 2:
            return None
        return f"most of it is {worst.name}"

    def _reason_of_stage(self, row: ComparisonRow) -> str | None:
        """Returns whether it computed longer, or waited longer, for whom it waits."""
        stage, measured = next(pair for pair in self._stages() if pair[0].name == row.name)
        if row.measured <= row.predicted:
            return None
        more_cpu = measured.cpu - stage.cpu
        if more_cpu > (row.measured - row.predicted) / 2:
            return None  # its rates are wrong
        waits = {
            "server": "the servers or the wire to them are slower than was measured",
            "network": "the wire is slower than was measured, or others use it",
            "device": "the device is slower than was measured",
        }
        for resource, said in waits.items():
            if stage.cost.on(resource):
                return f"it waited, and was not on a core: {said}"
        return "it waited for a core or for Python's lock, which other threads held"

    def __str__(self) -> str:
        lines = [f"{'predicted and measured':28}{'predicted':>12}{'measured':>12}{'off by':>9}"]
        lines += [
            f"{row.name:28}{format_seconds(row.predicted):>12}"
            f"{format_seconds(row.measured):>12}{row.error:+9.0%}"
            for row in self.rows
        ]
        return "\n".join([*lines, *(f"warning: {each}" for each in self.warnings)])
