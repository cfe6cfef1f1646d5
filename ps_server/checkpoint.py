"""A snapshot: the rows of a range of buckets in one Arrow IPC file.

docs/checkpoint_format.md describes the file. Two lines read one::

    with pyarrow.OSFile("buckets-0000-0255.arrow") as file:
        rows = pyarrow.ipc.open_file(file).read_all()
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ps_server.keys import bucket_of
from ps_server.spec import NUM_BUCKETS, TableSpec
from ps_server.table import Rows, Table

__all__ = ["SnapshotError", "buckets_of_snapshot", "read_snapshot", "rows_within", "snapshots"]

FORMAT = "hetero_pipe-snapshot-v1"
BUCKETS_PER_SNAPSHOT = 256


class SnapshotError(Exception):
    """A snapshot is broken or of another table; the message names the file."""


def snapshots(table: Table, owned: range) -> Iterator[tuple[str, bytes]]:
    """Yields the file name and content of each snapshot of a table.

    A snapshot is of one moment for each row; pushes that run meanwhile may be
    in one row and not in another.

    Args:
        table: What to save.
        owned: Buckets to save, those that this server owns.
    """
    for first in range(0, NUM_BUCKETS, BUCKETS_PER_SNAPSHOT):
        start, stop = max(first, owned.start), min(first + BUCKETS_PER_SNAPSHOT, owned.stop)
        if start < stop:
            rows = table.export_rows(start, stop)
            if len(rows.keys):
                yield f"buckets-{start:04d}-{stop - 1:04d}.arrow", _encode(table.spec, rows)


def buckets_of_snapshot(name: str) -> range:
    """Returns the buckets that a snapshot of this file name holds.

    Raises:
        SnapshotError: It is not the name of a snapshot.

    >>> buckets_of_snapshot("buckets-0256-0511.arrow")
    range(256, 512)
    """
    match = re.fullmatch(r"buckets-(\d{4})-(\d{4})\.arrow", name)
    if match is None:
        raise SnapshotError(f"a snapshot is named buckets-FIRST-LAST.arrow, got {name!r}")
    return range(int(match[1]), int(match[2]) + 1)


def read_snapshot(path: Path, spec: TableSpec) -> Rows:
    """Returns the rows of a snapshot.

    Args:
        path: The file.
        spec: The table that will hold the rows.

    Raises:
        SnapshotError: The file cannot be read, or its rows do not fit the table.
    """
    try:
        with pa.memory_map(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        described = json.loads(table.schema.metadata[b"hetero_pipe"])
        if described["format"] != FORMAT:
            raise SnapshotError(
                f"a snapshot must have format {FORMAT}, got {described['format']!r} in {path}"
            )
        saved = TableSpec.from_dict(described["table"])
    except SnapshotError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise SnapshotError(
            f"a snapshot must be an Arrow file written by save, got {error} in {path}"
        ) from error
    if saved.dim != spec.dim or type(saved.optimizer) is not type(spec.optimizer):
        raise SnapshotError(
            f"rows of dim={saved.dim} with {type(saved.optimizer).__name__} do not fit table "
            f"{spec.name!r} of dim={spec.dim} with {type(spec.optimizer).__name__}, in {path}; "
            "build the model as it was saved"
        )
    return Rows(
        keys=table["key"].to_numpy(),
        weights=_matrix(table["weights"], spec.dim),
        state=(
            _matrix(table["state"], spec.dim * spec.optimizer.state_per_weight)
            if spec.optimizer.state_per_weight
            else np.empty((len(table), 0), np.float32)
        ),
        num_pushes=table["num_pushes"].to_numpy(),
        steps=table["step"].to_numpy(),
    )


def rows_within(rows: Rows, buckets: range) -> Rows:
    """Returns the rows whose keys lie in the buckets."""
    bucket = bucket_of(rows.keys)
    inside = (bucket >= buckets.start) & (bucket < buckets.stop)
    if inside.all():
        return rows
    return Rows(*(column[inside] for column in vars(rows).values()))


def _encode(spec: TableSpec, rows: Rows) -> bytes:
    columns = {
        "key": pa.array(rows.keys),
        "weights": _lists(rows.weights),
        **({"state": _lists(rows.state)} if rows.state.shape[1] else {}),
        "num_pushes": pa.array(rows.num_pushes),
        "step": pa.array(rows.steps),
    }
    metadata = {"hetero_pipe": json.dumps({"format": FORMAT, "table": spec.to_dict()})}
    table = pa.table(columns).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _lists(matrix: NDArray[np.float32]) -> Any:  # pyarrow has no stubs
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


def _matrix(column: Any, width: int) -> NDArray[np.float32]:  # pyarrow has no stubs
    flat = column.combine_chunks().flatten().to_numpy()
    return np.ascontiguousarray(flat.reshape(len(column), width), dtype=np.float32)
