"""Every plan of a space, one after another: what the planner is measured by."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from hetero_pipe.cost import CostModel
from hetero_pipe.plan import Plan, Prediction
from hetero_pipe.planner import Space, box_of, strategies


def every_plan(model: CostModel, space: Space) -> Iterator[Plan]:
    """Yields each plan of a space, with no thought for which may be good."""
    graph, cluster = model.workload.graph, model.cluster
    for strategy in strategies(space, cluster, graph):
        box = box_of(strategy, space, cluster, graph)
        roles = [where.role for where in strategy.where]
        homes = list(product(*(box.homes for _ in box.undecided)))
        numbers = [list(product(*each)) for each in zip(box.machines, box.per_machine, strict=True)]
        for of_tables, counts, staleness in product(homes, product(*numbers), box.staleness):
            decided = dict(strategy.homes) | dict(zip(box.undecided, of_tables, strict=True))
            ordered = tuple((table.name, decided[table.name]) for table in graph.tables)
            found = replace(strategy, homes=ordered).plan(
                graph, dict(zip(roles, counts, strict=True)), staleness=staleness
            )
            dense = sum(each.count for each in found.processes_of("dense"))
            if found.workers.mode != "sync" or dense <= found.workers.num_readers:
                yield found


def every_prediction(model: CostModel, space: Space) -> tuple[list[Prediction], int]:
    """Returns what the plans that fit are expected to do, and how many plans there are."""
    found, number = [], 0
    for plan in every_plan(model, space):
        number += 1
        prediction = model.predict(plan)
        if prediction.fits:
            found.append(prediction)
    return found, number
