"""Workload: what is trained, and on what data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hetero_pipe.errors import ConfigError
from hetero_pipe.graph import Graph

__all__ = ["Workload"]


@dataclass(frozen=True)
class Workload:
    """A model and what a planner must know of the data that it is trained on.

    Attributes:
        graph: What the model computes, loss and all.
        rows: By table, how many it will hold.
        distinct: By table, (batch, distinct rows of such a batch) as a sample of the
            data had them; a table that is not named has as many as `Table.distinct` says.
        samples: Of an epoch; None is not known.
        num_dense: Dense columns of a sample.
        dense_state: Floats of optimizer state of a dense weight; 2 is Adam's.
        skew: Keys that the busiest server gets by those of an even share, at least 1.

    Raises:
        ConfigError: A table is none of the graph's, or a value is out of range.
    """

    graph: Graph
    rows: Mapping[str, float]
    distinct: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    samples: int | None = None
    num_dense: int = 0
    dense_state: int = 2
    skew: float = 1.0

    def __post_init__(self) -> None:
        tables = {table.name for table in self.graph.tables}
        missing, strays = tables - self.rows.keys(), self.distinct.keys() - tables
        if missing or strays:
            raise ConfigError(
                f"a workload has the rows of each table of {', '.join(sorted(tables)) or 'none'}, "
                f"got none of {', '.join(sorted(missing)) or 'none'} and other tables "
                f"{', '.join(sorted(strays)) or 'none'}"
            )
        if not self.skew >= 1:
            raise ConfigError(f"skew is at least 1, got skew={self.skew}")

    def at(self, batch: int) -> Graph:
        """Returns the graph with as many distinct rows as a batch of this size has."""
        shares = {}
        for table in self.graph.tables:
            keys = float(table.all_keys.at(self.graph.values(batch)))
            if table.name in self.distinct and keys:
                found = min(_power_law(self.distinct[table.name], batch), keys)
                # No batch has more distinct rows than there are.
                shares[table.name] = max(min(found, self.rows[table.name]) / keys, 1e-9)
        return self.graph.with_data(distinct=shares)


def _power_law(points: Sequence[tuple[int, float]], batch: int) -> float:
    """Returns y at x = batch: straight between points on logarithmic axes, and on beyond them."""
    ordered = sorted(points)
    if len(ordered) == 1:
        return ordered[0][1] * batch / ordered[0][0]
    index = next((i for i, (x, _) in enumerate(ordered) if x >= batch), len(ordered) - 1)
    (x0, y0), (x1, y1) = ordered[max(index - 1, 0)], ordered[max(index, 1)]
    slope = math.log(y1 / y0) / math.log(x1 / x0)
    return float(y0 * (batch / x0) ** min(max(slope, 0.0), 1.0))
