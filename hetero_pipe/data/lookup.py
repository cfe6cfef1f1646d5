"""Lookup: where the row of each key of a batch lies among the batch's distinct rows."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data.batch import Batch

__all__ = ["BagIndex", "Lookup", "occurrences"]


@dataclass(frozen=True, eq=False)
class BagIndex:
    """The rows of a slot with any number of keys a sample.

    Attributes:
        rows: int64 `[n]`, the row of each key.
        samples: int64 `[n]`, the sample of each key; never falling.
        counts: float32 `[batch, 1]`, the number of keys of each sample, at
            least 1, for a mean.
    """

    rows: NDArray[np.int64]
    samples: NDArray[np.int64]
    counts: NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Lookup:
    """Where the rows of a table's slots lie among the rows `[u, dim]` that were pulled.

    Attributes:
        slots: Of the table, in the order that its output has.
        size: Samples of the batch.
        single_slots: Those with exactly one key a sample, in that order.
        single: int64 `[batch, len(single_slots)]`, the row of each key.
        bags: The other slots.
    """

    slots: tuple[str, ...]
    size: int
    single_slots: tuple[str, ...]
    single: NDArray[np.int64]
    bags: Mapping[str, BagIndex]

    @staticmethod
    def of(batch: Batch, slots: tuple[str, ...], inverse: NDArray[np.int64]) -> "Lookup":
        """Returns the lookup of `occurrences(batch, slots)`, whose row i is `inverse[i]`."""
        single_slots, bag_slots = _partition(batch, slots)
        start = batch.size * len(single_slots)
        single = inverse[:start].reshape(batch.size, len(single_slots))
        bags = {}
        for slot in bag_slots:
            lengths = batch.bags[slot].lengths()
            stop = start + len(batch.bags[slot].keys)
            bags[slot] = BagIndex(
                rows=inverse[start:stop],
                samples=np.repeat(np.arange(batch.size), lengths),
                counts=np.maximum(lengths, 1).astype(np.float32).reshape(-1, 1),
            )
            start = stop
        return Lookup(slots, batch.size, single_slots, single, bags)

    def first_use(self, row: int) -> tuple[str, int]:
        """Returns slot and sample of a key whose row is `row`; for messages."""
        samples, columns = np.nonzero(self.single == row)
        if len(samples):
            return self.single_slots[columns[0]], int(samples[0])
        for slot, bag in self.bags.items():
            where = np.flatnonzero(bag.rows == row)
            if len(where):
                return slot, int(bag.samples[where[0]])
        raise AssertionError(f"row {row} was pulled for no slot")


def occurrences(batch: Batch, slots: tuple[str, ...]) -> NDArray[np.uint64]:
    """Returns the keys of the slots, repeated keys too.

    Returns:
        uint64 `[n]`: sample by sample the slots with one key a sample, then
        slot by slot the others.
    """
    single_slots, bag_slots = _partition(batch, slots)
    parts = [batch.bags[slot].keys for slot in bag_slots]
    if single_slots:
        single = np.stack([batch.bags[slot].keys for slot in single_slots], axis=1)
        parts.insert(0, single.reshape(-1))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _partition(batch: Batch, slots: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    single = tuple(slot for slot in slots if batch.bags[slot].offsets is None)
    return single, tuple(slot for slot in slots if slot not in single)
