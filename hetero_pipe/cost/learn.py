"""learn: what a run shows of a cost model."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from hetero_pipe.cost.correction import LEAST, MOST, Correction, Corrections, StagePlace, bounded
from hetero_pipe.cost.model import CostModel
from hetero_pipe.cost.roles import Roles
from hetero_pipe.plan import Measured, MeasuredStage, Plan, StagePrediction

__all__ = ["learn"]

ENOUGH_STEPS = 20
"""Of a run: below that, what is done but once is too much of it."""

ROUNDS = 12
"""In which factors settle: what a stage waits for a core depends a little on those of all."""


def learn(model: CostModel, plan: Plan, measured: Measured) -> Corrections:
    """Returns the corrections of a model, and what a run of a plan has shown beside them.

    A run shows the factors under which the model would have predicted what was
    measured, whatever its corrections are. So the same run twice shows the same, and
    a run that was predicted changes nothing.

    Args:
        model: Of what was trained.
        plan: That ran. Its batch size is the one that was measured, and its prediction is
            not asked.
        measured: Of one of its workers, whose stages alone are corrected; a run of few
            steps shows nothing.

    Raises:
        As `CostModel.predict`.
    """
    known = model.applied
    if measured.num_steps < ENOUGH_STEPS:
        return known
    plan = replace(plan, batch_size=max(round(measured.samples), 1), predicted=None)
    roles = Roles.of(plan, model.cluster)
    its = {stage.name: stage for stage in measured.stages}
    plain = {stage.name: stage for stage in model.corrected(Corrections()).predict(plan).stages}
    predicted = model.predict(plan).stages
    rounds: list[tuple[float, tuple[Correction, ...]]] = []
    for _ in range(ROUNDS):
        shown = tuple(_shown(plain, predicted, its, roles))
        predicted = model.corrected(known.replaced(shown)).predict(plan).stages
        rounds.append((_distance(predicted, its), shown))
    # Where all wait for a server that is never idle, factors do not settle: the best ones count.
    return known.with_run(min(rounds, key=lambda each: each[0])[1])


def _distance(
    predicted: tuple[StagePrediction, ...], measured: Mapping[str, MeasuredStage]
) -> float:
    """Returns how far stages are from what was measured, by the logarithms of their seconds."""
    both = (
        (stage.busy, measured[stage.name].busy) for stage in predicted if stage.name in measured
    )
    return sum(abs(math.log(one / other)) for one, other in both if one > 0 and other > 0)


def _shown(
    plain: Mapping[str, StagePrediction],
    predicted: tuple[StagePrediction, ...],
    measured: Mapping[str, MeasuredStage],
    roles: Roles,
) -> Iterator[Correction]:
    """Yields the factors of each stage under which it had been predicted.

    Args:
        plain: The stages by name, not corrected.
        predicted: These as they are corrected so far, which tells how long each waits for a
            core that another holds.
        measured: The stages of one worker by name.
        roles: Of the plan.
    """
    role = roles.reader.role if "read" in measured else "dense"
    for stage in predicted:
        before, its = plain[stage.name], measured.get(stage.name)
        if stage.role != role or its is None or not (its.busy and before.cost.total):
            continue
        waited = stage.busy - stage.cost.total
        yield _factors(StagePlace.of(stage, roles), before, its, waited=waited)


def _factors(
    place: StagePlace, before: StagePrediction, its: MeasuredStage, *, waited: float
) -> Correction:
    """Returns by how much a stage was longer, apart from what it waited for a core.

    On a core and otherwise each have a factor of their own. Where these cannot be told
    apart, as one would be out of bounds, both have that of the whole: some devices keep
    a core busy that waits for them.
    """
    core, whole = before.cpu, before.cost.total
    rest = whole - core
    on_core = its.cpu / core if core else 1.0
    otherwise = (its.busy - its.cpu - waited) / rest if rest else 1.0
    if not all(LEAST <= each <= MOST for each in (on_core, otherwise)):
        on_core = otherwise = bounded((its.busy - waited) / whole)
    return Correction(place, on_core, otherwise)
