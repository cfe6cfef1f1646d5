"""The batch as a model sees it: a dict of tensors, with the pulled rows beside them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import paddle

from hetero_pipe.data import Batch, Lookup
from hetero_pipe.errors import ConfigError
from hetero_pipe.nn.bag import BagRows
from hetero_pipe.nn.device import Device, Upload

__all__ = ["PulledRows", "TensorBatch", "cut_name"]


@dataclass(frozen=True, eq=False)
class PulledRows:
    """The rows of one table for one batch.

    Attributes:
        rows: float32 `[u, dim]`, each distinct row once; on a device, more rows
            may follow, to which no index points. A leaf: its gradient is what
            is pushed.
        lookup: Where each slot's rows lie among them.
    """

    rows: paddle.Tensor
    lookup: Lookup


def cut_name(table: str, slot: str | None = None) -> str:
    """Returns what a cut is called: the pooled rows of a table, or a slot's rows one by one.

    Unique in a model: a table's name has no bracket.
    """
    return table if slot is None else f"{table}.unpooled({slot})"


class TensorBatch(Mapping[str, paddle.Tensor]):
    """What a model is called with.

    `batch["dense"]` is float32 `[batch, num_dense]`, if the reader has dense
    columns; `batch[column]` one of them, `[batch]`; `batch["label"]` float32
    `[batch]`, if there are labels. Slots are read through `hp.Embedding`.

    Args:
        batch: The samples.
        pulled: The rows of each table.
        device: Where the tensors go, or what went there ahead.
        cuts: In a dense worker, what its sparse workers made of the rows, by
            `cut_name`; then nothing is pulled. None elsewhere.
    """

    def __init__(
        self,
        batch: Batch,
        pulled: Mapping[str, PulledRows],
        device: Device | Upload,
        *,
        cuts: Mapping[str, paddle.Tensor | BagRows] | None = None,
    ) -> None:
        self.size = batch.size
        self.pulled = pulled
        self.cuts = cuts
        self.device = device
        self._slots = tuple(batch.bags)
        self._dense_names = batch.dense_names
        self._tensors: dict[str, paddle.Tensor] = {}
        if batch.dense_names:
            self._tensors["dense"] = device.to_tensor(batch.dense)
        if batch.label is not None:
            self._tensors["label"] = device.to_tensor(batch.label)

    def __getitem__(self, name: str) -> paddle.Tensor:
        if name in self._tensors:
            return self._tensors[name]
        if name in self._dense_names:
            return self._tensors["dense"][:, self._dense_names.index(name)]
        hint = "; read a slot through hp.Embedding" if name in self._slots else ""
        raise ConfigError(f"a batch has {', '.join(self) or 'no dense column'}, got {name!r}{hint}")

    def __iter__(self) -> Iterator[str]:
        yield from self._tensors
        yield from (name for name in self._dense_names if name not in self._tensors)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or name in self._dense_names

    def get(self, name: str, default: Any = None) -> Any:  # as Mapping's
        """Returns a tensor, or `default` where there is none of that name."""
        if name not in self:
            return default
        return self[name]
