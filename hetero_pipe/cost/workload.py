"""Workload: what is trained, and on what data."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from hetero_pipe.errors import ConfigError
from hetero_pipe.graph import Graph, Table

__all__ = ["Workload"]


@dataclass(frozen=True)
class Workload:
    """A model and what a planner must know of the data that it is trained on.

    Attributes:
        graph: What the model computes, loss and all.
        rows: By table, how many it will hold.
        distinct: By table, (batch, distinct rows of such a batch) as a sample of the
            data had them; a table that is not named has as many as `Table.distinct` says.
        hits: By table, (hottest rows, share of a batch's distinct rows that are among
            them), both rising; of a table that is not named, no row is hotter.
        samples: Of an epoch; None is not known.
        num_dense: Dense columns of a sample.
        dense_state: Floats of optimizer state of a dense weight; 2 is Adam's.
        device_seconds: That an accelerator takes for a batch, whatever the ops of the graph:
            one that is emulated, or was measured with this model. None is as its ops cost.
        skew: Keys that the busiest server gets by those of an even share, at least 1.

    Raises:
        ConfigError: A table is none of the graph's, or a value is out of range.
    """

    graph: Graph
    rows: Mapping[str, float]
    distinct: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    hits: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)
    samples: int | None = None
    num_dense: int = 0
    dense_state: int = 2
    skew: float = 1.0
    device_seconds: float | None = None

    def __post_init__(self) -> None:
        tables = {table.name for table in self.graph.tables}
        missing = tables - self.rows.keys()
        strays = (self.distinct.keys() | self.hits.keys()) - tables
        if missing or strays:
            raise ConfigError(
                f"a workload has the rows of each table of {', '.join(sorted(tables)) or 'none'}, "
                f"got none of {', '.join(sorted(missing)) or 'none'} and other tables "
                f"{', '.join(sorted(strays)) or 'none'}"
            )
        for name, points in (*self.distinct.items(), *self.hits.items()):
            _check_points(name, points)
        for name, points in self.hits.items():
            if not all(a[1] <= b[1] for a, b in pairwise(points)) or points[-1][1] > 1:
                raise ConfigError(
                    f"shares of hits rise to at most 1, got {points} of table {name!r}"
                )
        if not self.skew >= 1:
            raise ConfigError(f"skew is at least 1, got skew={self.skew}")

    def at(self, batch: int) -> Graph:
        """Returns the graph with as many distinct rows as a batch of this size has."""
        shares = {}
        for table in self.graph.tables:
            if keys := _num_keys(table, batch):
                shares[table.name] = max(self.distinct_rows(table.name, batch) / keys, 1e-9)
        return self.graph.with_data(distinct=shares)

    def distinct_rows(self, table: str, batch: int) -> float:
        """Returns the distinct rows of a batch: never more than its keys, or than there are."""
        keys = _num_keys(self.graph.table(table), batch)
        if table in self.distinct:
            found = _power_law(self.distinct[table], batch)
        else:
            found = keys * self.graph.table(table).distinct
        return min(found, keys, self.rows[table])

    def hit_share(self, table: str, cached: float) -> float:
        """Returns the share of a batch's distinct rows that are among the hottest of a table.

        Straight between measured points; beyond them no more is known to be hit.
        """
        rows = self.rows[table]
        if cached >= rows:
            return 1.0
        points = [(0.0, 0.0), *self.hits.get(table, [(rows, 1.0)])]
        for (x0, y0), (x1, y1) in pairwise(points):
            if cached <= x1:
                return y0 + (y1 - y0) * (cached - x0) / (x1 - x0)
        return points[-1][1]


def _num_keys(table: Table, batch: int) -> float:
    return float(table.all_keys.at({"batch": batch} | table.values(batch)))


def _check_points(table: str, points: Sequence[tuple[float, float]]) -> None:
    is_above = all(0 < each < math.inf for point in points for each in point)
    if not points or not is_above or not all(a[0] < b[0] for a, b in pairwise(points)):
        raise ConfigError(
            f"a curve of table {table!r} has points above 0 of which the first number rises, "
            f"got {points}"
        )


def _power_law(points: Sequence[tuple[float, float]], batch: int) -> float:
    """Returns y at x = batch: straight between points on logarithmic axes, and on beyond them.

    A larger batch has no fewer distinct rows, nor grow they faster than it. What a
    sample has otherwise is raised to that: no rows are missed.
    """
    known = _consistent(points)
    if len(known) == 1:
        return known[0][1] * batch / known[0][0]
    right = min(max(bisect_left(known, (batch, 0.0)), 1), len(known) - 1)
    (x0, y0), (x1, y1) = known[right - 1], known[right]
    slope = math.log(y1 / y0) / math.log(x1 / x0)
    return float(y0 * (batch / x0) ** min(max(slope, 0.0), 1.0))


def _consistent(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    risen = list(accumulate((y for _, y in points), max))
    for i in range(len(points) - 2, -1, -1):
        risen[i] = max(risen[i], risen[i + 1] * points[i][0] / points[i + 1][0])
    return [(x, y) for (x, _), y in zip(points, risen, strict=True)]
