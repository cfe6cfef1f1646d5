"""Which layers of a model run where, on how many units: the best assignment, and those it beats."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hetero_pipe.cost import CostModel
from hetero_pipe.errors import PlanError
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.layers.baseline import best_of, greedy, heuristic
from hetero_pipe.planner.layers.exact import exact
from hetero_pipe.planner.layers.objective import Goal, Objective, Scheduler, Solution
from hetero_pipe.planner.layers.stack import LayerStack
from hetero_pipe.planner.layers.traced import stack_of
from hetero_pipe.planner.layers.trainable import trainable

__all__ = ["LayersProposal", "Rival", "propose_layers"]

GOALS = {
    "throughput": Goal.TIME_PER_SAMPLE,
    "money": Goal.PRICE_PER_HOUR,
    "epoch": Goal.PRICE_PER_SAMPLE,
}
"""By what an `Aim` is best at."""


@dataclass(frozen=True)
class Rival:
    """What another scheduler makes of the same stack.

    Attributes:
        name: Of the scheduler, for people.
        solution: None if nothing that it tries is enough.
        reason: Why, then.
    """

    name: str
    solution: Solution | None
    reason: str = ""


@dataclass(frozen=True)
class LayersProposal:
    """The best assignment of layers to device types.

    Attributes:
        aim: What it is best at.
        batch: Samples of a worker's step.
        stack: What was assigned.
        solution: The best, and what none is better than.
        rivals: Of the same stack.
    """

    aim: Aim
    batch: int
    stack: LayerStack
    solution: Solution
    rivals: tuple[Rival, ...]


def propose_layers(
    model: CostModel,
    aim: Aim,
    *,
    batch_sizes: Sequence[int],
    mode: str = "bounded",
    wire: str = "float32",
) -> LayersProposal:
    """Returns the best assignment of all batch sizes.

    Args:
        model: Has the cluster, and the workload with its graph.
        aim: What shall be best.
        batch_sizes: Of a worker's step, each of which is tried.
        mode: As `stack_of` has it.
        wire: Likewise.

    Raises:
        ConfigError: Money is to be counted, and a host has no price.
        PlanError: No assignment does what the aim requires; says why, of the last batch size.
    """
    aim.check_prices(model.cluster)
    objective = Objective(GOALS[aim.what], aim.throughput)
    best: tuple[int, LayerStack, Solution] | None = None
    reason: PlanError | None = None
    for batch in batch_sizes:
        try:
            stack = stack_of(model, batch=batch, mode=mode, wire=wire)
            found = _enough(exact(stack, objective), aim)
        except PlanError as error:
            reason = PlanError(f"with batches of {batch}: {error}")
            continue
        if best is None or found.loss < best[2].loss:
            best = batch, stack, found
    if best is None:
        assert reason is not None, "a batch size was tried"
        raise reason
    batch, stack, found = best
    return LayersProposal(aim, batch, stack, found, _rivals(stack, objective, aim))


def _enough(solution: Solution, aim: Aim) -> Solution:
    """Returns a solution that is fast enough: the fastest one is found whatever is required."""
    assignment = solution.assignment
    if assignment.throughput * (1 + 1e-9) < aim.throughput:
        bottleneck = assignment.bottleneck
        raise PlanError(
            f"{assignment.throughput:,.0f} samples/s of the required {aim.throughput:,.0f} are the "
            f"most; {', '.join(bottleneck.layers)} on {bottleneck.type} bounds it; add units, or "
            "require less throughput"
        )
    return solution


def _rivals(stack: LayerStack, objective: Objective, aim: Aim) -> tuple[Rival, ...]:
    schedulers: dict[str, Scheduler] = {
        "best that a Trainer runs": trainable,
        "greedy": greedy,
        "heuristic: embeddings on CPUs, the rest on others": heuristic,
    }
    for i, each in enumerate(stack.types):
        schedulers[f"all on {each.name}"] = partial(_all_on, i)
    return tuple(_rival(name, stack, objective, aim, by) for name, by in schedulers.items())


def _rival(name: str, stack: LayerStack, objective: Objective, aim: Aim, by: Scheduler) -> Rival:
    try:
        return Rival(name, _enough(by(stack, objective), aim))
    except PlanError as error:
        return Rival(name, None, str(error))


def _all_on(number: int, stack: LayerStack, objective: Objective) -> Solution:
    return best_of(stack, objective, [[number] * len(stack.layers)])
