"""auto_plan: the plan of a training script, chosen when the trainer has the model."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hetero_pipe.cluster import Cluster, discover, load_cluster
from hetero_pipe.cost import (
    Corrections,
    CostModel,
    learn,
    load_corrections,
    save_corrections,
    workload_of,
)
from hetero_pipe.data import Batch, Reader, measure_statistics
from hetero_pipe.errors import ConfigError, PlanError
from hetero_pipe.graph import Graph
from hetero_pipe.plan import Measured, Plan, StagePlan
from hetero_pipe.planner.aim import Aim
from hetero_pipe.planner.judge import fits
from hetero_pipe.planner.strategy import Strategy, Where

__all__ = ["AutoPlan", "auto_plan"]

logger = logging.getLogger(__name__)


def auto_plan(
    data: Reader | Batch,
    *,
    cluster: Cluster | str | Path | None = None,
    servers: Sequence[str] = (),
    max_staleness: int = 2,
    device: str = "cpu",
    profile: str | Path | None = None,
) -> "AutoPlan":
    """Returns what chooses the plan of one training process: `hp.Trainer(plan=...)`.

    It starts no process and waits for none. So it chooses of what this process can do by
    itself: with its tables in its own memory or on servers that are there, and how
    stale a pull may be; the batch is the reader's. How many processes a job should have,
    and where, `hetero-pipe plan` tells.

    Args:
        data: The reader that will be trained on, or a batch like its batches.
        cluster: Of this host, and rates of it that `hetero-pipe profile` has measured:
            itself or its file; by default, this host as its kernel shows it.
        servers: HOST:PORT of parameter servers that may be used, counted as if on this
            host; none leaves the tables in this process.
        max_staleness: The most pushes that a pull may miss; of quality.
        device: On which this process trains, as Paddle names it.
        profile: A file of what runs on this machine have shown against what was
            predicted. It is read now, and written after each `fit`; None keeps what
            this process learns to itself.

    Raises:
        ConfigError: The cluster's file, the profile or `max_staleness` is none.
    """
    if max_staleness < 0:
        raise ConfigError(f"a staleness is at least 0, got max_staleness={max_staleness}")
    if isinstance(servers, str):
        raise ConfigError(f"servers is a list of HOST:PORT, got {servers!r}; write [{servers!r}]")
    if cluster is None:
        cluster = Cluster((discover(),))
    elif not isinstance(cluster, Cluster):
        cluster = load_cluster(cluster)
    path = None if profile is None else Path(profile)
    return AutoPlan(
        data,
        cluster,
        tuple(servers),
        max_staleness,
        device,
        path,
        Corrections() if path is None else load_corrections(path),
    )


@dataclass
class AutoPlan:
    """A `hetero_pipe.plan.Planning` of one process; used by one thread at a time.

    Attributes:
        data: As `auto_plan` has it, and so on.
        cluster: Its first host is this one.
        servers: That may be used.
        max_staleness: Of the plan.
        device: Of the dense part.
        profile: Where corrections are kept.
        corrections: What this and earlier runs have shown.
        candidates: What was chosen from at last, the best first, each predicted.
    """

    data: Reader | Batch
    cluster: Cluster
    servers: tuple[str, ...]
    max_staleness: int
    device: str
    profile: Path | None
    corrections: Corrections
    candidates: tuple[Plan, ...] = field(default=(), init=False)
    _sample: Batch | None = field(default=None, init=False)
    _model: CostModel | None = field(default=None, init=False)

    @property
    def sample(self) -> Batch:
        """The first batch.

        Raises:
            ConfigError: There is none.
        """
        if self._sample is None:
            first = next(iter(self._batches()), None)
            if first is None:
                raise ConfigError("a plan is of data like a sample of them, got a reader of none")
            self._sample = first
        return self._sample

    def _batches(self) -> Iterable[Batch]:
        return (self.data,) if isinstance(self.data, Batch) else self.data.batches(0)

    def choose(self, graph: Graph) -> Plan:
        """Returns the fastest plan for a model, of those that fit the least stale one.

        Raises:
            PlanError: No plan fits this host.
        """
        tables = {table.name: tuple(table.slots) for table in graph.tables}
        workload = workload_of(
            graph, measure_statistics(self._batches(), tables), num_dense=self._num_dense
        )
        self._model = model = CostModel(self.cluster, workload, corrections=self.corrections)
        plans = [replace(plan, predicted=model.predict(plan)) for plan in self._plans(graph)]
        aim = Aim()
        fitting = [plan for plan in plans if plan.predicted and fits(plan.predicted, aim)]
        if not fitting:
            least = min(plans, key=_fullness)
            raise PlanError(
                f"no plan fits {self.cluster.hosts[0].name}: {_fullness(least):.1f} times its "
                "memory is needed; put the tables on servers (servers=[...]), lower the batch "
                "size, or take a smaller dim"
            )
        self.candidates = tuple(sorted(fitting, key=_seconds))
        logger.info("planned: %s", _line(self.candidates[0]))
        return self.candidates[0]

    @property
    def _num_dense(self) -> int:
        return len(self.sample.dense_names)

    def _plans(self, graph: Graph) -> Iterable[Plan]:
        host = self.cluster.hosts[0].name
        whole = Where("whole", host, self.device.partition(":")[0])
        homes = tuple((table.name, "host") for table in graph.tables)
        for servers in dict.fromkeys(((), self.servers)):
            near = (Where("server", host, "cpu"),) if servers else ()
            strategy = Strategy((whole, *near), "bounded", self.sample.size, homes=homes)
            counts = {"whole": (1, 1), "server": (1, len(servers))}
            for staleness in range(self.max_staleness + 1):
                plan = strategy.plan(graph, counts, staleness=staleness)
                tables = tuple(replace(table, servers=servers) for table in plan.tables)
                yield replace(plan, tables=tables, stages=_on(plan, self.device))

    def learn(self, plan: Plan, measured: Measured) -> None:
        """Corrects what is predicted from now on, and writes the profile if there is one.

        Raises:
            ConfigError: The profile cannot be written.
        """
        assert self._model is not None, "a plan was chosen before it ran"
        self._model = self._model.corrected(learn(self._model, plan, measured))
        self.corrections = self._model.corrections
        if self.profile is not None:
            save_corrections(self.corrections, self.profile)


def _on(plan: Plan, device: str) -> tuple[StagePlan, ...]:
    return tuple(
        replace(stage, device=device) if stage.name == "dense" else stage for stage in plan.stages
    )


def _seconds(plan: Plan) -> tuple[float, int]:
    """Returns what the best plan has least of: time, then staleness, for it costs quality."""
    assert plan.predicted is not None
    return (round(plan.predicted.step_seconds, 9), plan.staleness)


def _fullness(plan: Plan) -> float:
    assert plan.predicted is not None
    return max(each.peak.total / each.capacity for each in plan.predicted.memory)


def _line(plan: Plan) -> str:
    assert plan.predicted is not None
    where = f"on {len(plan.servers)} servers" if plan.servers else "in this process"
    return (
        f"tables {where}, staleness {plan.staleness}, "
        f"{plan.predicted.samples_per_second:,.0f} samples/s expected, bounded by "
        f"{plan.predicted.bottleneck}"
    )
