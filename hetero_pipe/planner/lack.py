"""Lack: what a kind of plan has too little of, and by how much."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hetero_pipe.cost import CostModel
from hetero_pipe.graph import Graph
from hetero_pipe.plan import MemoryPrediction, Plan
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.box import Box
from hetero_pipe.planner.search import Judge, Search
from hetero_pipe.units import format_bytes

__all__ = ["Lack", "fastest", "lack_of", "reaches", "roomiest"]


@dataclass(frozen=True)
class Lack:
    """Why no plan of some boxes can be taken.

    Attributes:
        plan: The one that lacks least, predicted.
        ratio: What is needed by what there is.
        text: That, for people.
        memory: What is full; None if there is memory enough, and the plan is too slow.
    """

    plan: Plan
    ratio: float
    text: str
    memory: MemoryPrediction | None = None


def lack_of(boxes: Sequence[Box], model: CostModel, aim: Aim) -> Lack:
    """Returns what some boxes have too little of: speed if one of their plans fits, else memory."""
    found = fastest(boxes, model)
    if found is not None:
        assert found.predicted is not None
        speed = found.predicted.samples_per_second
        text = (
            f"{speed:,.0f} samples/s of the required {aim.throughput:,.0f} are the most; "
            f"{found.predicted.bottleneck} bounds it"
        )
        return Lack(found, aim.throughput / speed, text)
    graph = model.workload.graph
    plans = [roomiest(box, graph) for box in boxes]
    lacks = [_memory_lack(replace(plan, predicted=model.predict(plan))) for plan in plans]
    return min(lacks, key=lambda lack: lack.ratio)


def fastest(boxes: Iterable[Box], model: CostModel) -> Plan | None:
    """Returns a plan within 1% of the fastest of some boxes, predicted; None if none fits."""
    search = Search(Judge(model, Aim())).add(boxes)
    while not search.is_close:
        search.step()
    return None if search.plan is None else search.predicted()


def reaches(boxes: Iterable[Box], model: CostModel, speed: float) -> bool:
    """Returns whether a plan of some boxes fits and trains so many samples a second."""
    search = Search(Judge(model, Aim())).add(boxes)
    while search.left and search.loss > 1 / speed and search.bound <= 1 / speed:
        search.step()
    return search.loss <= 1 / speed


def roomiest(box: Box, graph: Graph) -> Plan:
    """Returns the plan of a box that needs the least memory of each machine.

    It has the most machines, the fewest processes on each, and the least staleness;
    tables without a home are on servers.
    """
    homes = tuple((table.name, "host") for table in graph.tables)
    box = replace(
        box,
        strategy=replace(box.strategy, homes=box.strategy.homes or homes),
        machines=tuple(each[-1:] for each in box.machines),
        per_machine=tuple(each[:1] for each in box.per_machine),
        staleness=box.staleness[:1],
        undecided=(),
    )
    return box.low(graph)


def _memory_lack(plan: Plan) -> Lack:
    assert plan.predicted is not None
    worst = max(plan.predicted.memory, key=lambda each: each.peak.total / each.capacity)
    largest = max(worst.peak.parts, key=lambda part: part.amount)
    need = worst.peak.total
    text = (
        f"{largest.label} ({format_bytes(largest.amount)}) does not fit: "
        f"{worst.host}/{worst.device} needs {format_bytes(need)} and has "
        f"{format_bytes(worst.capacity)}, {format_bytes(need - worst.capacity)} too little"
    )
    return Lack(plan, need / worst.capacity, text, worst)
