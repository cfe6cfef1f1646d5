"""Search: the best plan in some boxes, and a proof that no other is better.

Branch and bound, the most promising box first: one that promises no less than a plan that
was found is left aside, any other is parted. Where a throughput is required, a box is
shaved before it is parted, and its plan of the most of all is thinned, so that there is
soon a good plan to hold boxes against.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from hetero_pipe.plan import Plan
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.box import Box
from hetero_pipe.planner.judge import EQUAL, Judge
from hetero_pipe.planner.shave import shaved
from hetero_pipe.planner.strategy import Strategy
from hetero_pipe.planner.thin import thinned

__all__ = ["CLOSE", "Search"]

CLOSE = 0.01
"""Relative: how near to the best of its kind a plan must be that another kind beats."""

SPRINTERS, SPRINT = 8, 40
"""Boxes in which a plan that is fast enough is looked for first, and steps at the most."""


@dataclass
class Search:
    """Searches the boxes of one kind; holds what is left to search.

    Attributes:
        judge: Of plans and boxes.
        plan: The best found, not predicted; None so far.
        loss: Of it.
        left: Boxes, the most promising first: what they promise, a tie-break, the box,
            whether it is shaved.
        fastest: Samples a second of the fastest plan that was seen, if it was looked for.
    """

    judge: Judge
    plan: Plan | None = None
    loss: float = math.inf
    left: list[tuple[float, int, Box, bool]] = field(default_factory=list)
    fastest: float = 0.0

    def __post_init__(self) -> None:
        # Of equal boxes, the latest is taken first: it is the nearest to a single plan.
        self._order = count(0, -1)
        self._thinned: set[Strategy] = set()
        # Boxes before the first step, and their speed, if they are of any use.
        self._first: list[tuple[float, Box]] | None = [] if self.judge.aim.throughput else None

    @property
    def bound(self) -> float:
        """No plan of any box has a lower loss."""
        return min(self.left[0][0], self.loss) if self.left else self.loss

    @property
    def is_done(self) -> bool:
        """Whether no plan can be better than the one found."""
        return not self.left or self.left[0][0] >= self._below

    @property
    def is_close(self) -> bool:
        """Whether no plan can be much better than the one found."""
        return self.is_done or self.left[0][0] >= self.loss * (1 - CLOSE)

    @property
    def _below(self) -> float:
        """What a plan must be below to be better than the one found."""
        return self.loss * (1 - EQUAL)

    def add(self, boxes: Iterable[Box], *, is_shaved: bool = False) -> "Search":
        """Takes more boxes; returns itself."""
        for box in boxes:
            promise = self.judge.promise(box, below=self._below)
            if promise.loss >= self._below:
                continue
            if box.is_single:
                self.plan, self.loss = box.high(self.judge.model.workload.graph), promise.loss
                continue
            heapq.heappush(self.left, (promise.loss, next(self._order), box, is_shaved))
            if self._first is not None:
                self._first.append((promise.speed, box))
        return self

    def step(self) -> None:
        """Shaves the most promising box, or parts it."""
        if self._first is not None:
            self._sprint(self._first)
            self._first = None
        promise, _, box, is_shaved = heapq.heappop(self.left)
        if promise >= self._below:
            self.left.clear()  # nor is any other better than what was found
        elif box.undecided:
            self.add(box.parts([table.name for table in self.judge.model.workload.graph.tables]))
        elif self.judge.aim.throughput and not is_shaved:
            less = shaved(box, self.judge, below=self._below)
            self.add(() if less is None else (less,), is_shaved=True)
        else:
            self._look_into(box)
            self.add(box.parts([]))

    def look(self) -> None:
        """Tries a plan or two of the most promising box, if there is one."""
        if self.left and not self.left[0][2].undecided:
            self._look_into(self.left[0][2])

    def _look_into(self, box: Box) -> None:
        """Takes a plan that is often good; the fewest cost least, and the most are fastest."""
        graph, aim = self.judge.model.workload.graph, self.judge.aim
        self.take(box.low(graph) if aim.needs_prices else box.high(graph))
        if aim.throughput and box.strategy not in self._thinned:
            self._thinned.add(box.strategy)
            self._take_thinned(box.busiest(graph))

    def _take_thinned(self, plan: Plan) -> None:
        """Takes a plan if it is fast enough; where money counts, on few of its machines."""
        if not self.judge.aim.needs_prices:
            self.take(plan)
        elif math.isfinite(self.judge.loss(plan)):
            self.take(thinned(plan, self.judge))

    def _sprint(self, first: Sequence[tuple[float, Box]]) -> None:
        """Takes plans that are fast enough, if some are soon found: hardly any cheap box has one.

        Args:
            first: All boxes, and their speed.
        """
        graph, needed = self.judge.model.workload.graph, self.judge.aim.throughput
        if self.judge.aim.needs_prices:
            # What costs least for its speed if there is the most of it, does so with less, about.
            for _, box in heapq.nsmallest(SPRINTERS, first, key=self._price_by_speed):
                if not box.undecided:
                    self._take_thinned(box.busiest(graph))
        if self.plan is not None:
            return
        fastest = heapq.nlargest(SPRINTERS, first, key=lambda each: each[0])
        search = Search(Judge(self.judge.model, Aim())).add(box for _, box in fastest)
        for _ in range(SPRINT):
            if search.is_done or search.loss <= 1 / needed:
                break
            search.step()
        self.fastest = 1 / search.loss
        if search.plan is not None:
            self._take_thinned(search.plan)

    def _price_by_speed(self, first: tuple[float, Box]) -> float:
        speed, box = first
        most = replace(box, machines=tuple(numbers[-1:] for numbers in box.machines))
        return self.judge.price(most) / speed

    def take(self, plan: Plan) -> None:
        """Keeps a plan of one of the boxes if it is better than the best found."""
        loss = self.judge.loss(plan)
        if loss < self._below:
            self.plan, self.loss = plan, loss

    def predicted(self) -> Plan:
        """Returns the best plan found with its prediction."""
        assert self.plan is not None, "a plan was found"
        return replace(self.plan, predicted=self.judge.model.predict(self.plan))
