"""Propose: the plan to take, those that lost to it and why, and how sure that is."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hetero_pipe.cost import CostModel
from hetero_pipe.errors import PlanError
from hetero_pipe.plan import Plan
from hetero_pipe.planner.address import addressed
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.box import Box, box_of
from hetero_pipe.planner.judge import EQUAL, Judge
from hetero_pipe.planner.lack import lack_of
from hetero_pipe.planner.lean import lean
from hetero_pipe.planner.remedy import told_remedies
from hetero_pipe.planner.search import Search
from hetero_pipe.planner.space import Space
from hetero_pipe.planner.strategy import strategies
from hetero_pipe.planner.watch import Progress, Watch

__all__ = ["Proposal", "RunnerUp", "propose"]

SHARE = 0.2
"""Of the time: what plans that have lost already may take, or why there is none."""


@dataclass(frozen=True)
class RunnerUp:
    """The best plan of another kind, to within 1%.

    Attributes:
        kind: In what it differs from others in principle.
        plan: The best of it, predicted; None if none can be taken.
        reason: Why it lost.
    """

    kind: str
    plan: Plan | None
    reason: str


@dataclass(frozen=True)
class Proposal:
    """The plan to take, and what it is compared with.

    Attributes:
        plan: With what is predicted of it.
        kind: In what it differs from others in principle.
        runners_up: The best of each other kind, the nearest first.
        aim: What it is best at.
        loss: Of the plan, as `Aim.loss`.
        bound: No plan of the space has a lower loss.
        num_predicted: Plans, and bounds of many, that were predicted.
    """

    plan: Plan
    kind: str
    runners_up: tuple[RunnerUp, ...]
    aim: Aim
    loss: float
    bound: float
    num_predicted: int

    @property
    def gap(self) -> float:
        """How far, at the most, the best plan of all is from this one: 0 is none, 0.01 is 1%."""
        found = 1 - self.bound / self.loss if self.loss else 0.0
        return found if found > EQUAL else 0.0


def propose(
    model: CostModel,
    space: Space,
    aim: Aim | None = None,
    *,
    seconds: float = 40.0,
    clock: Callable[[], float] = time.monotonic,
    told: Callable[[Progress], None] | None = None,
) -> Proposal:
    """Returns the best plan of a space for a workload on a cluster.

    Args:
        model: Of the workload on the cluster; the one judge of a plan.
        space: What may be chosen.
        aim: What shall be best; by default, throughput.
        seconds: After which it says how far the best may be from what it has, or that
            it has none. Why there is none may take a fifth of that more.
        clock: Tells the time, in seconds.
        told: Is told again and again how far the search has come.

    Raises:
        PlanError: No plan fits, or none is fast enough: says which table or stage, by how
            much, and the cheapest change after which one does. Or none was found in time.
        ConfigError: Money shall be counted, and a host has no price.
    """
    aim = aim or Aim()
    aim.check_prices(model.cluster)
    judge, watch = Judge(model, aim), Watch(seconds, clock, told)
    kinds = kinds_of(model, space)
    searches = {kind: Search(judge).add(boxes) for kind, boxes in kinds.items()}
    _search(searches, watch)
    best = min(searches, key=lambda kind: searches[kind].loss, default="")
    if any(search.left for search in searches.values()) and searches[best].plan is None:
        raise PlanError(_none_in_time(searches.values(), aim, seconds))
    if not best or searches[best].plan is None:
        why = Watch(SHARE * seconds, clock, told)
        raise PlanError(told_remedies(model, space, aim, list(kinds.values()), watch=why))
    watch = watch.shortened(SHARE * seconds)
    _search_others(searches, watch)
    plan = lean(searches[best].predicted(), model, aim, min_staleness=space.min_staleness)
    others = sorted((k for k in kinds if k != best), key=lambda kind: searches[kind].loss)
    return Proposal(
        plan=addressed(plan, model.cluster),
        kind=best,
        runners_up=tuple(
            _runner_up(kind, searches[kind], kinds[kind], searches[best].loss, watch)
            for kind in others
        ),
        aim=aim,
        loss=searches[best].loss,
        bound=min(search.bound for search in searches.values()),
        num_predicted=judge.num_predicted,
    )


def kinds_of(model: CostModel, space: Space) -> dict[str, list[Box]]:
    """Returns the boxes of each kind of strategy."""
    cluster, graph = model.cluster, model.workload.graph
    kinds: dict[str, list[Box]] = {}
    for strategy in strategies(space, cluster, graph):
        kinds.setdefault(strategy.kind, []).append(box_of(strategy, space, cluster, graph))
    return kinds


def _search(searches: Mapping[str, Search], watch: Watch) -> None:
    """Finds the best plan of all."""
    while searches:
        first = min(searches.values(), key=lambda search: search.bound)
        if first.is_done or watch.is_over:
            break
        first.step()
        watch.tell("the best plan", first.judge, searches.values())
    if all(search.plan is None for search in searches.values()):
        for search in searches.values():
            search.look()  # out of time: any plan is better than none


def _search_others(searches: Mapping[str, Search], watch: Watch) -> None:
    """Finds a plan near to the best of each kind."""
    for i, (kind, search) in enumerate(searches.items()):
        # What time is left is shared by those that are left.
        own = watch.shortened(watch.left / (len(searches) - i))
        while not search.is_close and not own.is_over:
            search.step()
            watch.tell(f"runner-up: {kind}", search.judge, (search,))


def _none_in_time(searches: Iterable[Search], aim: Aim, seconds: float) -> str:
    """Returns what to say if there may be a plan, and none was found."""
    most = max(search.fastest for search in searches)
    found = f"{most:,.0f} samples/s of the required {aim.throughput:,.0f}" if most else "none"
    return (
        f"a plan was to be found in {seconds:g} s, got {found}, and no proof that there is none; "
        "search longer (--seconds), ask for less, or allow fewer batch sizes and modes"
    )


def _runner_up(kind: str, search: Search, boxes: list[Box], best: float, watch: Watch) -> RunnerUp:
    model, aim = search.judge.model, search.judge.aim
    if search.plan is None and search.left:
        return RunnerUp(kind, None, "none was found in time, and none is proven not to be there")
    if search.plan is None:
        return RunnerUp(kind, None, lack_of(boxes, model, aim, watch).text)
    plan = lean(search.predicted(), model, aim)
    assert plan.predicted is not None
    if not best:  # what costs nothing is no measure
        what = "costs as little" if not search.loss else "costs money, and the best none"
    elif aim.needs_prices:
        what = f"costs {search.loss / best:.2f} times as much"
    else:
        what = f"takes {search.loss / best:.2f} times as long a sample"
    return RunnerUp(kind, plan, f"{what}; {plan.predicted.bottleneck} bounds it")
