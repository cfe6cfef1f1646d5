"""What stays in memory: of a worker's device, of its process, and of a server."""

import math
from collections.abc import Iterator

from hetero_pipe.cost.arena import arena_bytes, blocks_bytes
from hetero_pipe.cost.workload import Workload
from hetero_pipe.graph import Graph, Table
from hetero_pipe.plan import Breakdown, Plan, TablePlan

__all__ = [
    "FLOAT",
    "KEY_BYTES",
    "batch_bytes",
    "cut_bytes",
    "dense_memory",
    "device_rows_memory",
    "rows_memory",
    "table_bytes",
]

FLOAT = 4
KEY_BYTES = 8
FIRST_CAPACITY = 1024  # rows of a table on a device


def table_bytes(table: Table, rows: float) -> float:
    """Returns the bytes of so many rows in a table on a host, its index and room among them."""
    return arena_bytes(blocks_bytes(rows, table.dim * (1 + table.state_per_weight)))


def rows_memory(plan: Plan, workload: Workload, *, share: float) -> Breakdown:
    """Returns the bytes of all tables that live on hosts, of which one has a share."""
    found = []
    for table, planned in _planned(plan, workload):
        if planned.home == "host":
            rows = workload.rows[table.name] * share
            found.append(Breakdown.of(f"table {table.name}", table_bytes(table, rows)))
    return Breakdown.sum(found)


def device_rows_memory(plan: Plan, workload: Workload, *, num_devices: int) -> Breakdown:
    """Returns the bytes of all rows that are on one worker's device, with their state.

    A cache has no state: servers apply the gradients.

    Args:
        plan: Says which rows.
        workload: Has the tables.
        num_devices: That share out tables.
    """
    found = []
    for table, planned in _planned(plan, workload):
        size = float(planned.cached_rows * FLOAT * table.dim)
        if planned.home == "device":
            size = _grown(workload.rows[table.name]) * table.bytes_per_row
        elif planned.home == "sharded":
            size = _grown(workload.rows[table.name] / num_devices) * table.bytes_per_row
        found.append(Breakdown.of(f"table {table.name}", size))
    return Breakdown.sum(found)


def _grown(rows: float) -> float:
    """Returns the rows that there is room for: a table on a device doubles when it is full."""
    return FIRST_CAPACITY * 2.0 ** math.ceil(math.log2(max(rows / FIRST_CAPACITY, 1.0)))


def dense_memory(graph: Graph, batch: int, *, state: int, is_training: bool = True) -> Breakdown:
    """Returns the bytes of the dense part on its device at the peak of a step.

    Parameters with gradients and optimizer state; what the forward leaves for the
    backward; the pulled rows and their gradients.
    """
    values = graph.values(batch)
    held = sum(float(t.bytes.at({})) for t in graph.parameters)
    trained = sum(float(t.bytes.at({})) for t in graph.parameters if t.needs_gradient)
    parts = [Breakdown.of("parameters", held)]
    if is_training:
        rows = sum(table.rows.at(values) * FLOAT * table.dim for table in graph.tables)
        parts += [
            Breakdown.of("gradients", trained),
            Breakdown.of("optimizer", trained * state),
            Breakdown.of("activations", graph.activation_bytes(batch)),
            Breakdown.of("rows of a batch", 2 * rows),
        ]
    return Breakdown.sum(parts)


def batch_bytes(graph: Graph, batch: int, *, num_dense: int) -> float:
    """Returns the bytes of a batch as it is read: keys, offsets, dense columns, labels."""
    values = graph.values(batch)
    keys = sum(float(table.all_keys.at(values)) for table in graph.tables)
    return keys * KEY_BYTES + batch * FLOAT * (num_dense + 1)


def cut_bytes(graph: Graph, batch: int, layer: str, *, width: int = FLOAT) -> float:
    """Returns the bytes that cross to the worker of the layers after one, one way."""
    values = graph.values(batch)
    return sum(
        float(t.bytes.at(values)) * (width / FLOAT if t.dtype == "float32" else 1.0)
        for t in graph.cut(layer)
    )


def _planned(plan: Plan, workload: Workload) -> Iterator[tuple[Table, TablePlan]]:
    """Yields the tables that have a home."""
    by_name = {table.name: table for table in plan.tables}
    for table in workload.graph.tables:
        if table.name in by_name:
            yield table, by_name[table.name]
