"""Trainable: the cuts that a Trainer runs, and the best of them."""

from dataclasses import replace
from itertools import product

from hetero_pipe.errors import PlanError
from hetero_pipe.planner.layers.assignment import Assignment
from hetero_pipe.planner.layers.baseline import best_of
from hetero_pipe.planner.layers.objective import Objective, Solution
from hetero_pipe.planner.layers.stack import LayerStack

__all__ = ["is_trainable", "trainable"]


def is_trainable(stack: LayerStack, assignment: Assignment) -> bool:
    """Returns whether a Trainer runs a cut: tables on servers, and the dense part whole.

    So all sparse layers are on cores of one host, and all others on units of one type, which
    may be these cores. Or all are on one accelerator, in modes `cpu_only` and `gpu_only`: a
    Trainer shares no rows out over several.
    """
    kinds = {each.name: each.kind for each in stack.types}
    homes: dict[str, set[str]] = {"sparse": set(), "dense": set()}
    for layer, name in zip(stack.layers, assignment.types, strict=True):
        homes[layer.kind].add(name)
    if any(len(names) > 1 for names in homes.values()):
        return False
    if all(kinds[name] == "cpu" for name in homes["sparse"]):
        return True
    return len(assignment.stages) == 1 and assignment.stages[0].num_units == 1


def trainable(stack: LayerStack, objective: Objective) -> Solution:
    """Returns the best assignment whose cut a Trainer runs.

    Raises:
        PlanError: None of them is enough.
    """
    numbers = range(len(stack.types))
    cpus = [i for i in numbers if stack.types[i].kind == "cpu"]
    on_servers = [
        [cpu if layer.kind == "sparse" else other for layer in stack.layers]
        for cpu, other in product(cpus, numbers)
    ]
    alone = replace(stack, types=tuple(replace(each, count=1) for each in stack.types))
    on_one = [[i] * len(stack.layers) for i in numbers if i not in cpus]
    found = []
    reason = None
    for some, candidates in ((stack, on_servers), (alone, on_one)):
        try:
            found.append(best_of(some, objective, candidates))
        except PlanError as error:
            reason = reason or error
    if not found:
        assert reason is not None, "one of two has failed"
        raise reason
    return min(found, key=lambda solution: solution.loss)
