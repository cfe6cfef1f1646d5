"""Arrow columns -> the keys, dense values and labels of a batch, without a step per row."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hetero_pipe.data.array import aligned_empty
from hetero_pipe.data.batch import Batch, Floats
from hetero_pipe.data.hashing import can_be_slot, to_bags
from hetero_pipe.errors import ConfigError, DataError

__all__ = ["Chunk", "Columns", "Fault"]

# pyarrow has no types of its own.
Array: TypeAlias = pa.Array
Type: TypeAlias = pa.DataType


@dataclass(frozen=True, eq=False)
class Chunk:
    """Consecutive rows of one file.

    Attributes:
        rows: A record batch that holds at least the columns asked for.
        where: `where(i)` says where row i of `rows` stands: the file, and the
            line or row in it.
    """

    rows: pa.RecordBatch
    where: Callable[[int], str]


@dataclass(frozen=True)
class Fault:
    """What is wrong with a row.

    Attributes:
        reason: What must hold, and what was found.
        remedy: What to do.
    """

    reason: str
    remedy: str

    def at(self, where: str) -> DataError:
        """Returns the error that names the place."""
        return DataError(f"{self.reason} at {where}; {self.remedy}")


@dataclass(frozen=True)
class Columns:
    """Which columns of a file mean what.

    Attributes:
        slots: Categorical columns, in the order of a batch's bags.
        dense: Numeric columns, in the order of a batch's dense columns.
        label: The numeric column to learn, or None.
        separator: Splits the text of a slot into the keys of a bag, or None.
        shared_keys: By slot, another one: a value of the first has the key that
            it has in the second.
    """

    slots: tuple[str, ...]
    dense: tuple[str, ...]
    label: str | None
    separator: str | None
    shared_keys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.slots and not self.dense:
            raise ConfigError(
                "a reader needs a column, got no slots and no dense; name at least one"
            )
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise ConfigError(
                    f"a column has one use, got {name!r} twice among slots={self.slots}, "
                    f"dense={self.dense} and label={self.label!r}; keep one"
                )
            seen.add(name)
        if self.separator == "":
            raise ConfigError(
                "multi_hot_separator is text such as '|', or None for one value a cell, got ''"
            )
        for slot, other in self.shared_keys.items():
            # A chain would leave open whether its middle has keys of its own.
            if {slot, other} - set(self.slots) or slot == other or other in self.shared_keys:
                raise ConfigError(
                    "shared_keys maps a slot to another one, which has keys of its own, got "
                    f"{slot!r} to {other!r} with slots={self.slots}; name two of them"
                )

    @property
    def numbers(self) -> tuple[str, ...]:
        """The dense columns and the label."""
        return self.dense if self.label is None else (*self.dense, self.label)

    @property
    def names(self) -> tuple[str, ...]:
        """Every column to read."""
        return (*self.slots, *self.numbers)

    def check_names(self, found: Sequence[str], path: Path) -> None:
        """Checks that a file has each column, once.

        Raises:
            ConfigError: A column is missing.
            DataError: Two columns have its name.
        """
        for name in self.names:
            if name not in found:
                near = difflib.get_close_matches(name, found, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(
                    f"no column {name!r} in {path}, which has {', '.join(map(repr, found))}{hint}"
                )
            if found.count(name) > 1:
                raise DataError(
                    f"column {name!r} stands {found.count(name)} times in {path}; "
                    "rename all but one"
                )

    def check_types(self, schema: pa.Schema, path: Path) -> None:
        """Checks that each column of a typed file can serve its use.

        Raises:
            DataError: A column cannot.
        """
        for slot in self.slots:
            kind = schema.field(slot).type
            if not can_be_slot(kind):
                raise DataError(
                    f"slot {slot!r} needs text, integers, booleans, dates or lists of these, "
                    f"got type {kind} in {path}; cast the column to string or to an integer"
                )
        for name in self.numbers:
            kind = schema.field(name).type
            if not _can_be_number(kind):
                use = "label" if name == self.label else "dense column"
                raise DataError(
                    f"{use} {name!r} needs numbers or booleans, got type {kind} in {path}; "
                    "cast the column to a number, or read it as a slot"
                )

    def to_batch(self, chunk: Chunk) -> Batch:
        """Returns every row of the chunk as a batch.

        Raises:
            DataError: A label is missing or not finite, or a dense value is
                infinite.
        """
        rows = chunk.rows
        dense = aligned_empty((rows.num_rows, len(self.dense)), np.float32)
        for i, name in enumerate(self.dense):
            dense[:, i] = self._dense(name, rows.column(name), chunk)
        return Batch(
            bags={
                slot: to_bags(
                    rows.column(slot),
                    slot=self.shared_keys.get(slot, slot),
                    separator=self.separator,
                )
                for slot in self.slots
            },
            dense=dense,
            label=None if self.label is None else self._label(rows.column(self.label), chunk),
            dense_names=self.dense,
        )

    def wrong_rows(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """Returns the rows that `to_batch` refuses, ascending."""
        is_wrong = np.zeros(rows.num_rows, np.bool_)
        for name in self.dense:
            is_wrong |= np.isinf(_floats(rows.column(name)))
        if self.label is not None:
            is_wrong |= ~np.isfinite(_floats(rows.column(self.label)))
        return np.flatnonzero(is_wrong)

    def fault(self, rows: pa.RecordBatch, row: int) -> Fault:
        """Returns the fault of one of `wrong_rows`."""
        for name in self.dense:
            column = rows.column(name)
            if np.isinf(_floats(column.slice(row, 1)))[0]:
                return Fault(
                    f"dense column {name!r} needs values that a float32 holds, got {column[row]}",
                    "clip the value or leave it out",
                )
        column = rows.column(self.label)
        found = column[row] if column[row].is_valid else "nothing"
        return Fault(
            f"label {self.label!r} needs a finite number in every row, got {found}",
            "drop the row, or fill it in",
        )

    def _dense(self, name: str, column: Array, chunk: Chunk) -> Floats:
        values = _floats(column)
        finite = np.isfinite(values)
        if finite.all():
            return values
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            row = int(infinite[0])
            raise self.fault(chunk.rows, row).at(chunk.where(row))
        return np.where(finite, values, np.float32(0))

    def _label(self, column: Array, chunk: Chunk) -> Floats:
        values = _floats(column)
        wrong = np.flatnonzero(~np.isfinite(values))
        if len(wrong):
            row = int(wrong[0])
            raise self.fault(chunk.rows, row).at(chunk.where(row))
        return values


def _can_be_number(kind: Type) -> bool:
    if pa.types.is_dictionary(kind):
        return _can_be_number(kind.value_type)
    claims = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_decimal,
        pa.types.is_null,
    )
    return any(claim(kind) for claim in claims)


def _floats(column: Array) -> Floats:
    """Returns the column as float32 `[n]`, NaN for null; a value beyond float32 is infinite."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # Through float64, as a CSV is parsed, so that both forms of a table give the same bits.
    if not pa.types.is_float32(column.type):
        column = pc.cast(column, pa.float64(), safe=False)
    values: NDArray[np.float64] = column.to_numpy(zero_copy_only=False)
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
