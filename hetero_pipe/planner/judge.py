"""Judge: which plans of a box are worth a look? Predicts them, one or all at once.

What a box promises is the loss of its floor, a prediction that no plan in it is better
than::

    floor(box) <= loss of each of its plans
    a box of one plan is predicted: its floor is its loss

Where money a sample counts, a box promises no less than what each host's machines
cost by themselves. Returns diminish: m machines of a host, all else at its most, give
no more samples for one of them than fewer would. So with m of at least `low`::

    price * m / throughput(m) >= price * low / throughput(low, the most of all others)

and the sum of that over hosts is a bound that does not depend on how large a plan is.
"""

import math
from dataclasses import dataclass

from hetero_pipe.cost import CostModel
from hetero_pipe.plan import Plan, Prediction
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.box import Box

__all__ = ["EQUAL", "Judge", "Promise", "can_run", "fits"]

EQUAL = 1e-9
"""Relative: losses this near are equal, for they are sums of rounded terms."""


@dataclass(frozen=True)
class Promise:
    """What no plan of a box is better than.

    Attributes:
        loss: As `Aim.loss`; that of a single plan; infinite if none can be taken.
        speed: Samples a second.
    """

    loss: float
    speed: float


NONE = Promise(math.inf, 0.0)


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

    def _speed(self, low: Plan, high: Plan) -> Prediction:
        """Returns a prediction that no plan between two is better than, but for memory."""
        self.num_predicted += 1
        return self.model.floor(low, high, is_speed_only=True)

    def _fits(self, low: Plan, high: Plan) -> bool:
        """Returns whether there may be memory enough for a plan between two."""
        return all(each.fits for each in self.model.memory_floor(low, high))

    def loss(self, plan: Plan) -> float:
        """Returns what shall be least, infinite for a plan that cannot be taken."""
        if not can_run(plan):
            return math.inf
        loss = self.aim.loss(self._speed(plan, plan))
        return loss if loss < math.inf and self._fits(plan, plan) else math.inf

    def promise(self, box: Box, *, below: float = math.inf) -> Promise:
        """Returns what no plan of a box is better than.

        Args:
            box: Of plans.
            below: A loss that is of no interest, nor is any above it: then it may be
                infinite, if that is found out sooner.
        """
        graph = self.model.workload.graph
        if self.aim.what == "money" and self.price(box) >= below:
            return NONE
        low, high = box.low(graph), box.high(graph)
        if box.is_single and not can_run(high):
            return NONE
        floor = self._speed(low, high)
        loss = self.aim.loss(floor)
        if loss >= below or not self._fits(low, high):
            return NONE
        if self.aim.what == "epoch" and not box.is_single:
            loss = max(loss, self._by_machines(box, low))
        return Promise(loss, floor.samples_per_second)

    def price(self, box: Box) -> float:
        """Returns the least money an hour of a plan of a box, which nothing is predicted for."""
        machines: dict[str, int] = {}
        for where, numbers in zip(box.strategy.where, box.machines, strict=True):
            # Roles share the machines of a host.
            machines[where.host] = max(machines.get(where.host, 0), numbers[0])
        return math.fsum(self._price_of(host) * number for host, number in machines.items())

    def _price_of(self, host: str) -> float:
        price = self.model.cluster.host(host).price_per_hour
        assert price is not None, "prices are asked for before plans are compared"
        return price

    def _by_machines(self, box: Box, low: Plan) -> float:
        graph = self.model.workload.graph
        of_host: dict[str, float] = {}
        for i, where in enumerate(box.strategy.where):
            fewest = box.with_machines(i, box.machines[i][:1])
            speed = self._speed(low, fewest.high(graph)).samples_per_second
            paid = self._price_of(where.host) / 3600 * box.machines[i][0] / speed
            # Roles share the machines of a host.
            of_host[where.host] = max(of_host.get(where.host, 0.0), paid)
        return math.fsum(of_host.values())


def can_run(plan: Plan) -> bool:
    """Returns whether each dense worker gets a batch of every step, where they step together."""
    dense = sum(each.count for each in plan.processes_of("dense"))
    return plan.workers.mode != "sync" or dense <= plan.workers.num_readers


def fits(prediction: Prediction, aim: Aim) -> bool:
    """Returns whether a plan has the memory and the throughput that it needs."""
    return prediction.fits and math.isfinite(aim.loss(prediction))
