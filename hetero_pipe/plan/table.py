"""TablePlan: one table and where its rows live."""

from dataclasses import dataclass

from hetero_pipe.errors import PlanError
from hetero_pipe.plan.check import is_count

__all__ = ["HOMES", "TablePlan"]

HOMES = ("host", "device", "sharded")
"""Where rows live: in a host's memory, on each worker's device, or shared out over the devices."""


@dataclass(frozen=True)
class TablePlan:
    """One table and where its rows live.

    Attributes:
        name: Of the table.
        dim: Weights of a row.
        slots: Whose keys it holds.
        servers: HOST:PORT of those that share its buckets, or `@FILE` alone, of a
            file that names them; empty means the trainer's own process.
        home: One of `HOMES`: `host` is the servers, or the trainer's process;
            `device` an equal copy on each worker's device.
        cached_rows: Of the hottest, which each worker's device keeps as well.

    Raises:
        PlanError: There is no such table.
    """

    name: str
    dim: int
    slots: tuple[str, ...]
    servers: tuple[str, ...] = ()
    home: str = "host"
    cached_rows: int = 0

    def __post_init__(self) -> None:
        if not is_count(self.dim, least=1) or not self.slots:
            raise PlanError(f"a table needs dim >= 1 and a slot, got {self}")
        if self.home not in HOMES:
            raise PlanError(
                f"the home of a table is one of {', '.join(HOMES)}, got home={self.home!r} of "
                f"table {self.name!r}"
            )
        if not is_count(self.cached_rows, least=0) or (self.home != "host" and self.cached_rows):
            raise PlanError(
                f"rows of servers can be cached on a device, at least 0 of them, got "
                f"cached_rows={self.cached_rows!r} of table {self.name!r} with home={self.home!r}"
            )
        if self.home != "host" and self.servers:
            raise PlanError(
                f"a table is on servers or on devices, got servers {', '.join(self.servers)} and "
                f"home={self.home!r} of table {self.name!r}"
            )
