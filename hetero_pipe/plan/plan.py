"""Plan: what runs where. The one thing that deciding hands to doing."""

import json
from dataclasses import dataclass, field

from hetero_pipe.codec import decode, encode
from hetero_pipe.errors import PlanError
from hetero_pipe.plan.check import is_count
from hetero_pipe.plan.prediction import Prediction
from hetero_pipe.plan.processes import ProcessPlan
from hetero_pipe.plan.stage import STAGES, StagePlan
from hetero_pipe.plan.table import TablePlan
from hetero_pipe.plan.workers import WorkersPlan

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """What runs where, and how much may overlap. Frozen; to and from JSON.

    Attributes:
        stages: In order, one for each of `STAGES`.
        tables: Names are unique; all are on the same servers.
        staleness: How many of the latest pushes a pull may miss; 0 is, of one
            worker, the serial run, bit for bit. Without a meaning in `async`; in `elastic`,
            `cpu_only` and `gpu_only` what a pull misses is its worker's own affair.
        workers: The training processes; by default, one.
        batch_size: Samples of a worker's step; None is the reader's business.
        processes: On which machines of a cluster servers and workers run; none if
            nobody planned for a cluster.
        predicted: What it is expected to do; None if nobody predicted.

    Raises:
        PlanError: The plan cannot run.
    """

    stages: tuple[StagePlan, ...]
    tables: tuple[TablePlan, ...]
    staleness: int
    workers: WorkersPlan = field(default_factory=WorkersPlan)
    batch_size: int | None = None
    processes: tuple[ProcessPlan, ...] = ()
    predicted: Prediction | None = None

    def __post_init__(self) -> None:
        names = tuple(stage.name for stage in self.stages)
        if names != STAGES:
            raise PlanError(f"a plan has the stages {', '.join(STAGES)}, got {', '.join(names)}")
        tables = [table.name for table in self.tables]
        if len(set(tables)) != len(tables):
            raise PlanError(f"a plan names each table once, got {', '.join(tables)}")
        if len({table.servers for table in self.tables if table.home == "host"}) > 1:
            raise PlanError(f"the tables of a plan are on the same servers, got {self.tables}")
        if self.batch_size is not None and not is_count(self.batch_size, least=1):
            raise PlanError(f"batch_size is at least 1, got batch_size={self.batch_size!r}")
        if not is_count(self.staleness, least=0):
            raise PlanError(f"staleness is at least 0, got staleness={self.staleness}")
        if self.workers.mode == "sync" and self.staleness:
            raise PlanError(
                f"in mode sync a pull misses no push, got staleness={self.staleness}; "
                "use mode bounded"
            )
        if self.workers.is_elastic and self.servers is None:
            raise PlanError(
                "in mode elastic all that is learned is on servers, got none; name them "
                "(--servers HOST:PORT,...)"
            )
        needs_servers = self.workers.num_processes > 1 and not self.workers.has_own_tables
        on_hosts = any(table.home == "host" for table in self.tables)
        if needs_servers and on_hosts and self.servers is None:
            raise PlanError(
                f"{self.workers.num_processes} workers share their tables on servers, got none; "
                "name them (--servers HOST:PORT,...)"
            )

    @property
    def servers(self) -> tuple[str, ...] | None:
        """HOST:PORT of the servers, None if the tables are in the trainer's process."""
        on_hosts = (table.servers for table in self.tables if table.home == "host")
        return next(on_hosts, ()) or None

    def stage(self, name: str) -> StagePlan:
        """Returns the stage of a name in `STAGES`."""
        return self.stages[STAGES.index(name)]

    def processes_of(self, role: str) -> tuple[ProcessPlan, ...]:
        """Returns the processes of a role, one of `ROLES`."""
        return tuple(each for each in self.processes if each.role == role)

    def to_json(self) -> str:
        """Returns the plan as indented JSON; what is at its default is left out."""
        return json.dumps(encode(self), indent=2)

    @staticmethod
    def from_json(text: str) -> "Plan":
        """Returns the plan that `to_json` wrote.

        Raises:
            PlanError: The text is no plan, or one that cannot run.
        """
        try:
            return decode(Plan, json.loads(text))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"a plan is JSON as Plan.to_json writes it, got {error}") from error
