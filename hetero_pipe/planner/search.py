"""Search: the best plan in some boxes, and a proof that no other is better.

Branch and bound, the most promising box first. What a box promises is the loss of
its floor, a prediction that no plan in it is better than; a box whose floor does
not fit, or is no better than a plan that was found, is left aside::

    floor(box) <= loss of each of its plans
    a box of one plan is predicted: its floor is its loss

Where money a sample counts, a box promises no less than what each host's machines
cost by themselves. Returns diminish: m machines of a host, all else at its most, give
no more samples for one of them than fewer would. So with m of at least `low`::

    price * m / throughput(m) >= price * low / throughput(low, the most of all others)

and the sum of that over hosts is a bound that does not depend on how large a plan is.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

from hetero_pipe.cost import CostModel
from hetero_pipe.plan import Plan, Prediction
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.box import Box

__all__ = ["CLOSE", "EQUAL", "Judge", "Search", "fits"]

EQUAL = 1e-9
"""Relative: losses this near are equal, for they are sums of rounded terms."""

CLOSE = 0.01
"""Relative: how near to the best of its kind a plan must be that another kind beats."""


@dataclass
class Judge:
    """Predicts plans and boxes, and counts how many.

    Attributes:
        model: Predicts.
        aim: Says which plan is better.
        num_predicted: So far.
    """

    model: CostModel
    aim: Aim
    num_predicted: int = 0

    def predict(self, plan: Plan) -> Prediction:
        """Returns what a plan is expected to do."""
        return self.floor(plan, plan)

    def floor(self, low: Plan, high: Plan) -> Prediction:
        """Returns a prediction that no plan between two is better than."""
        self.num_predicted += 1
        return self.model.floor(low, high)

    def loss(self, plan: Plan) -> float:
        """Returns what shall be least, infinite for a plan that cannot be taken."""
        if not can_run(plan):
            return math.inf
        prediction = self.predict(plan)
        return self.aim.loss(prediction) if prediction.fits else math.inf

    def promise(self, box: Box) -> float:
        """Returns a loss that no plan of a box is below; that of a single plan."""
        graph = self.model.workload.graph
        low, high = box.low(graph), box.high(graph)
        if box.is_single:
            return self.loss(high)
        floor = self.floor(low, high)
        if not floor.fits:
            return math.inf
        loss = self.aim.loss(floor)
        if self.aim.what == "epoch" and loss < math.inf:
            loss = max(loss, self._by_machines(box, low))
        return loss

    def _by_machines(self, box: Box, low: Plan) -> float:
        graph, cluster = self.model.workload.graph, self.model.cluster
        of_host: dict[str, float] = {}
        for i, where in enumerate(box.strategy.where):
            fewest = box.with_machines(i, box.machines[i][:1])
            speed = self.floor(low, fewest.high(graph)).samples_per_second
            price = cluster.host(where.host).price_per_hour
            assert price is not None, "prices are asked for before plans are compared"
            paid = price / 3600 * box.machines[i][0] / speed
            # Roles share the machines of a host.
            of_host[where.host] = max(of_host.get(where.host, 0.0), paid)
        return math.fsum(of_host.values())


@dataclass
class Search:
    """Searches the boxes of one kind; holds what is left to search.

    Attributes:
        judge: Of plans and boxes.
        plan: The best found, not predicted; None so far.
        loss: Of it.
        left: Boxes, the most promising first: what they promise, a tie-break, the box.
    """

    judge: Judge
    plan: Plan | None = None
    loss: float = math.inf
    left: list[tuple[float, int, Box]] = field(default_factory=list)

    def __post_init__(self) -> None:
        # Of equal boxes, the latest is taken first: it is the nearest to a single plan.
        self._order = count(0, -1)

    @property
    def bound(self) -> float:
        """No plan of any box has a lower loss."""
        return min(self.left[0][0], self.loss) if self.left else self.loss

    @property
    def is_done(self) -> bool:
        """Whether no plan can be better than the one found."""
        return not self.left or self.left[0][0] >= self.loss * (1 - EQUAL)

    @property
    def is_close(self) -> bool:
        """Whether no plan can be much better than the one found."""
        return self.is_done or self.left[0][0] >= self.loss * (1 - CLOSE)

    def add(self, boxes: Iterable[Box]) -> "Search":
        """Takes more boxes; returns itself."""
        for box in boxes:
            promise = self.judge.promise(box)
            if promise >= self.loss * (1 - EQUAL):
                continue
            if box.is_single:
                self.plan, self.loss = box.high(self.judge.model.workload.graph), promise
            else:
                heapq.heappush(self.left, (promise, next(self._order), box))
        return self

    def take(self, plan: Plan) -> None:
        """Keeps a plan of one of the boxes if it is better than the best found."""
        loss = self.judge.loss(plan)
        if loss < self.loss * (1 - EQUAL):
            self.plan, self.loss = plan, loss

    def step(self) -> None:
        """Parts the most promising box."""
        _, _, box = heapq.heappop(self.left)
        graph = self.judge.model.workload.graph
        if not box.undecided:
            # A plan that is often good; the fewest cost least, and the most are fastest.
            corner = box.low(graph) if self.judge.aim.needs_prices else box.high(graph)
            self.take(corner)
        self.add(box.parts([table.name for table in graph.tables]))

    def predicted(self) -> Plan:
        """Returns the best plan found with its prediction."""
        assert self.plan is not None, "a plan was found"
        return replace(self.plan, predicted=self.judge.model.predict(self.plan))


def can_run(plan: Plan) -> bool:
    """Returns whether each dense worker gets a batch of every step, where they step together."""
    dense = sum(each.count for each in plan.processes_of("dense"))
    return plan.workers.mode != "sync" or dense <= plan.workers.num_readers


def fits(prediction: Prediction, aim: Aim) -> bool:
    """Returns whether a plan has the memory and the throughput that it needs."""
    return prediction.fits and math.isfinite(aim.loss(prediction))
