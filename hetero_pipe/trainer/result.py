"""What training and evaluation found."""

import os
import resource
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hetero_pipe.pipeline import ENOUGH_STEPS, ServerTime, Summary, Timeline
from hetero_pipe.plan import Comparison, Measured, MeasuredStage, Plan
from hetero_pipe.units import KiB

__all__ = ["Evaluation", "FitResult", "summarize"]


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
        summary: What bounds the run and how to raise that; `print(summary)` says it.
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
    summary: Summary
    evaluations: tuple[Evaluation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns all but timeline and summary, as `of_dict` takes it."""
        own = ("timeline", "summary")
        fields = {name: value for name, value in vars(self).items() if name not in own}
        return {**fields, "evaluations": [asdict(each) for each in self.evaluations]}

    @staticmethod
    def of_dict(fields: Mapping[str, Any], summary: Summary) -> "FitResult":
        """Returns the result that `to_dict` was taken of, with another summary and timeline."""
        evaluations = tuple(Evaluation(**each) for each in fields["evaluations"])
        return FitResult(
            **{**fields, "evaluations": evaluations}, timeline=summary.timeline, summary=summary
        )

    @property
    def samples_per_second(self) -> float:
        """Of training, 0 if nothing was trained."""
        return self.num_samples / self.seconds if self.seconds else 0.0


def summarize(
    plan: Plan,
    timeline: Timeline,
    *,
    num_samples: int,
    seconds: float,
    servers: tuple[ServerTime, ...] = (),
) -> Summary:
    """Returns the summary of one worker of a plan, of its own stages and samples.

    What was predicted stands beside it, if the plan has that and enough steps ran to tell.
    """
    mode = plan.workers.mode
    return Summary(
        timeline=timeline,
        num_samples=num_samples,
        seconds=seconds,
        staleness=None if mode == "async" else plan.staleness,
        mode=mode,
        num_workers=plan.workers.num_dense,
        num_servers=len(plan.servers or ()),
        num_cores=len(os.sched_getaffinity(0)),
        servers=servers,
        comparison=_comparison(plan, timeline, num_samples=num_samples, seconds=seconds),
    )


def _comparison(
    plan: Plan, timeline: Timeline, *, num_samples: int, seconds: float
) -> Comparison | None:
    num_steps = min((stage.num_steps for stage in timeline.stages), default=0)
    if plan.predicted is None or num_steps < ENOUGH_STEPS:
        return None
    measured = Measured(
        step_seconds=seconds / num_steps,
        samples=num_samples / num_steps,
        stages=tuple(
            MeasuredStage(stage.name, stage.busy / num_steps, stage.cpu / num_steps)
            for stage in timeline.stages
        ),
        num_steps=num_steps,
        num_cores=len(os.sched_getaffinity(0)),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KiB,
    )
    return Comparison(plan.predicted, measured, plan.batch_size)
