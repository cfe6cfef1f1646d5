"""One worker's share of a reader."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from hetero_pipe.data.batch import Batch
from hetero_pipe.data.reader import Reader

__all__ = ["Share", "share"]


@dataclass(frozen=True)
class Share:
    """Every `num_workers`-th batch of a reader, from batch `rank` on.

    Attributes:
        reader: Whose batches are shared out.
        rank: Of the worker, from 0.
        num_workers: That share.
    """

    reader: Reader
    rank: int
    num_workers: int

    @property
    def slots(self) -> tuple[str, ...]:
        """As the reader's."""
        return self.reader.slots

    @property
    def dense(self) -> tuple[str, ...]:
        """As the reader's."""
        return self.reader.dense

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[Batch]:
        """Returns the batches of one epoch, after the first `skip` of this share."""
        return self._batches(epoch, skip)

    def _batches(self, epoch: int, skip: int) -> Iterator[Batch]:  # a generator: it can be closed
        batches = self.reader.batches(epoch, skip=skip * self.num_workers)
        try:
            yield from islice(batches, self.rank, None, self.num_workers)
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()

    def in_order(self) -> "Share":
        """Returns the share of the reader's rows in the order of the files."""
        return Share(self.reader.in_order(), self.rank, self.num_workers)


def share(reader: Reader, rank: int, num_workers: int) -> Reader:
    """Returns the batches n of a reader with `n % num_workers == rank`.

    The shares of all ranks have every batch once; that of a later rank may be one batch
    shorter. Batches of others are read and dropped.
    """
    return reader if num_workers == 1 else Share(reader, rank, num_workers)
