"""Brute force: predicts every plan of a space, one after another."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from hetero_pipe.cost import CostModel
from hetero_pipe.plan import Plan, Prediction
from hetero_pipe.planner import Box, Space, box_of, strategies


def every_prediction(model: CostModel, space: Space) -> list[Prediction]:
    """Returns what is expected of each plan that can run and fits."""
    graph, cluster = model.workload.graph, model.cluster
    found = []
    for strategy in strategies(space, cluster, graph):
        for plan in every_plan(box_of(strategy, space, cluster, graph), model):
            dense = sum(each.count for each in plan.processes_of("dense"))
            if plan.workers.mode == "sync" and dense > plan.workers.num_readers:
                continue  # a dense worker would have no batch
            prediction = model.predict(plan)
            if prediction.fits:
                found.append(prediction)
    return found


def every_plan(box: Box, model: CostModel) -> Iterator[Plan]:
    """Yields each plan of a box, by all its numbers and homes."""
    graph, strategy = model.workload.graph, box.strategy
    names = [table.name for table in graph.tables]
    for homes in product(box.homes, repeat=len(box.undecided)):
        of = dict(strategy.homes) | dict(zip(box.undecided, homes, strict=True))
        decided = replace(strategy, homes=tuple((name, of[name]) for name in names))
        for machines, per_machine in product(_each(box.machines), _each(box.per_machine)):
            counts = {
                where.role: numbers
                for where, *numbers in zip(strategy.where, machines, per_machine, strict=True)
            }
            for staleness in box.staleness:
                yield decided.plan(
                    graph, {role: tuple(n) for role, n in counts.items()}, staleness=staleness
                )


def _each(ranges: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    return product(*ranges)
