"""Where a trainer's batches come from, and the reader of tables in files."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import numpy as np

from hetero_pipe.data.ahead import ahead
from hetero_pipe.data.array import aligned_empty
from hetero_pipe.data.batch import Batch, Floats, Rows
from hetero_pipe.data.columns import Chunk, Columns
from hetero_pipe.data.split import HASH_RANGE, row_hashes
from hetero_pipe.errors import ConfigError

__all__ = ["Reader", "Source", "TableReader"]


# Chunks that are parsed while the caller hashes one.
_NUM_AHEAD = 2


class Reader(Protocol):
    """What a trainer asks of its data. It is immutable; several threads may iterate it."""

    @property
    def slots(self) -> tuple[str, ...]:
        """The categorical fields, in the order of a batch's bags."""

    @property
    def dense(self) -> tuple[str, ...]:
        """The numeric fields, in the order of a batch's dense columns."""

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[Batch]:
        """Returns the batches of one epoch, after the first `skip`.

        Equal arguments give equal batches. Only the last batch may be smaller
        than the others.

        Args:
            epoch: From 0; picks the order of a reader that shuffles.
            skip: Batches already consumed, as a resumed run has.
        """

    def in_order(self) -> "Reader":
        """Returns a reader of the same rows in the order of the files."""


class Source(Protocol):
    """Files of one format."""

    def chunks(self) -> Generator[Chunk, None, None]:
        """Yields every row of every file, in order, a chunk at a time.

        Raises:
            DataError: A file cannot be read or holds what it must not.
        """


@dataclass(frozen=True)
class TableReader:
    """Reads tables in files: columns -> keys -> rows of this side -> shuffle window -> batches.

    Attributes:
        source: The files.
        columns: Which of their columns mean what.
        batch_size: Samples of a batch.
        shuffle: Rows of the window that is shuffled, 0 for the order of the files.
            Memory grows with it, and with nothing else.
        seed: The order of an epoch is a function of (seed, epoch).
        first_hash: The lowest hash of a row that is read; see `split`.
        last_hash: The highest.
        hashed_slots: The slots that the hash of a row covers; None is all, and
            the dense values.
        log_dense: Whether a dense value x becomes sign(x) log(1 + |x|).
    """

    source: Source
    columns: Columns
    batch_size: int
    shuffle: int = 0
    seed: int = 0
    first_hash: int = 0
    last_hash: int = HASH_RANGE - 1
    hashed_slots: tuple[str, ...] | None = None
    log_dense: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size is at least 1, got batch_size={self.batch_size}")
        if self.shuffle < 0:
            raise ConfigError(
                "shuffle is the rows of the shuffle window, 0 for the order of the files, "
                f"got shuffle={self.shuffle}"
            )
        if self.seed < 0:
            raise ConfigError(f"seed is at least 0, got seed={self.seed}")

    @property
    def slots(self) -> tuple[str, ...]:
        """The categorical fields, in the order of a batch's bags."""
        return self.columns.slots

    @property
    def dense(self) -> tuple[str, ...]:
        """The numeric fields, in the order of a batch's dense columns."""
        return self.columns.dense

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[Batch]:
        """Returns the batches of one epoch, after the first `skip`.

        The files are read anew as the iterator advances: a thread of its own parses
        them, the caller's hashes. It is gone when the iterator ends or is closed.
        The skipped batches are read too: resuming costs the time to read them.

        Args:
            epoch: From 0; picks the order of a reader that shuffles.
            skip: Batches already consumed, as a resumed run has.

        Raises:
            ConfigError: `epoch` or `skip` is negative.
            DataError: While iterating: a file holds what it must not.
        """
        if epoch < 0 or skip < 0:
            raise ConfigError(f"epoch and skip are at least 0, got epoch={epoch}, skip={skip}")
        return self._batches(epoch, skip)

    def __iter__(self) -> Iterator[Batch]:
        """Returns the batches of the first epoch."""
        return self.batches(0)

    def in_order(self) -> "TableReader":
        """Returns a reader of the same rows in the order of the files."""
        return replace(self, shuffle=0)

    def split(
        self, fraction: float, *, by: Sequence[str] | None = None
    ) -> "tuple[TableReader, TableReader]":
        """Returns two readers that share out the rows: for training and for evaluation.

        A row is for evaluation when a hash of it is low. The hash covers the keys
        of its slots and its dense values, not its label, place, file or format:
        rows equal in these are all on one side, so none that is evaluated was
        trained on. Either side can be split again. On few rows, the shares differ
        from `fraction` by chance.

        Args:
            fraction: The share of rows for evaluation, above 0 and below 1.
            by: The slots that the hash covers, alone: rows equal in these are
                on one side. Readers of one file that differ in other slots are
                split alike. None: every slot and dense value.

        Returns:
            The training reader, which shuffles as this one does, and the
            evaluation reader, in the order of the files.

        Raises:
            ConfigError: `fraction` is not above 0 and below 1; `by` names no
                slot, or another than this side was split by.
        """
        by = None if by is None else tuple(by)
        if not 0 < fraction < 1:
            raise ConfigError(f"fraction is above 0 and below 1, got fraction={fraction}")
        if by is not None and (not by or set(by) - set(self.slots)):
            raise ConfigError(f"by names slots of {', '.join(self.slots)}, got by={list(by)}")
        if self.is_split and by != self.hashed_slots:
            raise ConfigError(
                f"a side is split again by the same slots, {self.hashed_slots or 'all'}, got "
                f"by={by or 'all'}; pass by= as the first split had it"
            )
        cut = self.first_hash + int((self.last_hash + 1 - self.first_hash) * fraction)
        train = replace(self, first_hash=cut, hashed_slots=by)
        return train, replace(self, last_hash=cut - 1, hashed_slots=by).in_order()

    @property
    def is_split(self) -> bool:
        """Whether this is one side of a split."""
        return self.first_hash > 0 or self.last_hash < HASH_RANGE - 1

    def kept(self, part: Batch) -> Rows:
        """Returns the rows of `part` that are on this reader's side, ascending.

        Args:
            part: As the files have it, `log_dense` not yet applied.
        """
        hashes = row_hashes(part, self.hashed_slots)
        is_ours = (hashes >= np.uint64(self.first_hash)) & (hashes <= np.uint64(self.last_hash))
        return np.flatnonzero(is_ours)

    def _batches(self, epoch: int, skip: int) -> Iterator[Batch]:  # a generator: it can be closed
        parts = self._parts()
        if self.shuffle:
            parts = self._shuffled(parts, epoch)
        for batch in islice(_cut(parts, self.batch_size), skip, None):
            yield batch.compact()

    def _parts(self) -> Iterator[Batch]:
        for chunk in ahead(self.source.chunks(), _NUM_AHEAD):
            part = self.columns.to_batch(chunk)
            if self.is_split:
                part = part.take(self.kept(part))
            # After the split: a row's side must not hang on how a machine rounds logarithms.
            yield replace(part, dense=_signed_log(part.dense)) if self.log_dense else part

    def _shuffled(self, parts: Iterable[Batch], epoch: int) -> Iterator[Batch]:
        rng = np.random.default_rng([self.seed, epoch])
        num_begun = 0  # rows of the batch that the window before left unfinished
        for window in _cut(parts, self.shuffle):
            order = rng.permutation(window.size)
            start = 0
            while start < window.size:
                # Whole batches are gathered at once; only one that spans windows is copied again.
                stop = min(start + self.batch_size - num_begun, window.size)
                yield window.take(order[start:stop])
                num_begun = (num_begun + stop - start) % self.batch_size
                start = stop


def _signed_log(values: Floats) -> Floats:
    """Returns sign(x) log(1 + |x|) of each value."""
    logs: Floats = aligned_empty(values.shape, np.float32)
    np.log1p(np.abs(values, out=logs), out=logs)
    np.copysign(logs, values, out=logs)
    return logs


def _cut(parts: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Yields the rows of `parts`, in order, as batches of exactly `size`; the last may be less."""
    held: list[Batch] = []
    num_held = 0
    for part in parts:
        start = 0
        while num_held + part.size - start >= size:
            stop = start + size - num_held
            yield Batch.concat([*held, part.slice(start, stop)])
            held, num_held, start = [], 0, stop
        if start < part.size:
            held.append(part.slice(start, part.size))
            num_held += part.size - start
    if held:
        yield Batch.concat(held)
