"""Remedies: what to change so that a plan fits, each of them tried by predicting it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hetero_pipe.cluster import Cluster, Host
from hetero_pipe.cost import CostModel
from hetero_pipe.errors import ConfigError
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.box import Box, box_of
from hetero_pipe.planner.lack import Lack, lack_of, reaches, roomiest
from hetero_pipe.planner.least import least
from hetero_pipe.planner.space import PLANNED_MODES, Space
from hetero_pipe.planner.strategy import strategies
from hetero_pipe.planner.watch import Watch
from hetero_pipe.units import GiB, format_bytes

__all__ = ["Remedy", "told_remedies"]

MOST = 1024
"""Machines that are added at the most."""


@dataclass(frozen=True)
class Remedy:
    """A change after which a plan fits and is fast enough.

    Attributes:
        text: What to change.
        money: An hour, more than before; None is not known.
    """

    text: str
    money: float | None


@dataclass(frozen=True)
class _Problem:
    """What is planned, which a remedy changes."""

    model: CostModel
    space: Space
    aim: Aim
    watch: Watch

    def has_plan(self) -> bool:
        """Returns whether a plan fits and is fast enough, and is found in time."""
        if self.watch.is_over:
            return False
        cluster, graph = self.model.cluster, self.model.workload.graph
        boxes = [
            box_of(each, self.space, cluster, graph)
            for each in strategies(self.space, cluster, graph)
        ]
        if not self.aim.throughput:  # the roomiest plan of a box fits if any of it does
            return any(self.model.predict(roomiest(box, graph)).fits for box in boxes)
        return reaches(boxes, self.model, self.aim.throughput, self.watch)

    def with_cluster(self, cluster: Cluster) -> "_Problem":
        return replace(self, model=CostModel(cluster, self.model.workload, self.model.constants))

    def with_machines(self, name: str, count: int) -> "_Problem":
        cluster = self.model.cluster
        hosts = tuple(
            replace(host, count=count, addresses=()) if host.name == name else host
            for host in cluster.hosts
        )
        return self.with_cluster(replace(cluster, hosts=hosts))

    def unit_of(self, name: str) -> int | None:
        """Returns in what numbers machines can be added; None if links join none of them.

        Links may join them in equal parts only, and a host that is alone has none.
        """
        count = self.model.cluster.host(name).count
        for unit in (1, count):
            try:
                self.with_machines(name, count + unit)
            except ConfigError:
                continue
            return unit
        return None

    def with_memory(self, name: str, device: str, memory: int) -> "_Problem":
        cluster = self.model.cluster
        devices = tuple(
            replace(each, memory=memory) if each.name == device else each
            for each in cluster.host(name).devices
        )
        hosts = tuple(
            replace(host, devices=devices) if host.name == name else host for host in cluster.hosts
        )
        return self.with_cluster(replace(cluster, hosts=hosts))

    def with_dim(self, name: str, dim: int) -> "_Problem":
        workload = self.model.workload
        tables = tuple(
            replace(table, dim=dim) if table.name == name else table
            for table in workload.graph.tables
        )
        changed = replace(workload, graph=replace(workload.graph, tables=tables))
        return replace(self, model=CostModel(self.model.cluster, changed, self.model.constants))


def told_remedies(
    model: CostModel, space: Space, aim: Aim, kinds: Sequence[Sequence[Box]], *, watch: Watch
) -> str:
    """Returns what is lacking where no plan can be taken, and what would mend it.

    Args:
        model: Judges the plans.
        space: In which there is none.
        aim: What it must reach.
        kinds: The boxes of each kind of plan.
        watch: Half of its time is for what is lacking.
    """
    if not kinds and space.hosts:
        return (
            "a plan gives each host that must have one a role, got no way to do so with the hosts "
            f"{', '.join(space.hosts)}; ask for fewer, or allow other modes and splits"
        )
    if not kinds:
        return (
            f"a plan needs a device that its mode may use, got modes {', '.join(space.modes)} on "
            f"hosts with {_devices(model.cluster)}; allow other modes, one of "
            f"{', '.join(PLANNED_MODES)}"
        )
    half = watch.shortened(watch.left / 2)
    lacks = [lack_of(boxes, model, aim, half) for boxes in kinds]
    # What fits but is slow is nearer than what does not fit.
    nearest = min(lacks, key=lambda lack: (lack.memory is not None, lack.ratio))
    found = remedies(_Problem(model, space, aim, watch), nearest)
    what = "no plan fits" if nearest.memory else "no plan is fast enough"
    change = "; ".join(f"{i}) {each.text}" for i, each in enumerate(found, 1))
    change = change or "nothing found"
    rest = "; there was no time to try all changes" if watch.is_over else ""
    return f"{what}: {nearest.text}; what would do, the cheapest first: {change}{rest}"


def remedies(problem: _Problem, lack: Lack) -> list[Remedy]:
    """Returns the changes after which there is a plan, the cheapest first."""
    found: list[Remedy] = []
    for make in _MAKERS:
        if not problem.watch.is_over:
            found += make(problem, lack)
    return sorted(found, key=lambda each: (each.money is None, each.money or 0.0))


def _on_servers(problem: _Problem, lack: Lack) -> Iterator[Remedy]:
    """Tables in the memory of hosts instead of devices."""
    if not set(problem.space.modes) <= {"cpu_only", "gpu_only"}:
        return
    wider = replace(problem.space, modes=(*problem.space.modes, "bounded"))
    on_servers, text = (
        replace(problem, space=wider),
        "let the tables live on servers (mode bounded)",
    )
    if on_servers.has_plan():
        yield Remedy(text, 0.0)
        return
    for host in problem.model.cluster.hosts:
        more = _least_more(on_servers, host)
        if more is not None:
            yield _machines(more, host, f"{text}, with ")


def _another_batch(problem: _Problem, lack: Lack) -> Iterator[Remedy]:
    """Smaller where memory is lacking, larger where speed is."""
    sizes = problem.space.batch_sizes
    batch = min(sizes) if lack.memory else max(sizes)
    for _ in range(20):
        batch = batch // 2 if lack.memory else batch * 2
        if batch < 1:
            return
        if replace(problem, space=replace(problem.space, batch_sizes=(batch,))).has_plan():
            yield Remedy(f"batch_size={batch}", 0.0)
            return


def _more_staleness(problem: _Problem, lack: Lack) -> Iterator[Remedy]:
    if lack.memory:
        return
    for staleness in range(problem.space.max_staleness + 1, problem.space.max_staleness + 5):
        if replace(problem, space=replace(problem.space, max_staleness=staleness)).has_plan():
            yield Remedy(f"max_staleness={staleness}", 0.0)
            return


def _smaller_dim(problem: _Problem, lack: Lack) -> Iterator[Remedy]:
    """Of the table that takes most, with which the model learns less."""
    if lack.memory is None:
        return
    sizes = {part.label: part.amount for part in lack.memory.peak.parts}
    tables = problem.model.workload.graph.tables
    table = max(tables, key=lambda each: sizes.get(f"table {each.name}", 0.0))
    dim = table.dim
    while dim > 1:
        dim //= 2
        if problem.with_dim(table.name, dim).has_plan():
            yield Remedy(f"dim={dim} instead of {table.dim} of table {table.name}", 0.0)
            return


def _more_machines(problem: _Problem, _: Lack) -> Iterator[Remedy]:
    """Of each host of the cluster, the fewest that do, alone."""
    for host in problem.model.cluster.hosts:
        more = _least_more(problem, host)
        if more is not None:
            yield _machines(more, host)


def _machines(more: int, host: Host, text: str = "") -> Remedy:
    money = None if host.price_per_hour is None else more * host.price_per_hour
    told = "" if money is None else f", {money:,.2f} an hour more"
    return Remedy(
        f"{text}{more} more of host {host.name} ({host.count + more} in all{told})", money
    )


def _least_more(problem: _Problem, host: Host) -> int | None:
    """Returns how many more machines do, if any number does."""
    unit = problem.unit_of(host.name)
    if unit is None:
        return None

    def does(units: int) -> bool:
        return (
            not problem.watch.is_over
            and problem.with_machines(host.name, host.count + units * unit).has_plan()
        )

    found = least(MOST // unit, does)
    return None if found is None else found * unit


def _more_memory(problem: _Problem, lack: Lack) -> Iterator[Remedy]:
    if lack.memory is None:
        return
    usable = problem.model.constants.usable_memory
    need = int(-(-lack.memory.peak.total / usable // GiB)) * GiB
    if problem.with_memory(lack.memory.host, lack.memory.device, need).has_plan():
        where = f"{lack.memory.host}/{lack.memory.device}"
        yield Remedy(f"{format_bytes(need)} of memory of each {where}", None)


_MAKERS: tuple[Callable[[_Problem, Lack], Iterator[Remedy]], ...] = (
    _on_servers,
    _another_batch,
    _more_staleness,
    _smaller_dim,
    _more_machines,
    _more_memory,
)


def _devices(cluster: Cluster) -> str:
    names = dict.fromkeys(device.name for host in cluster.hosts for device in host.devices)
    return ", ".join(names)
