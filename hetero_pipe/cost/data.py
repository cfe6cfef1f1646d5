"""Workloads: what is trained, from a graph and what a sample says of the data."""

from collections.abc import Mapping

from hetero_pipe.cost.workload import Workload
from hetero_pipe.data import DataStatistics
from hetero_pipe.errors import ConfigError
from hetero_pipe.graph import Graph

__all__ = ["workload_of"]

SOME_SERVERS = 4
"""For how many servers the busiest one's share of the keys is taken."""


def workload_of(
    graph: Graph,
    data: DataStatistics,
    *,
    rows: Mapping[str, float] | None = None,
    samples: int | None = None,
    num_dense: int = 0,
) -> Workload:
    """Returns what is trained.

    Args:
        graph: Of the model.
        data: Of its tables.
        rows: By table, how many it will hold; of others it is as many as an epoch has
            distinct keys, by the power law of the sample.
        samples: Of an epoch; None takes the sample for all.
        num_dense: Dense columns of a sample.

    Raises:
        ConfigError: `rows` names another table, or a table is not in the statistics.
    """
    tables = [table.name for table in graph.tables]
    strays = [name for name in (rows or {}) if name not in tables]
    missing = [name for name in tables if name not in data.tables]
    if strays or missing:
        raise ConfigError(
            f"rows and statistics are of the tables {', '.join(tables)}, got rows of "
            f"{', '.join(strays) or 'no other'} and no statistics of {', '.join(missing) or 'none'}"
        )
    found = {}
    for name in tables:
        held = data.tables[name].distinct.at(samples or data.num_samples)
        found[name] = float((rows or {}).get(name, max(held, 1.0)))
    skew = max((data.tables[name].imbalance.at(SOME_SERVERS) for name in tables), default=1.0)
    return Workload(
        graph.with_data(keys={slot: mean for slot, mean in data.keys.items() if mean}),
        found,
        {name: [(int(x), y) for x, y in data.tables[name].distinct.points] for name in tables},
        samples=samples,
        num_dense=num_dense,
        skew=max(skew, 1.0),
    )
