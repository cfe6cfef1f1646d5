"""Comparison: predicted beside measured, and the likely reason where they are far apart."""

from dataclasses import dataclass

from hetero_pipe.plan.planning import Measured, MeasuredStage
from hetero_pipe.plan.prediction import Prediction
from hetero_pipe.units import format_seconds

__all__ = ["Comparison", "compare"]

FAR = 0.2
"""From this on, a stage or a step is said to be off."""

NOTED = 0.02
"""Of a step: what a stage is off by less than this of it has no reason to be told."""

BUSY = 0.9
"""Of all cores: from this on, stages wait for one another's."""


@dataclass(frozen=True)
class Comparison:
    """What a run took beside what was expected of it. Printed, it is a table and warnings.

    Attributes:
        rows: Of each stage that both have, and of `step`: name, predicted and measured seconds.
        warnings: One for each that is off by more than 20%, with the likely reason.
    """

    rows: tuple[tuple[str, float, float], ...]
    warnings: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{'':12}{'predicted':>12}{'measured':>12}{'off by':>9}"]
        for name, predicted, measured in self.rows:
            lines.append(
                f"{name:12}{format_seconds(predicted):>12}{format_seconds(measured):>12}"
                f"{off_by(predicted, measured):>+9.0%}"
            )
        return "\n".join([*lines, *(f"WARNING: {each}" for each in self.warnings)])


def off_by(predicted: float, measured: float) -> float:
    """Returns how much longer something took than predicted, as a share of that.

    >>> off_by(2.0, 3.0)
    0.5
    """
    return measured / predicted - 1 if predicted else 0.0


def compare(
    prediction: Prediction,
    measured: Measured,
    *,
    batch_planned: int | None,
    batch: float,
    num_cores: int,
) -> Comparison:
    """Returns predicted beside measured.

    Args:
        prediction: Of the plan.
        measured: Of one of its workers.
        batch_planned: Samples of a step that the prediction is of; None is not known.
        batch: Samples of a step that there were.
        num_cores: That the worker may run on.
    """
    stages = {stage.name: stage for stage in prediction.stages}
    both = [(stages[each.name], each) for each in measured.stages if each.name in stages]
    rows = [(stage.name, stage.busy, each.busy) for stage, each in both]
    rows.append(("step", prediction.step_seconds, measured.step_seconds))
    on_cores = sum(each.cpu for each in measured.stages) / num_cores / measured.step_seconds
    warnings = []
    for name, predicted, took in rows:
        is_small = abs(took - predicted) < NOTED * measured.step_seconds
        if abs(off_by(predicted, took)) <= FAR or is_small:
            continue
        found = next((each for _, each in both if each.name == name), None)
        if batch_planned is not None and abs(batch - batch_planned) > FAR * batch_planned:
            reason = f"batches had {batch:,.0f} samples, and {batch_planned:,} were planned"
        elif took > predicted and on_cores > BUSY:
            reason = f"{on_cores:.0%} of {num_cores} cores were busy, so that it waited for one"
        elif prediction.assumed:
            reason = (
                f"{prediction.assumed[0]} was assumed, not measured; run `hetero-pipe profile` and "
                "give its file to the planner"
            )
        else:
            reason = _reason(name, predicted, took, found)
        warnings.append(
            f"{name} took {format_seconds(took)}, {format_seconds(predicted)} were predicted: "
            f"{reason}"
        )
    return Comparison(tuple(rows), tuple(warnings))


def _reason(name: str, predicted: float, took: float, found: MeasuredStage | None) -> str:
    speed = "slower" if took > predicted else "faster"
    if name in ("pull", "push") and found is not None and found.cpu < found.busy / 2:
        return f"the servers, or the way to them, are {speed} than their profile"
    if name == "dense" and found is not None and found.cpu < found.busy / 2:
        return f"the device is {speed} than its profile"
    if name == "step":
        return "it is what its stages add up to, which see"
    return f"this host is {speed} than its profile"
