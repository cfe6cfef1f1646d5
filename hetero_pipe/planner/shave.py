"""Shave: which numbers at the ends of a box's ranges has no good plan?

Where a throughput is required, each resource alone asks for so many machines, however
many there are of all others::

    machines of a role   1 2 3 4 5 6 7 8        floor(1..4 of them, the most of all others)
                         . . . . . x x x        is too slow: no plan has fewer than 5

so a box without them costs more at the least. With a plan at hand, what costs more than
that is cut off at the other end.
"""

from collections.abc import Sequence
from functools import partial

from hetero_pipe.planner.box import Box
from hetero_pipe.planner.judge import Judge
from hetero_pipe.planner.least import least

__all__ = ["shaved"]


def shaved(box: Box, judge: Judge, *, below: float) -> Box | None:
    """Returns the box without numbers that no plan has that is better than what is known.

    If there is no better one in it, it returns None, or a box that promises nothing.

    Args:
        box: Of plans.
        judge: Of what boxes promise.
        below: The loss that a plan must be below to be better.
    """

    def is_hopeful(index: int, end: int, numbers: Sequence[int], some: int) -> bool:
        part = numbers[:some] if end > 0 else numbers[-some:]
        return judge.promise(box.with_range(index, part), below=below).loss < below

    if judge.aim.what == "money":
        box = _affordable(box, judge, below)
        if judge.promise(box, below=below).loss >= below:
            return None
    for index in range(len(box.ranges)):
        for end in (1, -1):
            numbers = box.ranges[index]
            # What is hopeless stays so with fewer numbers.
            some = least(len(numbers) - 1, partial(is_hopeful, index, end, numbers))
            hopeless = len(numbers) - 1 if some is None else some - 1
            if hopeless:
                kept = numbers[hopeless:] if end > 0 else numbers[:-hopeless]
                box = box.with_range(index, kept)
    return box


def _affordable(box: Box, judge: Judge, below: float) -> Box:
    """Returns the box without numbers of machines that cost too much with the fewest of others."""

    def is_dear(index: int, numbers: Sequence[int], rank: int) -> bool:
        return judge.price(box.with_machines(index, numbers[rank - 1 :])) >= below

    for index, numbers in enumerate(box.machines):
        first = least(len(numbers), partial(is_dear, index, numbers))
        if first is not None:
            box = box.with_machines(index, numbers[: max(first - 1, 1)])
    return box
