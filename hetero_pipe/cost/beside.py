"""What work takes longer beside the other stages of a step than alone, from a job that ran.

Rates are measured in loops of one thing, which finds its rows and its code in caches and
its thread awake. In a job the same work takes a core 1.1 to 2.5 times as long. A job of
which the cost is known tells by how much, and the rate `beside` has it for all others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hetero_pipe.plan import Prediction

__all__ = ["OnCores", "beside_factors"]

LEAST, MOST = 0.5, 5.0
"""Times; what is beyond was disturbed."""

KERNELS = ("step", "rows")
"""What threads of the device take aside of a dense stage."""


@dataclass(frozen=True)
class OnCores:
    """Seconds of a step on cores, of a job with one worker that reads.

    Attributes:
        stages: Of the threads of its stages, by their names.
        workers: Of all threads of it, and of a dense worker.
        servers: Of one server, with all its threads.
    """

    stages: Mapping[str, float]
    workers: float
    servers: float = 0.0


def beside_factors(
    alone: Prediction, found: OnCores, *, call: float = 1.0
) -> Iterator[tuple[str, float]]:
    """Yields kinds of work, and how many times as long as alone they were on a core.

    With tables in the worker's process these are its stages. With a server, its calls and
    the server's work; with a dense worker, cuts: what is left over of all threads when the
    stages are known.

    Args:
        alone: Of that job, without any rate `beside`.
        found: What it took.
        call: The factor of calls, as a job without a dense worker has it.
    """
    for kind, factor in _factors(alone, found, call):
        yield kind, min(max(factor, LEAST), MOST)


def _factors(alone: Prediction, found: OnCores, call: float) -> Iterator[tuple[str, float]]:
    stages = {stage.name: stage for stage in alone.stages}

    def predicted(resource: str, *labels: str) -> float:
        parts = [part for stage in stages.values() for part in stage.whole_cost.parts]
        return sum(p.amount for p in parts if p.resource == resource and p.label in labels)

    dense = stages["dense"]
    aside = {part.label: part.amount for part in dense.aside.parts}
    yield "route", found.stages["route"] / stages["route"].cpu
    yield "dense", found.stages["dense"] / (dense.cpu + aside.get("look", 0.0))
    if not found.servers:
        for name in ("pull", "push"):
            yield name, found.stages[name] / stages[name].cpu
        return
    known = found.stages["route"] + found.stages["dense"]
    known += sum(aside.get(label, 0.0) for label in KERNELS)
    known += predicted("worker", "upload", "download")
    if dense.role == "whole":
        yield "call", (found.workers - known) / predicted("worker", "call")
        on_servers = sum(stage.whole_cost.on("server") for stage in stages.values())
        yield "server", found.servers / on_servers
        return
    known += call * predicted("worker", "call") + predicted("worker", "pool")
    yield "cut", (found.workers - known) / predicted("worker", "message")
