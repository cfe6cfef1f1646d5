"""Thin: a plan that does what is required on fewer machines, if not on the fewest."""

import math
from functools import partial

from hetero_pipe.plan import Plan
from hetero_pipe.planner.judge import Judge
from hetero_pipe.planner.lean import with_processes
from hetero_pipe.planner.least import least

__all__ = ["thinned"]


def thinned(plan: Plan, judge: Judge) -> Plan:
    """Returns a plan on fewer machines, if one that can be taken is given.

    Of each role in turn, those on the dearest machines first, it has as few machines as
    will do with what there is of the others.
    """
    cluster = judge.model.cluster

    def does(index: int, plan: Plan, machines: int) -> bool:
        return math.isfinite(judge.loss(with_processes(plan, index, machines=machines)))

    prices = [cluster.host(each.host).price_per_hour or 0.0 for each in plan.processes]
    for index in sorted(range(len(prices)), key=lambda i: -prices[i]):
        machines = least(plan.processes[index].machines - 1, partial(does, index, plan))
        if machines is not None:
            plan = with_processes(plan, index, machines=machines)
    return plan
