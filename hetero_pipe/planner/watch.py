"""Watch: how long a search may take, and what it has to tell meanwhile."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from hetero_pipe.planner.judge import Judge
from hetero_pipe.planner.search import Search

__all__ = ["Progress", "Watch"]


@dataclass(frozen=True)
class Progress:
    """How far a search has come.

    Attributes:
        what: It does, for people.
        num_predicted: Plans, and bounds of many.
        loss: Of the best plan found; infinite if there is none yet.
        bound: No plan has a lower loss, as far as is known.
    """

    what: str
    num_predicted: int
    loss: float
    bound: float


@dataclass
class Watch:
    """The time that a search has.

    Attributes:
        seconds: From when it is made.
        clock: Tells the time, in seconds.
        told: Is told how far the search has come, again and again; may raise to end it.
    """

    seconds: float
    clock: Callable[[], float] = time.monotonic
    told: Callable[[Progress], None] | None = None
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.clock() + self.seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self.end - self.clock()

    def shortened(self, seconds: float) -> "Watch":
        """Returns one of so many seconds from now, but no more than are left."""
        return Watch(min(seconds, self.left), self.clock, self.told)

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left < 0

    def tell(self, what: str, judge: Judge, searches: Collection[Search]) -> None:
        """Tells how far some searches have come."""
        if self.told is not None:
            loss = min((each.loss for each in searches), default=float("inf"))
            bound = min((each.bound for each in searches), default=loss)
            self.told(Progress(what, judge.num_predicted, loss, bound))
