"""What training and evaluation found."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hetero_pipe.pipeline import Timeline

__all__ = ["Evaluation", "FitResult"]


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on some samples.

    Attributes:
        auc: Area under the ROC curve; None if the labels are all of one class.
        log_loss: Mean negative log-likelihood, in nats.
        num_samples: That it was measured on.
    """

    auc: float | None
    log_loss: float
    num_samples: int


@dataclass(frozen=True)
class FitResult:
    """What a `fit` did.

    Attributes:
        num_steps: Taken: batches of one worker; of several, those of the one that
            took most.
        num_samples: Samples trained, by all workers.
        seconds: Spent training, without evaluation.
        loss: Mean over the samples of the last epoch, those of a resumed run
            too, each before its step; None if nothing was trained.
        auc: Over these samples, each predicted before its step; None if the
            labels are not 0 and 1, or all of one class.
        max_staleness: The most pushes that a pull has missed.
        mean_staleness: The pushes that a pull has missed, on average. This and
            `max_staleness` count the worker's own pushes.
        timeline: Where the time of each stage went; `timeline.bottleneck` is the
            stage to make faster, and `print(timeline)` a table.
        evaluations: On the evaluation reader, one an epoch.
    """

    num_steps: int
    num_samples: int
    seconds: float
    loss: float | None
    auc: float | None
    max_staleness: int
    mean_staleness: float
    timeline: Timeline
    evaluations: tuple[Evaluation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns all but the timeline, as `of_dict` takes it."""
        fields = {name: value for name, value in vars(self).items() if name != "timeline"}
        return {**fields, "evaluations": [asdict(each) for each in self.evaluations]}

    @staticmethod
    def of_dict(fields: Mapping[str, Any], timeline: Timeline) -> "FitResult":
        """Returns the result that `to_dict` was taken of, with another timeline."""
        evaluations = tuple(Evaluation(**each) for each in fields["evaluations"])
        return FitResult(**{**fields, "evaluations": evaluations}, timeline=timeline)

    @property
    def samples_per_second(self) -> float:
        """Of training, 0 if nothing was trained."""
        return self.num_samples / self.seconds if self.seconds else 0.0
