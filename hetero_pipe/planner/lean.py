"""Lean: of plans that are equally good, the one that takes least."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hetero_pipe.cost import CostModel
from hetero_pipe.plan import Plan, StagePlan
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.box import doublings
from hetero_pipe.planner.judge import EQUAL, can_run, fits

__all__ = ["lean", "with_processes"]


def lean(plan: Plan, model: CostModel, aim: Aim, *, min_staleness: int = 0) -> Plan:
    """Returns a plan that is no worse with less staleness, fewer machines, fewer processes.

    Each number in turn is taken down as far as nothing is lost; another order could
    end elsewhere.
    """
    loss = aim.loss(model.predict(plan))

    def is_no_worse(found: Plan) -> bool:
        if not can_run(found):
            return False
        prediction = model.predict(found)
        return fits(prediction, aim) and aim.loss(prediction) <= loss * (1 + EQUAL)

    def least(choices: Sequence[int], made: Callable[[int], Plan]) -> Plan:
        return next(
            (found for each in choices if is_no_worse(found := made(each))), made(choices[-1])
        )

    plan = least(
        range(min(min_staleness, plan.staleness), plan.staleness + 1),
        lambda staleness: _stale(plan, staleness),
    )
    for i, processes in enumerate(plan.processes):
        # By halves, then by ones: a thousand machines are not tried each.
        machines = processes.machines
        while machines > 1 and is_no_worse(with_processes(plan, i, machines=(machines + 1) // 2)):
            machines = (machines + 1) // 2
        while machines > 1 and is_no_worse(with_processes(plan, i, machines=machines - 1)):
            machines -= 1
        plan = with_processes(plan, i, machines=machines)
        per = doublings(processes.per_machine)
        plan = least(per, partial(_with_per_machine, plan, i))
    return replace(plan, predicted=model.predict(plan))


def _stale(plan: Plan, staleness: int) -> Plan:
    stages = tuple(
        StagePlan(s.name, s.device, 1 + staleness if s.name == "pull" else s.capacity, s.layers)
        for s in plan.stages
    )
    return replace(plan, staleness=staleness, stages=stages)


def _with_per_machine(plan: Plan, index: int, per_machine: int) -> Plan:
    return with_processes(plan, index, per_machine=per_machine)


def with_processes(
    plan: Plan, index: int, *, machines: int | None = None, per_machine: int | None = None
) -> Plan:
    """Returns the plan with another number of one role's processes."""
    before = plan.processes[index]
    changed = replace(
        before,
        machines=machines or before.machines,
        per_machine=per_machine or before.per_machine,
    )
    processes = (*plan.processes[:index], changed, *plan.processes[index + 1 :])
    workers = plan.workers
    if changed.role in ("whole", "sparse"):
        workers = replace(workers, num_readers=changed.count)
    return replace(plan, processes=processes, workers=workers)
