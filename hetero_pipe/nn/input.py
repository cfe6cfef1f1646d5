"""What goes into a dense step: a batch and its rows, or its cuts, on the way to tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.data import Batch, Cut, Lookup
from hetero_pipe.nn.bag import BagRows
from hetero_pipe.nn.batch import PulledRows, TensorBatch
from hetero_pipe.nn.device import Device, Upload

__all__ = ["TableRows", "leaves_of", "to_tensors", "upload", "values_of"]


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of one table for one batch.

    Attributes:
        rows: float32 `[u, dim]`, each distinct row once; a tensor if they are on
            the device.
        lookup: Where each slot's rows lie among them.
    """

    rows: NDArray[np.float32] | paddle.Tensor
    lookup: Lookup


def upload(device: Device, batch: Batch, tables: Mapping[str, TableRows | Cut]) -> Upload:
    """Starts to copy a batch and its rows, or its cuts, to a device."""
    arrays: list[NDArray[Any]] = [batch.dense] if batch.dense_names else []
    arrays += [] if batch.label is None else [batch.label]
    pulled = [table for table in tables.values() if isinstance(table, TableRows)]
    # Tables of the same slots share their lookup.
    indexes = {id(table.lookup): table.lookup.single for table in pulled}
    arrays += [index for index in indexes.values() if index.size]
    # Rows of bags are as many as they are: they go with the step.
    arrays += [
        cut.values
        for cut in tables.values()
        if isinstance(cut, Cut) and cut.offsets is None and cut.values.size
    ]
    rows = [
        table.rows for table in pulled if isinstance(table.rows, np.ndarray) and table.rows.size
    ]
    return device.upload(arrays, rows=rows)


def to_tensors(
    batch: Batch,
    tables: Mapping[str, TableRows | Cut],
    uploaded: Upload,
    *,
    with_gradient: bool,
) -> TensorBatch:
    """Returns what the model is called with; its leaves have a gradient where one is wanted."""
    uploaded.join()
    pulled: dict[str, PulledRows] = {}
    cuts: dict[str, paddle.Tensor | BagRows] = {}
    for name, table in tables.items():
        values = values_of(table)
        leaf: paddle.Tensor = (
            values if isinstance(values, paddle.Tensor) else uploaded.to_tensor(values)
        )
        # An Embedding without keys gives rows that no gradient reaches: Paddle fails on them.
        leaf.stop_gradient = not with_gradient or len(values) == 0
        if isinstance(table, TableRows):
            pulled[name] = PulledRows(leaf, table.lookup)
        elif table.offsets is not None:
            cuts[name] = BagRows.of(leaf, table.offsets, uploaded)
        else:
            cuts[name] = leaf
    return TensorBatch(batch, pulled, uploaded, cuts=cuts or None)


def values_of(table: TableRows | Cut) -> NDArray[np.float32] | paddle.Tensor:
    """Returns the values of rows or of a cut."""
    return table.values if isinstance(table, Cut) else table.rows


def leaves_of(inputs: TensorBatch) -> dict[str, paddle.Tensor]:
    """Returns what gradients are wanted of, by name: rows that were pulled, or cuts."""
    cuts = inputs.cuts or {}
    return {
        **{name: pulled.rows for name, pulled in inputs.pulled.items()},
        **{name: cut.rows if isinstance(cut, BagRows) else cut for name, cut in cuts.items()},
    }
