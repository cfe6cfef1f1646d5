"""A snapshot: the rows of some buckets in one Arrow IPC file.

docs/checkpoint_format.md describes the file. Two lines read one::

    with pyarrow.OSFile("buckets-0000-0255.arrow") as file:
        rows = pyarrow.ipc.open_file(file).read_all()
"""

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ps_server.keys import bucket_of
from ps_server.spec import NUM_BUCKETS, TableSpec
from ps_server.table import Frozen, Rows, Table

__all__ = [
    "MAX_STEP",
    "SnapshotError",
    "buckets_of_snapshot",
    "read_snapshot",
    "rows_within",
    "snapshots",
]

FORMAT = "hetero_pipe-snapshot-v1"
BUCKETS_PER_SNAPSHOT = 256
MAX_STEP = 2**32 - 1


class SnapshotError(Exception):
    """A snapshot is broken or of another table; the message names the file."""


def snapshots(
    table: Table, owned: NDArray[np.intp], *, frozen: Frozen | None = None
) -> Iterator[tuple[str, memoryview]]:
    """Yields the file name and content of each snapshot of a table.

    A name has the first and the last of the snapshot's buckets. Those between may
    be another server's, but the first is no other's: names are unique among all
    servers of a route. Memory is that of one snapshot: a sixteenth of the table if
    it is whole here.

    Args:
        table: What to save.
        owned: Buckets to save, ascending, those that this server owns.
        frozen: Of the table: its rows of one moment are saved. None saves those of
            now: of one moment for each row, but pushes that run meanwhile may be in
            one row and not in another.
    """
    starts = np.arange(0, NUM_BUCKETS, BUCKETS_PER_SNAPSHOT)
    for buckets in np.split(owned, np.searchsorted(owned, starts[1:])):
        if buckets.size:
            first, last = int(buckets[0]), int(buckets[-1])
            rows = rows_within((frozen or table).export_rows(first, last + 1), buckets)
            if len(rows.keys):
                yield f"buckets-{first:04d}-{last:04d}.arrow", _encode(table.spec, rows)


def buckets_of_snapshot(name: str) -> range:
    """Returns the buckets that a snapshot of this file name may hold rows of.

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
        # Without it, a row count that is too large reads past the end of the buffers.
        table.validate(full=True)
        described = json.loads(table.schema.metadata[b"hetero_pipe"])
        found, crc = described["format"], described["crc32"]
        if found == FORMAT:
            saved = TableSpec.from_dict(described["table"])
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise SnapshotError(
            f"a snapshot must be an Arrow file written by save, got {error} in {path}; "
            "the file is damaged, load another checkpoint"
        ) from error
    if found != FORMAT:
        raise SnapshotError(
            f"a snapshot must have format {FORMAT}, got {found!r} in {path}; load it with the "
            "version that saved it"
        )
    if saved.dim != spec.dim or type(saved.optimizer) is not type(spec.optimizer):
        raise SnapshotError(
            f"rows of dim={saved.dim} with {type(saved.optimizer).__name__} do not fit table "
            f"{spec.name!r} of dim={spec.dim} with {type(spec.optimizer).__name__}, in {path}; "
            "build the model as it was saved"
        )
    schema = _schema(spec)
    if not table.schema.equals(schema) or any(column.null_count for column in table.columns):
        raise SnapshotError(
            f"a snapshot of this table must have the columns {_columns(schema)} without nulls, got "
            f"{_columns(table.schema)} in {path}; load another checkpoint"
        )
    rows = Rows(
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
    if (actual := _crc(rows)) != crc:
        raise SnapshotError(
            f"a snapshot's rows must have CRC {crc}, got {actual} in {path}; the file is damaged, "
            "load another checkpoint"
        )
    if len(rows) and rows.steps.max() > MAX_STEP:
        raise SnapshotError(
            f"a row's step must be at most {MAX_STEP}, got {rows.steps.max()} in {path}; "
            "load another checkpoint"
        )
    return rows


def rows_within(rows: Rows, buckets: NDArray[np.intp]) -> Rows:
    """Returns the rows whose keys lie in the buckets."""
    is_wanted = np.zeros(NUM_BUCKETS, bool)
    is_wanted[buckets] = True
    inside = is_wanted[bucket_of(rows.keys)]
    if inside.all():
        return rows
    return Rows(*(column[inside] for column in vars(rows).values()))


def _encode(spec: TableSpec, rows: Rows) -> memoryview:
    columns = {
        "key": pa.array(rows.keys),
        "weights": _lists(rows.weights),
        **({"state": _lists(rows.state)} if rows.state.shape[1] else {}),
        "num_pushes": pa.array(rows.num_pushes),
        "step": pa.array(rows.steps),
    }
    described = {"format": FORMAT, "table": spec.to_dict(), "crc32": _crc(rows)}
    metadata = {"hetero_pipe": json.dumps(described)}
    table = pa.table(columns, schema=_schema(spec)).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())  # a copy of a large one would hold up all other threads


def _crc(rows: Rows) -> int:
    """Returns the CRC-32 of the rows' columns, one after the other. Arrow has none of its own."""
    crc = 0
    for column in vars(rows).values():
        crc = zlib.crc32(column, crc)
    return crc


def _schema(spec: TableSpec) -> Any:  # pyarrow has no stubs
    def floats(width: int) -> Any:
        return pa.list_(pa.float32(), width)

    state = spec.optimizer.state_per_weight * spec.dim
    return pa.schema(
        [
            ("key", pa.uint64()),
            ("weights", floats(spec.dim)),
            *([("state", floats(state))] if state else []),
            ("num_pushes", pa.uint32()),
            ("step", pa.uint64()),
        ]
    )


def _columns(schema: Any) -> str:  # pyarrow has no stubs
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _lists(matrix: NDArray[np.float32]) -> Any:  # pyarrow has no stubs
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


def _matrix(column: Any, width: int) -> NDArray[np.float32]:  # pyarrow has no stubs
    flat = column.combine_chunks().flatten().to_numpy()
    return np.ascontiguousarray(flat.reshape(len(column), width), dtype=np.float32)
