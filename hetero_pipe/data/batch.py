"""The samples of one step: keys by slot, dense values and labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data.array import aligned, aligned_empty
from hetero_pipe.errors import ConfigError

__all__ = ["Bags", "Batch"]

Keys: TypeAlias = NDArray[np.uint64]
Floats: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Bags:
    """The keys of one slot: bag i, that of sample i, is `keys[offsets[i]:offsets[i + 1]]`.

    Attributes:
        keys: uint64 `[n]`.
        offsets: int64 `[batch + 1]`, from 0 to n and never falling, or None
            where every bag has exactly one key (then n is the batch's size).
    """

    keys: Keys
    offsets: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.keys.dtype != np.uint64 or self.keys.ndim != 1:
            raise ConfigError(f"keys are uint64 [n], got {self.keys.dtype} {self.keys.shape}")
        offsets = self.offsets
        if offsets is None:
            return
        if offsets.dtype != np.int64 or offsets.ndim != 1 or len(offsets) == 0:
            raise ConfigError(f"offsets are int64 [batch + 1], got {offsets.dtype} {offsets.shape}")
        if offsets[0] != 0 or offsets[-1] != len(self.keys):
            raise ConfigError(
                f"offsets run from 0 to the number of keys, {len(self.keys)}, "
                f"got {offsets[0]} to {offsets[-1]}"
            )

    @property
    def size(self) -> int:
        """The number of bags."""
        return len(self.keys) if self.offsets is None else len(self.offsets) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Returns the number of keys of each bag, `[size]`."""
        if self.offsets is None:
            return np.ones(self.size, np.int64)
        return np.diff(self.offsets)

    def slice(self, start: int, stop: int) -> "Bags":
        """Returns bags `start` to `stop`, as a view of these keys."""
        if self.offsets is None:
            return Bags(self.keys[start:stop])
        offsets = self.offsets[start : stop + 1]
        return Bags(self.keys[offsets[0] : offsets[-1]], offsets - offsets[0])

    def take(self, rows: Rows) -> "Bags":
        """Returns a copy of the bags at `rows`, in that order."""
        if self.offsets is None:
            return Bags(self.keys.take(rows))
        lengths = self.lengths()[rows]
        # A key keeps its distance from the start of its bag.
        moves = np.repeat(self.offsets[rows] - (np.cumsum(lengths) - lengths), lengths)
        return Bags.of_lengths(self.keys[moves + np.arange(len(moves))], lengths)

    def compact(self) -> "Bags":
        """Returns the same bags, without offsets where every bag has exactly one key."""
        if self.offsets is None or len(self.keys) != self.size or np.any(self.lengths() != 1):
            return self
        return Bags(self.keys)

    @staticmethod
    def of_lengths(keys: Keys, lengths: NDArray[np.int64]) -> "Bags":
        """Returns bags that take so many keys each, `lengths` `[batch]`, one after the other."""
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return Bags(keys, offsets)

    @staticmethod
    def concat(parts: "Sequence[Bags]") -> "Bags":
        """Returns the bags of every part, one part after the other."""
        keys = np.concatenate([part.keys for part in parts])
        if all(part.offsets is None for part in parts):
            return Bags(keys)
        return Bags.of_lengths(keys, np.concatenate([part.lengths() for part in parts]))


@dataclass(frozen=True, eq=False)
class Batch:
    """The samples of one step, or of a part of it. Nobody writes to its arrays.

    Attributes:
        bags: The keys of each slot, in the reader's order.
        dense: float32 `[batch, num_dense]`. Its first byte is at a multiple of
            64: an array that starts elsewhere is copied.
        label: float32 `[batch]`, aligned likewise, or None for prediction.
        dense_names: The names of the columns of `dense`, `[num_dense]`.

    Raises:
        ConfigError: The arrays disagree about the number of samples.
    """

    bags: Mapping[str, Bags]
    dense: Floats
    label: Floats | None = None
    dense_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.dense.dtype != np.float32 or self.dense.ndim != 2:
            raise ConfigError(
                "dense is float32 [batch, num_dense] (num_dense may be 0), "
                f"got {self.dense.dtype} {self.dense.shape}"
            )
        if len(self.dense_names) != self.dense.shape[1]:
            raise ConfigError(
                f"dense has a name for each column, got {self.dense.shape[1]} columns "
                f"and dense_names={self.dense_names}"
            )
        object.__setattr__(self, "dense", aligned(self.dense))
        for slot, bags in self.bags.items():
            if bags.size != self.size:
                raise ConfigError(
                    f"slot {slot!r} has a bag for each sample, "
                    f"got {bags.size} bags and {self.size} samples"
                )
        if self.label is not None:
            if self.label.dtype != np.float32 or self.label.shape != (self.size,):
                raise ConfigError(
                    f"label is float32 [{self.size}], got {self.label.dtype} {self.label.shape}"
                )
            object.__setattr__(self, "label", aligned(self.label))

    @property
    def size(self) -> int:
        """The number of samples."""
        return len(self.dense)

    def slice(self, start: int, stop: int) -> "Batch":
        """Returns samples `start` to `stop`: a micro-batch. Its keys are views of these."""
        if start == 0 and stop == self.size:
            return self
        return Batch(
            bags={slot: bags.slice(start, stop) for slot, bags in self.bags.items()},
            dense=self.dense[start:stop],
            label=None if self.label is None else self.label[start:stop],
            dense_names=self.dense_names,
        )

    def take(self, rows: Rows) -> "Batch":
        """Returns a copy of the samples at `rows`, each in [0, size), in that order."""
        dense = aligned_empty((len(rows), self.dense.shape[1]), np.float32)
        # `raise`, the default, would gather into a temporary first.
        np.take(self.dense, rows, axis=0, out=dense, mode="clip")
        return Batch(
            bags={slot: bags.take(rows) for slot, bags in self.bags.items()},
            dense=dense,
            label=None if self.label is None else self.label[rows],
            dense_names=self.dense_names,
        )

    def compact(self) -> "Batch":
        """Returns the same samples, without offsets in slots whose bags all have one key."""
        bags = {slot: bags.compact() for slot, bags in self.bags.items()}
        return Batch(bags, self.dense, self.label, self.dense_names)

    @staticmethod
    def concat(parts: "Sequence[Batch]") -> "Batch":
        """Returns the samples of every part, one part after the other.

        Args:
            parts: At least one, all with the same slots, dense columns and
                presence of a label.
        """
        first = parts[0]
        if len(parts) == 1:
            return first
        size = sum(part.size for part in parts)
        dense = aligned_empty((size, first.dense.shape[1]), np.float32)
        np.concatenate([part.dense for part in parts], out=dense)
        label = None
        if first.label is not None:
            label = aligned_empty(size, np.float32)
            np.concatenate([part.label for part in parts if part.label is not None], out=label)
        bags = {slot: Bags.concat([part.bags[slot] for part in parts]) for slot in first.bags}
        return Batch(bags, dense, label, first.dense_names)
