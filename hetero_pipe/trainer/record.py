"""Record: how much has been trained, added up."""

from dataclasses import dataclass, field

from hetero_pipe.pipeline import Timeline

__all__ = ["Record"]


@dataclass
class Record:
    """Counts what one `fit` trains. Used by one thread at a time.

    Attributes:
        num_steps: Counted.
        num_samples: Counted.
        seconds: They took.
        max_staleness: The most pushes that a pull missed.
        num_missed: Pushes that pulls missed, summed over the pulls.
        timeline: Where the time of each stage went.
    """

    num_steps: int = 0
    num_samples: int = 0
    seconds: float = 0.0
    max_staleness: int = 0
    num_missed: int = 0
    timeline: Timeline = field(default_factory=Timeline)

    def add(self, other: "Record") -> None:
        """Adds the totals of another record."""
        self.num_steps += other.num_steps
        self.num_samples += other.num_samples
        self.seconds += other.seconds
        self.max_staleness = max(self.max_staleness, other.max_staleness)
        self.num_missed += other.num_missed
        self.timeline = self.timeline.plus(other.timeline)

    def speed(self) -> float:
        """Returns samples per second."""
        return self.num_samples / self.seconds if self.seconds else 0.0
