"""Ranges: which batches of an epoch are trained, by whom, and which are still to be. Pure.

The batches of an epoch are handed out in ranges, in their order; one that its
holder gave up goes first to the next who asks. Nobody knows beforehand how many
there are: who finds the end of the data says so, by a range that is short::

    number   0      1        2        3        4        5       6        7
           open   train    train    train    train    close   train    train ...
                  64       64       17: end  0                64
           └───────────────────── epoch 0 ─────────────────┘ └──── epoch 1 ...

Range 0 opens the run: its holder sets what all workers begin with. The last one
of an epoch closes it: it is handed out when all others of the epoch are complete,
and no other range until it is. So whoever opens or closes is alone.

Every number is handed out once, and complete, or held, or given back; so a number
below the next that is neither held nor given back is complete. One that opened and
was given up is not handed out again: what its holder has set is to be overwritten
by the next, which has another number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

__all__ = ["RangeKind", "Ranges", "RangesState"]


class RangeKind(Enum):
    """What the holder of a range does."""

    OPEN = "OPEN"
    TRAIN = "TRAIN"
    CLOSE = "CLOSE"


@dataclass(frozen=True)
class RangesState:
    """All that `Ranges` is, as JSON has it.

    Attributes:
        size: Batches of a range.
        is_open: Whether a range has opened the run.
        epoch: That is trained, from 0.
        first: Number of its first range.
        next: Number of the first range that was never handed out.
        last: Number of the range in which the data end; None while nobody knows.
        closing: Number of the range that closes the epoch, once it is handed out.
        num_batches: Of all ranges that are complete, of all epochs.
        num_before: Of all epochs before this one.
        held: Holder by number.
        returned: Numbers that were given back.
    """

    size: int
    is_open: bool = False
    epoch: int = 0
    first: int = 0
    next: int = 0
    last: int | None = None
    closing: int | None = None
    num_batches: int = 0
    num_before: int = 0
    held: Mapping[int, int] | None = None
    returned: tuple[int, ...] = ()


class Ranges:
    """The ranges of one run. Its owner locks; nothing but changes moves it.

    Args:
        state: What it goes on from.
    """

    def __init__(self, state: RangesState) -> None:
        self.size = state.size
        self.is_open = state.is_open
        self.epoch = state.epoch
        self._first = state.first
        self._next = state.next
        self._last = state.last
        self._closing = state.closing
        self._num_batches = state.num_batches
        self.num_before = state.num_before
        self.held: dict[int, int] = dict(state.held or {})
        self._returned = set(state.returned)

    def state(self) -> RangesState:
        """Returns a copy of all that it is."""
        return RangesState(
            self.size,
            self.is_open,
            self.epoch,
            self._first,
            self._next,
            self._last,
            self._closing,
            self._num_batches,
            self.num_before,
            dict(self.held),
            tuple(sorted(self._returned)),
        )

    def offered(self) -> int | None:
        """Returns the number of the range that is to be leased next, None while all must wait."""
        if self._returned:
            return min(self._returned)
        is_alone = not self.is_open or self._last is not None  # whoever opens or closes
        return None if is_alone and self.held else self._next

    def is_complete(self, number: int) -> bool:
        """Whether a range need not be held any more; those that opened in vain count, too."""
        return number < self._next and number not in self.held and number not in self._returned

    def kind_of(self, number: int) -> RangeKind:
        """Returns what the holder of a range does. It is not complete."""
        if not self.is_open:
            return RangeKind.OPEN
        return RangeKind.CLOSE if number == self._closing else RangeKind.TRAIN

    def first_batch(self, number: int) -> int:
        """Returns where in its epoch a range of the present one begins."""
        return (number - self._first) * self.size

    def lease(self, number: int, holder: int) -> None:
        """Hands out what `offered` has returned."""
        assert number == self.offered(), "ranges go out in one order"
        if number == self._next:
            self._next += 1
            if self._last is not None:
                self._closing = number
        self._returned.discard(number)
        self.held[number] = holder

    def give_back(self, number: int) -> None:
        """Takes a range that is held from its holder."""
        del self.held[number]
        is_beyond = self._last is not None and number > self._last and number != self._closing
        if self.is_open and not is_beyond:
            self._returned.add(number)

    def complete(self, number: int, num_batches: int) -> None:
        """Ends a range that is not complete, whoever holds it.

        Args:
            number: Of the range.
            num_batches: That it has: fewer than others, 0 too, where the data end.
        """
        kind = self.kind_of(number)
        self.held.pop(number, None)
        self._returned.discard(number)
        if kind is RangeKind.OPEN:
            self.is_open, self._first = True, self._next
            return
        if kind is RangeKind.CLOSE:
            self.epoch += 1
            self._first, self._last, self._closing = self._next, None, None
            self.num_before = self._num_batches
            return
        self._num_batches += num_batches
        if num_batches < self.size:
            self._last = number if self._last is None else min(self._last, number)
            self._returned = {each for each in self._returned if each <= self._last}
