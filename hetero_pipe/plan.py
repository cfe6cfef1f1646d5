"""Plan: what runs where. The one thing that deciding hands to doing."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from hetero_pipe.errors import PlanError

__all__ = ["MODES", "STAGES", "WIRES", "Plan", "StagePlan", "TablePlan", "Worker", "WorkersPlan"]

STAGES = ("read", "route", "pull", "dense", "push")
"""The stages of a training step, in order."""

MODES = ("sync", "bounded", "async", "cpu_only", "gpu_only")
"""How workers keep step; docs/pipeline.md says what each guarantees."""

WIRES = ("float32", "float16", "bfloat16")
"""What tensors between sparse and dense workers are sent as."""


def _is_count(value: object, *, least: int) -> bool:
    return type(value) is int and value >= least


@dataclass(frozen=True)
class StagePlan:
    """One stage of the pipeline.

    Attributes:
        name: One of `STAGES`.
        device: Where it computes, as Paddle names it: `cpu`, `gpu:0`.
        capacity: Steps that may wait in front of the next stage, at least 1.
    """

    name: str
    device: str
    capacity: int

    def __post_init__(self) -> None:
        if not _is_count(self.capacity, least=1):
            raise PlanError(f"a stage needs capacity >= 1, got {self}")


@dataclass(frozen=True)
class TablePlan:
    """One table and where its rows live.

    Attributes:
        name: Of the table.
        dim: Weights of a row.
        slots: Whose keys it holds.
        servers: HOST:PORT of those that share its buckets; empty means the
            trainer's own process.
    """

    name: str
    dim: int
    slots: tuple[str, ...]
    servers: tuple[str, ...]

    def __post_init__(self) -> None:
        if not _is_count(self.dim, least=1) or not self.slots:
            raise PlanError(f"a table needs dim >= 1 and a slot, got {self}")


@dataclass(frozen=True)
class WorkersPlan:
    """The training processes, and how they keep step.

    A whole worker runs every stage. With `dense`, those that read are sparse
    workers: they hand what they have pulled and pooled to the dense workers and
    push the gradients that come back.

    Attributes:
        mode: One of `MODES`. `sync` applies the sample-weighted mean over the
            workers of a step's gradients as one update, before any pull of the
            next step. In `bounded`, each push is applied as sent, and a pull
            misses at most `Plan.staleness` steps of any worker; in `async`, any
            number. `cpu_only` and `gpu_only` hold the tables on each worker's own
            device, without servers, and keep step as `sync` does.
        num_readers: Whole or sparse workers.
        dense: HOST:PORT of each dense worker; empty means whole workers.
        wire: One of `WIRES`.
        average_every: Steps between two averages of the dense parameters, in
            `bounded` and `async`.

    Raises:
        PlanError: A value is none of these.
    """

    mode: str = "bounded"
    num_readers: int = 1
    dense: tuple[str, ...] = ()
    wire: str = "float32"
    average_every: int = 16

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PlanError(f"mode is one of {', '.join(MODES)}, got mode={self.mode!r}")
        if self.wire not in WIRES:
            raise PlanError(f"wire is one of {', '.join(WIRES)}, got wire={self.wire!r}")
        for name, flag in (("num_readers", "num-workers"), ("average_every", "average-every")):
            value = getattr(self, name)
            if not _is_count(value, least=1):
                raise PlanError(f"{name} is at least 1, got {name}={value!r} (--{flag})")
        if self.has_own_tables and self.dense:
            raise PlanError(
                f"in mode {self.mode} a worker has tables and dense part on one device, got "
                f"{len(self.dense)} dense workers; start whole workers, or use another mode"
            )
        if self.mode == "sync" and len(self.dense) > self.num_readers:
            raise PlanError(
                "in mode sync every dense worker gets a batch of every step, got "
                f"{len(self.dense)} dense workers and {self.num_readers} that read; start more of "
                "those, or use mode bounded"
            )
        if len(set(self.dense)) != len(self.dense):
            raise PlanError(f"dense names each worker once, got {', '.join(self.dense)}")

    @property
    def has_own_tables(self) -> bool:
        """Whether each worker has the tables on its device, equal ones."""
        return self.mode in ("cpu_only", "gpu_only")

    @property
    def is_sync(self) -> bool:
        """Whether all workers take each step together."""
        return self.mode == "sync" or self.has_own_tables

    @property
    def num_processes(self) -> int:
        """Whole, sparse and dense workers together."""
        return self.num_readers + len(self.dense)

    @property
    def num_dense(self) -> int:
        """Replicas of the dense part."""
        return len(self.dense) or self.num_readers


@dataclass(frozen=True)
class Worker:
    """Which of a plan's workers a process is.

    Attributes:
        stage: `whole`, `sparse` or `dense`.
        rank: Among the workers of its stage, from 0.
        coordinator: HOST:PORT where all workers of the plan meet; the first one
            that reads listens there. None if there is but one.
    """

    stage: str = "whole"
    rank: int = 0
    coordinator: str | None = None

    def check(self, workers: WorkersPlan) -> None:
        """Refuses a worker that the plan does not have.

        Raises:
            PlanError: It has not.
        """
        stages = {"sparse": workers.num_readers, "dense": len(workers.dense)}
        if not workers.dense:
            stages = {"whole": workers.num_readers}
        if self.stage not in stages or not 0 <= self.rank < stages[self.stage]:
            held = " and ".join(f"{num} {stage}" for stage, num in stages.items())
            raise PlanError(
                f"the plan has {held} workers, with ranks from 0, got {self.stage} worker "
                f"{self.rank}; say which of them it is (--stage, --worker)"
            )
        if workers.num_processes > 1 and self.coordinator is None:
            raise PlanError(
                f"{workers.num_processes} workers meet somewhere, got no coordinator; name a "
                "HOST:PORT of the first worker's host (--coordinator)"
            )


@dataclass(frozen=True)
class Plan:
    """What runs where, and how much may overlap. Frozen; to and from JSON.

    Attributes:
        stages: In order, one for each of `STAGES`.
        tables: Names are unique; all are on the same servers.
        staleness: How many of the latest pushes a pull may miss; 0 is, of one
            worker, the serial run, bit for bit. Without a meaning in `async`.
        workers: The training processes; by default, one.

    Raises:
        PlanError: The plan cannot run.
    """

    stages: tuple[StagePlan, ...]
    tables: tuple[TablePlan, ...]
    staleness: int
    workers: WorkersPlan = WorkersPlan()

    def __post_init__(self) -> None:
        names = tuple(stage.name for stage in self.stages)
        if names != STAGES:
            raise PlanError(f"a plan has the stages {', '.join(STAGES)}, got {', '.join(names)}")
        tables = [table.name for table in self.tables]
        if len(set(tables)) != len(tables):
            raise PlanError(f"a plan names each table once, got {', '.join(tables)}")
        if len({table.servers for table in self.tables}) > 1:
            raise PlanError(f"the tables of a plan are on the same servers, got {self.tables}")
        if not _is_count(self.staleness, least=0):
            raise PlanError(f"staleness is at least 0, got staleness={self.staleness}")
        if self.workers.mode == "sync" and self.staleness:
            raise PlanError(
                f"in mode sync a pull misses no push, got staleness={self.staleness}; "
                "use mode bounded"
            )
        needs_servers = self.workers.num_processes > 1 and not self.workers.has_own_tables
        if needs_servers and self.tables and self.servers is None:
            raise PlanError(
                f"{self.workers.num_processes} workers share their tables on servers, got none; "
                "name them (--servers HOST:PORT,...)"
            )

    @property
    def servers(self) -> tuple[str, ...] | None:
        """HOST:PORT of the servers, None if the tables are in the trainer's process."""
        return (self.tables[0].servers or None) if self.tables else None

    def stage(self, name: str) -> StagePlan:
        """Returns the stage of a name in `STAGES`."""
        return self.stages[STAGES.index(name)]

    def to_json(self) -> str:
        """Returns the plan as indented JSON."""
        return json.dumps(asdict(self), indent=2)

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Returns the plan that `to_json` wrote.

        Raises:
            PlanError: The text is no plan, or one that cannot run.
        """
        try:
            fields = json.loads(text)
            return Plan(
                stages=tuple(StagePlan(**stage) for stage in fields["stages"]),
                tables=tuple(_table(**table) for table in fields["tables"]),
                staleness=fields["staleness"],
                workers=_workers(**fields.get("workers", {})),
            )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"a plan is JSON as Plan.to_json writes it, got {error}") from error


def _table(slots: object, servers: object, **fields: Any) -> TablePlan:  # JSON values
    return TablePlan(slots=_texts(slots), servers=_texts(servers), **fields)


def _workers(dense: object = None, **fields: Any) -> WorkersPlan:  # JSON values
    return WorkersPlan(dense=() if dense is None else _texts(dense), **fields)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{value!r}, which is no list of texts")
    return tuple(value)
