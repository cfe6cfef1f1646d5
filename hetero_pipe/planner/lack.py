"""Lack: what a kind of plan has too little of, and by how much."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hetero_pipe.cost import CostModel
from hetero_pipe.graph import Graph
from hetero_pipe.plan import MemoryPrediction, Plan
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.box import Box
from hetero_pipe.planner.judge import Judge
from hetero_pipe.planner.search import Search
from hetero_pipe.planner.watch import Watch
from hetero_pipe.units import format_bytes

__all__ = ["Lack", "lack_of", "reaches", "roomiest"]


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


def lack_of(boxes: Sequence[Box], model: CostModel, aim: Aim, watch: Watch) -> Lack:
    """Returns what some boxes have too little of: speed if one of their plans fits, else memory.

    The fastest plan is looked for to within 1%, or as long as there is time.
    """
    search = Search(Judge(model, Aim())).add(boxes)
    while not search.is_close and not watch.is_over:
        search.step()
        watch.tell("what is lacking", search.judge, (search,))
    roomy = [roomiest(box, model.workload.graph) for box in boxes]
    for plan in roomy if search.left else ():
        search.take(plan)  # out of time: one of these fits if any plan does
    if search.plan is None:
        lacks = [_memory_lack(replace(plan, predicted=model.predict(plan))) for plan in roomy]
        return min(lacks, key=lambda lack: lack.ratio)
    found = search.predicted()
    assert found.predicted is not None
    speed = found.predicted.samples_per_second
    text = (
        f"{speed:,.0f} samples/s of the required {aim.throughput:,.0f} are the most"
        f"{'' if search.is_close else ' that were found'}; {found.predicted.bottleneck} bounds it"
    )
    return Lack(found, aim.throughput / speed, text)


def reaches(boxes: Iterable[Box], model: CostModel, speed: float, watch: Watch) -> bool:
    """Returns whether a plan of some boxes fits and trains so many samples a second.

    If there is no time to find one, it is taken for not there.
    """
    search = Search(Judge(model, Aim(throughput=speed))).add(boxes)
    while search.left and search.plan is None and not watch.is_over:
        search.step()
        watch.tell("what would do", search.judge, (search,))
    return search.plan is not None


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
