"""Plan: what runs where. The one thing that deciding hands to doing."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from hetero_pipe.errors import PlanError

__all__ = ["STAGES", "Plan", "StagePlan", "TablePlan"]

STAGES = ("read", "route", "pull", "dense", "push")
"""The stages of a training step, in order."""


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
class Plan:
    """What runs where, and how much may overlap. Frozen; to and from JSON.

    Attributes:
        stages: In order, one for each of `STAGES`.
        tables: Names are unique; all are on the same servers.
        staleness: How many of the latest pushes a pull may miss; 0 is the
            serial run, bit for bit.

    Raises:
        PlanError: The plan cannot run.
    """

    stages: tuple[StagePlan, ...]
    tables: tuple[TablePlan, ...]
    staleness: int

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
            )
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(f"a plan is JSON as Plan.to_json writes it, got {error}") from error


def _is_count(value: object, *, least: int) -> bool:
    return type(value) is int and value >= least


def _table(slots: object, servers: object, **fields: Any) -> TablePlan:  # JSON values
    return TablePlan(slots=_texts(slots), servers=_texts(servers), **fields)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{value!r}, which is no list of texts")
    return tuple(value)
