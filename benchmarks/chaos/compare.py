"""Whether two checkpoints hold the same to the bit: tables, dense part, and where they stand."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

COLUMNS = ("weights", "state", "num_pushes", "step")


@dataclass(frozen=True)
class Learned:
    """What a checkpoint holds.

    Attributes:
        step: Steps trained.
        position: Epoch and batch of the next batch.
        tables: By table and column, arrays in the order of the keys `[n, ...]`.
        dense: By name.
    """

    step: int
    position: tuple[int, int]
    tables: dict[str, dict[str, np.ndarray]]
    dense: dict[str, np.ndarray]

    @property
    def num_rows(self) -> int:
        """Of all tables."""
        return sum(len(table["key"]) for table in self.tables.values())

    @property
    def num_pushes(self) -> int:
        """Of all rows: one for each row of each batch that was trained."""
        return sum(int(table["num_pushes"].sum()) for table in self.tables.values())


def newest(folder: Path) -> Path:
    """Returns the newest checkpoint below a folder, or itself if it is one.

    Raises:
        FileNotFoundError: There is none.
    """
    if (folder / "manifest.json").exists():
        return folder
    found = sorted(folder.glob("step-*/manifest.json"))
    if not found:
        raise FileNotFoundError(f"a run leaves a checkpoint, got none in {folder}")
    return found[-1].parent


def read(folder: Path) -> Learned:
    """Reads a checkpoint as anybody can: JSON, numpy and pyarrow."""
    manifest = json.loads((folder / "manifest.json").read_text())
    with np.load(folder / "dense.npz", allow_pickle=False) as arrays:
        dense = {name: arrays[name] for name in arrays.files}
    tables = {path.name: _read_table(path) for path in sorted((folder / "tables").iterdir())}
    position = manifest["position"]
    return Learned(manifest["step"], (position["epoch"], position["batch"]), tables, dense)


def differences(undisturbed: Learned, disturbed: Learned) -> Iterator[str]:
    """Yields what differs, in words."""
    for name in ("step", "position"):
        a, b = getattr(undisturbed, name), getattr(disturbed, name)
        if a != b:
            yield f"{name}: {a} undisturbed, {b} disturbed"
    yield from _of_names("table", undisturbed.tables, disturbed.tables)
    yield from _of_names("dense array", undisturbed.dense, disturbed.dense)
    for name in undisturbed.tables.keys() & disturbed.tables.keys():
        yield from _of_tables(name, undisturbed.tables[name], disturbed.tables[name])
    for name in undisturbed.dense.keys() & disturbed.dense.keys():
        a, b = undisturbed.dense[name], disturbed.dense[name]
        if not _is_same(a, b):
            yield f"dense array {name}: {np.count_nonzero(a != b)} of {a.size} values differ"


def _of_names(kind: str, a: dict, b: dict) -> Iterator[str]:
    for name in sorted(a.keys() ^ b.keys()):
        yield f"{kind} {name}: only {'undisturbed' if name in a else 'disturbed'}"


def _of_tables(name: str, a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> Iterator[str]:
    lost = len(np.setdiff1d(a["key"], b["key"], assume_unique=True))
    added = len(np.setdiff1d(b["key"], a["key"], assume_unique=True))
    if lost or added:
        yield f"table {name}: {lost} rows lost, {added} rows that should not be there"
        return
    for column in COLUMNS:
        if column in a and not _is_same(a[column], b[column]):
            rows = (a[column] != b[column]).reshape(len(a["key"]), -1).any(1)
            yield f"table {name}: {column} differs in {rows.sum()} of {len(rows)} rows"


def _is_same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether arrays are equal to the bit, NaNs among them."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _read_table(folder: Path) -> dict[str, np.ndarray]:
    pieces = []
    for path in sorted(folder.glob("*.arrow")):
        with pa.OSFile(str(path)) as file:
            pieces.append(pa.ipc.open_file(file).read_all().replace_schema_metadata(None))
    table = pa.concat_tables(pieces).sort_by("key")
    arrays = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        is_list = pa.types.is_fixed_size_list(column.type)
        values = column.flatten().to_numpy() if is_list else column.to_numpy()
        arrays[name] = values.reshape(len(table), -1) if is_list else values
    return arrays
