"""The cheapest way through the layers that uses no more units than there are.

A way is a path from the first layer's front to the last one's back; each step of
it is a stage, and two steps in a row are of different types. Without limits that
is a shortest path. With a limit for each type it is NP-hard, so a bound is
proven in three ways, one after the other:

1. Lagrange: units are given a fee, and each step costs its fee too. For any fees
   the cheapest path, less the fees for all units there are, costs no more than
   the best path within the limits. Subgradient steps look for the fees that tell most.
2. Worths: units are worth something, and all that there are are worth 1. A path within the
   limits is worth no more, so one that has come so far that it must be worth more is none.
3. Labels: paths from the front are grown step by step. One is dropped if it
   cannot lead to a better end, by the bound with the best fees of 1, if it cannot
   end within the limits, by the worths of 2, or if another that has come as far, by the
   same type, costs and uses no more. If they become too many, those of the least
   bound are kept, and the least bound of the others is remembered: the best path
   found is the best there is if it costs no more than that. Else the same is done
   again with room for more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.planner.layers.assignment import Run
from hetero_pipe.planner.layers.stage_times import Floats

__all__ = ["CheapestPath", "any_path", "cheapest_path", "lower_bound"]

ROUNDING = 1e-12  # relative: what sums in another order may differ by
NUM_ROUNDS = 24  # in which fees, and worths, are looked for
NUM_WORTHS = 8  # that labels are held against
NUM_RIVALS = 300  # of each type that labels are compared with
WIDTHS = (64, 1024, 8192)  # labels kept at a boundary


@dataclass(frozen=True)
class CheapestPath:
    """What was found.

    Attributes:
        runs: The stages of the cheapest path found; empty if there is none.
        cost: Of it; infinite if there is none.
        bound: No path within the limits that costs less than was asked for costs less than this.
        is_closed: Whether the search was whole: nothing is better, or there is nothing.
    """

    runs: list[Run]
    cost: float
    bound: float
    is_closed: bool


def cheapest_path(
    costs: Floats,
    uses: Floats,
    limits: Floats,
    *,
    below: float,
    num_rounds: int = NUM_ROUNDS,
) -> CheapestPath:
    """Returns the cheapest path whose uses of each type sum up to no more than its limit.

    Args:
        costs: Of a stage, `[first, end, type]`; infinite where there is none.
        uses: Units of its type.
        limits: Units there are, `[types]`, each at least 1.
        below: Finite; a path that does not cost less is not looked for.
        num_rounds: In which fees, and worths, are looked for, at least 1; labels do the rest.
    """
    return _Search(costs, uses, limits, below, num_rounds=num_rounds).run()


def any_path(uses: Floats, limits: Floats) -> CheapestPath:
    """Returns a path whose uses of each type sum up to no more than its limit; costs are 0.

    Without costs fees alone tell: if for some fees each path pays more than all units there are
    cost, there is none.
    """
    costs = np.where(uses <= limits, 0.0, np.inf)
    return _Search(costs, uses, limits, ROUNDING * 1e3, aim=1.0).run()


def lower_bound(costs: Floats, uses: Floats, limits: Floats, *, below: float) -> float:
    """Returns what no path within the limits costs less than; quickly, so perhaps too little.

    It need not be told above `below`.
    """
    search = _Search(costs, uses, limits, below)
    search.find_fees()
    return search.bound


class _Search:
    """One search. Types are numbered; the number behind the last means that no step was taken.

    Attributes:
        best: The cheapest path met that costs less than was asked for, and its cost; at
            first none, and what was asked for.
        bound: No path within the limits that costs less than `best` costs less than this.
    """

    def __init__(
        self,
        costs: Floats,
        uses: Floats,
        limits: Floats,
        below: float,
        *,
        aim: float = 0.0,
        num_rounds: int = NUM_ROUNDS,
    ) -> None:
        self._limits = limits
        self._num_rounds = num_rounds
        self._aim = aim  # what the bound is raised to, at least
        self._num_types = len(limits)
        self._num_layers = len(costs) - 1
        is_stage = (uses <= limits) & (costs < np.inf)
        self._costs = np.where(is_stage, costs, np.inf)
        self._uses = np.where(is_stage, uses, 0.0)
        self._fees = np.zeros(self._num_types)
        self._rest = np.zeros((0, 0))  # of `_completions`, with these fees
        self._worths = np.zeros((self._num_types, 0))  # several, `[types, n]`
        self._worth_rest = np.zeros((self._num_layers + 1, self._num_types + 1, 0))
        self.best: tuple[float, list[Run]] = (below, [])
        self.bound = -np.inf

    def run(self) -> CheapestPath:
        self.find_fees()
        if not self._is_closed():
            self._find_worths()
            self.find_fees()
        for width in WIDTHS:
            if self._is_closed():
                break
            self.bound = max(self.bound, min(self._grow(width), self.best[0]))
        cost, runs = self.best
        return CheapestPath(
            runs, cost if runs else np.inf, min(self.bound, cost), self._is_closed()
        )

    def _is_closed(self) -> bool:
        return self.bound >= self.best[0] * (1 - ROUNDING)

    # ------------------------------------------------------------------ fees

    def find_fees(self) -> None:
        """Raises the bound, as far as fees can, and meets paths within the limits on the way."""
        fees, scale = self._fees, 1.0
        for _ in range(self._num_rounds):
            costs = self._costs + fees * self._uses
            rest = self._completions(costs)
            bound = float(rest[0, -1] - fees @ self._limits)
            if bound > self.bound:
                self.bound, self._fees, self._rest = bound, fees, rest
            else:
                scale *= 0.7
            if np.isinf(bound):
                return  # no path, whatever the limits
            runs = self._walk(costs, rest)
            cost, used = self._total(runs)
            if (used <= self._limits).all() and cost < self.best[0]:
                self.best = (cost, runs)
            slope = (used - self._limits) / self._limits
            if self._is_closed() or not slope.any():
                return
            self._drop_through(costs, rest, most=self.best[0] + float(fees @ self._limits))
            # Polyak's step, as if the best path's cost could be reached.
            step = scale * (max(self.best[0], self._aim) - bound) / (slope @ slope)
            fees = np.maximum(fees + step * slope / self._limits, 0)

    def _find_worths(self) -> None:
        """Finds what units are worth, so that what all there are are worth is spent soonest.

        Worths of all units there are sum up to 1: a path within the limits is worth no more, and
        a stage through which every path is worth more is dropped. A type that the least worthy
        path overspends gains worth (multiplicative weights).
        """
        shares = np.full(self._num_types, 1 / self._num_types)
        found: list[tuple[float, Floats, Floats]] = []
        for _ in range(self._num_rounds):
            worths = shares / self._limits
            spent = np.where(self._costs < np.inf, worths * self._uses, np.inf)
            rest = self._completions(spent)
            least = float(rest[0, -1])
            if least > 1 + ROUNDING:
                self.bound = np.inf  # each path is worth more than all units
                return
            found.append((least, worths, rest))
            self._drop_through(spent, rest, most=1 + ROUNDING)
            _, used = self._total(self._walk(spent, rest))
            shares = shares * np.exp(2 * (used / self._limits - least))
            shares = shares / shares.sum()
        found.sort(key=lambda each: -each[0])
        self._worths = np.stack([worths for _, worths, _ in found[:NUM_WORTHS]], axis=1)
        self._worth_rest = np.stack([rest for _, _, rest in found[:NUM_WORTHS]], axis=2)

    def _drop_through(self, costs: Floats, rest: Floats, *, most: float) -> None:
        """Drops the stages through which every path costs more than the most.

        What leads up to a stage costs at least what it does seen from the back.
        """
        front = self._completions(costs[::-1, ::-1].swapaxes(0, 1))[::-1]
        through = front[:, None, :-1] + costs + rest[None, :, :-1]
        self._costs = np.where(through <= most, self._costs, np.inf)

    def _completions(self, costs: Floats) -> Floats:
        """Returns what the rest costs at least, `[boundary, type of the step before]`."""
        num_layers, num_types = self._num_layers, self._num_types
        rest = np.full((num_layers + 1, num_types + 1), np.inf)
        rest[num_layers] = 0.0
        for first in range(num_layers - 1, -1, -1):
            by_type = (costs[first, first + 1 :] + rest[first + 1 :, :num_types]).min(axis=0)
            cheapest = by_type.argmin()
            rest[first] = by_type[cheapest]
            by_type[cheapest] = np.inf
            rest[first, cheapest] = by_type.min()
        return rest

    def _walk(self, costs: Floats, rest: Floats) -> list[Run]:
        """Returns the cheapest path, along what `_completions` has found."""
        runs: list[Run] = []
        first, last = 0, self._num_types
        while first < self._num_layers:
            options = costs[first, first + 1 :] + rest[first + 1 :, : self._num_types]
            if last < self._num_types:
                options[:, last] = np.inf
            step, last = divmod(int(options.argmin()), self._num_types)
            runs.append((first, first + 1 + step, last))
            first += 1 + step
        return runs

    def _total(self, runs: Sequence[Run]) -> tuple[float, Floats]:
        used = np.zeros(self._num_types)
        for run in runs:
            used[run[2]] += self._uses[run]
        return float(sum(self._costs[run] for run in runs)), used

    # ------------------------------------------------------------------ labels

    def _grow(self, width: int) -> float:
        """Grows labels over all boundaries; returns the least bound of those left behind."""
        arrived: list[list[_Labels]] = [[] for _ in range(self._num_layers)]
        arrived[0].append(_Labels.start(self._num_types))
        kept: list[_Labels] = []
        lost = np.inf
        for boundary in range(self._num_layers):
            labels = _Labels.join(arrived[boundary], self._num_types)
            bounds = self._bounds(labels, boundary)
            order = np.argsort(bounds, kind="stable")
            order = order[bounds[order] < self.best[0]]
            if len(order) > 4 * width:  # to compare all with all would take long
                lost = min(lost, float(bounds[order[4 * width]]))
                order = order[: 4 * width]
            order = order[labels.pick(order).undominated()]
            if len(order) > width:
                lost = min(lost, float(bounds[order[width]]))
            kept.append(labels.pick(order[:width]))
            for end in range(boundary + 1, self._num_layers + 1):
                for number in np.flatnonzero(self._costs[boundary, end] < np.inf):
                    grown = self._step(kept[-1], (boundary, end, int(number)))
                    if end < self._num_layers:
                        arrived[end].append(grown)
                    elif grown.costs.min(initial=np.inf) < self.best[0]:
                        at = int(grown.costs.argmin())
                        self.best = (float(grown.costs[at]), _trace(kept, grown, at, end))
        return lost

    def _step(self, labels: "_Labels", run: Run) -> "_Labels":
        """Returns the labels that a stage leads on to, but for those that are of no use."""
        first, end, number = run
        at = np.flatnonzero(labels.ends[:, 1] != number)
        used = labels.used[at].copy()
        used[:, number] += self._uses[run]
        ends = np.empty((len(at), 3), np.int64)
        ends[:, 0], ends[:, 1], ends[:, 2] = first, number, at
        grown = _Labels(labels.costs[at] + self._costs[run], used, ends)
        useful = self._bounds(grown, end) < self.best[0]
        worth = used @ self._worths + self._worth_rest[end, number]
        useful &= (worth <= 1 + ROUNDING).all(axis=1)
        return grown.pick(np.flatnonzero(useful & (used[:, number] <= self._limits[number])))

    def _bounds(self, labels: "_Labels", boundary: int) -> Floats:
        """Returns what a path that begins as a label costs at least, `[n]`."""
        rest = self._rest[boundary, labels.ends[:, 1]]
        bounds: Floats = labels.costs + (labels.used - self._limits) @ self._fees + rest
        return bounds


@dataclass(frozen=True)
class _Labels:
    """Paths from the front to one boundary.

    Attributes:
        costs: `[n]`.
        used: Units of each type, `[n, types]`.
        ends: Of the last step: the boundary where it began, its type, and which of the labels
            kept there it continues, `[n, 3]`.
    """

    costs: Floats
    used: Floats
    ends: NDArray[np.int64]

    @staticmethod
    def start(num_types: int) -> "_Labels":
        return _Labels(np.zeros(1), np.zeros((1, num_types)), np.array([[0, num_types, 0]]))

    @staticmethod
    def join(parts: Sequence["_Labels"], num_types: int) -> "_Labels":
        if not parts:
            return _Labels.start(num_types).pick(np.zeros(0, np.int64))
        return _Labels(
            np.concatenate([part.costs for part in parts]),
            np.concatenate([part.used for part in parts]),
            np.concatenate([part.ends for part in parts]),
        )

    def pick(self, at: NDArray[np.int64]) -> "_Labels":
        return _Labels(self.costs[at], self.used[at], self.ends[at])

    def undominated(self) -> NDArray[np.bool_]:
        """Returns which labels no other of the same last type matches in cost and in each use."""
        keep = np.ones(len(self.costs), bool)
        for number in np.unique(self.ends[:, 1]):
            at = np.flatnonzero(self.ends[:, 1] == number)
            at = at[np.lexsort((*self.used[at].T, self.costs[at]))]
            points = np.column_stack([self.costs[at], self.used[at]])
            alive = np.ones(len(at), bool)
            for i in range(min(len(at), NUM_RIVALS)):
                if alive[i]:
                    alive[i + 1 :] &= ~(points[i + 1 :] >= points[i]).all(axis=1)
            keep[at] = alive
        return keep


def _trace(kept: Sequence[_Labels], last: _Labels, at: int, end: int) -> list[Run]:
    """Returns the steps that led to one of the labels behind the last layer, from the front."""
    runs: list[Run] = []
    labels = last
    while end:
        first, number, at = map(int, labels.ends[at])
        runs.append((first, end, number))
        labels, end = kept[first], first
    return runs[::-1]
