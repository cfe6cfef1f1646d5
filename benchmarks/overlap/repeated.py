"""A reader of batches that are there: what they take to make is none of a pipeline's time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import hetero_pipe as hp


@dataclass(frozen=True)
class Repeated:
    """A reader of batches that are there, over and over.

    Attributes:
        items: The distinct batches.
        num_steps: Batches of an epoch.
    """

    items: Sequence[hp.Batch]
    num_steps: int

    @property
    def slots(self) -> tuple[str, ...]:
        """Of the batches."""
        return tuple(self.items[0].bags)

    @property
    def dense(self) -> tuple[str, ...]:
        """Of the batches."""
        return self.items[0].dense_names

    def batches(self, epoch: int, *, skip: int = 0) -> Iterator[hp.Batch]:
        """Returns the batches of an epoch."""
        return (self.items[i % len(self.items)] for i in range(skip, self.num_steps))

    def __iter__(self) -> Iterator[hp.Batch]:
        return self.batches(0)

    def in_order(self) -> "Repeated":
        """Returns this reader."""
        return self
