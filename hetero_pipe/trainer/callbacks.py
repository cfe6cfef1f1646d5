"""What is told while training runs."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

from hetero_pipe.trainer.result import Evaluation

__all__ = ["Callback", "Progress", "StepReport"]


@dataclass(frozen=True)
class StepReport:
    """Where training stands after a step.

    Attributes:
        epoch: From 0.
        step: Of this trainer, from 0.
        loss: Mean over the epoch so far.
        auc: Over the epoch so far, as `FitResult.auc`; computed when called, with
            the steps that have ended since.
        samples_per_second: Over what this `fit` has trained of the epoch.
    """

    epoch: int
    step: int
    loss: float
    auc: Callable[[], float | None]
    samples_per_second: float


class Callback(Protocol):
    """Is told how training goes, in the thread that called `fit`."""

    def on_step(self, report: StepReport) -> None:
        """Is called after each step, while later ones are under way.

        So it cannot save or evaluate; what it raises ends `fit`, with the steps
        under way.
        """

    def on_epoch(self, epoch: int, evaluation: Evaluation | None) -> None:
        """Is called after each epoch, with its evaluation if there was one."""


class Progress:
    """One line that follows training on a terminal, and one for each epoch. Quiet elsewhere.

    Args:
        stream: Where to; None is stderr.
        seconds: Between two updates.
    """

    def __init__(self, stream: TextIO | None = None, *, seconds: float = 0.5) -> None:
        self._stream = stream or sys.stderr
        self._seconds = seconds
        self._shown = 0.0
        self._last: StepReport | None = None

    def on_step(self, report: StepReport) -> None:
        """Shows the step if the last one shown is long enough ago."""
        self._last = report
        now = time.monotonic()
        if self._stream.isatty() and now - self._shown >= self._seconds:
            self._shown = now
            # The cursor waits in front, so that a log line replaces the progress.
            self._stream.write(f"\r\033[K{_line(report)}\r")
            self._stream.flush()

    def on_epoch(self, epoch: int, evaluation: Evaluation | None) -> None:
        """Shows what the epoch came to."""
        if not self._stream.isatty():
            return
        line = _line(self._last) if self._last else f"epoch {epoch + 1}"
        if evaluation is not None:
            line += (
                f" · evaluation auc {_number(evaluation.auc)} log loss {evaluation.log_loss:.4f}"
            )
        self._stream.write(f"\r\033[K{line}\n")
        self._stream.flush()


def _line(report: StepReport) -> str:
    return (
        f"epoch {report.epoch + 1} · step {report.step + 1} · loss {report.loss:.4f} · "
        f"auc {_number(report.auc())} · {report.samples_per_second:,.0f} samples/s"
    )


def _number(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
