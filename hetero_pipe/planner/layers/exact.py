"""The exact scheduler: the best assignment there is, and the proof of it.

For a target time a sample, each stage needs its least units, so that what an
assignment costs is a sum over its stages, and the best one is a cheapest path
(`cheapest_path`). That is all of the least price an hour. The other two goals
look for the best target:

- The least time: what fits at a target fits at every slower one, so it halves
  what lies between a target that fits and one that does not, until no stage has
  another number of units anywhere between.
- The least price a sample is that of target x price(target), which is no
  monotone function. Intervals of targets are kept with a lower bound of each; the
  one with the least is looked at first, and split. In (slow, fast) a stage needs at
  least its units at the slow end, and costs, times the target, at least what it would there if
  units could be split (it only gets dearer towards fast ones); the cheapest path
  of the greater of both is a bound. It ends when the least bound is no less than the best.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hetero_pipe.errors import PlanError
from hetero_pipe.planner.layers.assignment import Run, assemble
from hetero_pipe.planner.layers.cheapest_path import (
    CheapestPath,
    any_path,
    cheapest_path,
    lower_bound,
)
from hetero_pipe.planner.layers.lacking import lacking_units, slow_layer, slow_stage
from hetero_pipe.planner.layers.objective import Goal, Objective, Solution
from hetero_pipe.planner.layers.stack import LayerStack
from hetero_pipe.planner.layers.stage_times import MOST_UNITS, Floats, stage_times
from hetero_pipe.planner.layers.targets import below, slowest_of, slowest_target

__all__ = ["exact"]

MOST_INTERVALS = 4000  # beyond which the gap stays open, and is told
ROUNDING = 1e-12


def exact(stack: LayerStack, objective: Objective) -> Solution:
    """Returns the best assignment of all, proven unless the search became too large.

    Then the solution's gap is not 0; no stack of 16 layers and 8 types that we tried is so.

    Raises:
        PlanError: No assignment does what the objective requires; says what is lacking.
    """
    search = _Search(stack, objective)
    if objective.goal is Goal.PRICE_PER_HOUR:
        found = search.cheapest_at(search.slowest)
        best = _Best(found.runs, search.slowest, found.cost, found.bound)
    elif objective.goal is Goal.PRICE_PER_SAMPLE:
        best = search.cheapest()
    else:
        best = search.fastest()
    if not best.runs:
        raise PlanError(search.reason())
    assignment = assemble(stack, search.times, best.runs, target=best.target)
    loss = objective.loss(assignment)
    # Relative to the loss, for the sums there were made in another order.
    gap = max(0.0, 1 - best.bound / best.loss) if best.loss else 0.0
    return Solution(assignment, loss, bound=loss * (1 - gap))


@dataclass(frozen=True)
class _Best:
    """The best stages and target, what they lose, and what none loses less than."""

    runs: list[Run]
    target: float
    loss: float
    bound: float


class _Search:
    """What all goals share: paths at one target."""

    def __init__(self, stack: LayerStack, objective: Objective) -> None:
        self._stack = stack
        self.times = stage_times(stack)
        self.slowest = slowest_target(self.times, objective)
        self._prices = np.array([each.price_per_hour for each in stack.types])
        self._limits = np.array([float(each.count) for each in stack.types])
        self._most = float(self._prices @ self._limits) * (1 + 1e-9) + 1e-300

    def cheapest_at(self, target: float, *, below: float = np.inf) -> CheapestPath:
        """Returns the least price an hour at a target, if it is below some price."""
        units = self.times.least_units(target)
        prices = self._price(units)
        if below < self._most:
            return cheapest_path(prices, units, self._limits, below=below)
        # Whether anything fits is found sooner without prices; what fits bounds what is best.
        fitting = any_path(units, self._limits)
        if not fitting.runs and fitting.is_closed:
            return CheapestPath([], np.inf, np.inf, is_closed=True)
        price = sum(float(prices[run]) for run in fitting.runs) if fitting.runs else self._most
        found = cheapest_path(prices, units, self._limits, below=price * (1 + 1e-9) + 1e-300)
        if found.runs or not fitting.runs:
            return found
        return CheapestPath(fitting.runs, price, min(found.bound, price), found.is_closed)

    def _price(self, units: Floats) -> Floats:
        # A type without a price has none for infinite units either: there are not so many.
        return np.where(np.isinf(units), np.inf, np.nan_to_num(units, posinf=0) * self._prices)

    def _time(self, runs: Sequence[Run], target: float) -> float:
        """Returns the seconds that stages take with the least units for a target."""
        stages = self.times[tuple(np.array(runs).T)]
        return float(stages.times(stages.least_units(target)).max())

    def reason(self) -> str:
        """Returns why nothing fits at the slowest target."""
        target = self.slowest
        if layer := slow_layer(self._stack, target):
            return layer
        units = self.times.least_units(target)
        boundless = np.full(len(self._limits), len(self._stack.layers) * MOST_UNITS)
        most = float(self._prices @ boundless) + 1e-300
        free = cheapest_path(self._price(units), units, boundless, below=most)
        if not free.runs:
            return slow_stage(self._stack, self.times, target)
        cheapest = assemble(self._stack, self.times, free.runs, target=target)
        if (alone := slowest_of(self.times)) > target:
            self.slowest = alone
        fastest = self.fastest()
        most_throughput = 1 / fastest.target if fastest.runs else None
        return lacking_units(self._stack, cheapest, target, most_throughput=most_throughput)

    def _is_same(self, fast: float, slow: float) -> bool:
        """Returns whether each stage needs as many units at both targets, as far as there are."""
        most = self._limits + 1
        few, many = (np.minimum(self.times.least_units(each), most) for each in (slow, fast))
        return np.array_equal(few, many)

    # ------------------------------------------------------------------ least time

    def fastest(self) -> _Best:
        """Returns the least time a sample; of several ways to it, the cheapest."""
        found = self._any_at(self.slowest)
        if not found.runs:
            return _Best([], self.slowest, np.inf, np.inf)
        runs, fits = found.runs, self._time(found.runs, self.slowest)
        misses, bound, proven = 0.0, 0.0, True
        while fits and not self._is_same(misses, below(fits)):
            middle = (fits + misses) / 2
            found = self._any_at(middle)
            if found.runs:
                runs, fits = found.runs, self._time(found.runs, middle)
                continue
            misses = middle
            proven = proven and found.is_closed
            bound = middle if proven else bound
        return _Best(self.cheapest_at(fits).runs or runs, fits, fits, fits if proven else bound)

    def _any_at(self, target: float) -> CheapestPath:
        return any_path(self.times.least_units(target), self._limits)

    # ------------------------------------------------------------------ least price a sample

    def cheapest(self) -> _Best:
        """Returns the least price a sample."""
        best = _Best([], self.slowest, np.inf, np.inf)
        misses = 0.0  # no target up to this one fits
        unproven = np.inf  # the least bound where a path was left open
        first = self._bound(0.0, self.slowest, self.slowest * self._most)
        intervals = [(first, 0.0, self.slowest)]
        num_looked_at = 0
        while intervals and intervals[0][0] < best.loss * (1 - ROUNDING):
            bound, fast, slow = heapq.heappop(intervals)
            num_looked_at += 1
            if num_looked_at > MOST_INTERVALS:
                unproven = min(unproven, bound)
                break
            fast = max(fast, misses)
            if fast >= slow:
                continue
            found = self.cheapest_at(slow, below=best.loss / fast if fast else np.inf)
            if not found.is_closed:
                unproven = min(unproven, max(bound, fast * found.bound))
            if not found.runs:
                if np.isinf(found.bound):
                    misses = max(misses, slow)
                continue
            time = self._time(found.runs, slow)
            if time * found.cost < best.loss:
                best = _Best(found.runs, slow, time * found.cost, np.inf)
            # From `time` to `slow` nothing is cheaper than what was found.
            slow = below(time)
            if fast >= slow or self._is_same(fast, slow):
                continue
            middle = (fast + slow) / 2
            for ends in ((fast, middle), (middle, slow)):
                least = max(bound, ends[0] * found.bound, self._bound(*ends, best.loss))
                if least < best.loss * (1 - ROUNDING):
                    heapq.heappush(intervals, (least, *ends))
        return _Best(best.runs, best.target, best.loss, min(best.loss, unproven))

    def _bound(self, fast: float, slow: float, below: float) -> float:
        """Returns what targets in (fast, slow] times their prices an hour are no less than."""
        units = self.times.least_units(slow)
        possible = units < np.inf
        whole = fast / slow * np.where(possible, units, 0.0)
        split = np.where(possible, self.times.shares(slow), 0.0)
        worth = np.where(possible, np.maximum(whole, split), np.inf)
        return lower_bound(slow * self._price(worth), units, self._limits, below=below)
