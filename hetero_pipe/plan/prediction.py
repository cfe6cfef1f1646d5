"""Prediction: what a plan is expected to do, and why."""

from dataclasses import dataclass, field

from hetero_pipe.plan.breakdown import MOVES, Breakdown, Part

__all__ = ["MemoryPrediction", "Prediction", "StagePrediction"]


@dataclass(frozen=True)
class StagePrediction:
    """A stage of one worker, for one step.

    Attributes:
        name: Of the stage, as a `Timeline` has it.
        role: Of the workers that have it, one of `ROLES`.
        cost: Its seconds if nothing else ran, by what they are spent on.
        busy: Seconds that it is at work while all else runs, too: it may wait for a core.
        aside: Seconds on cores that other threads take for it, beside its own.
    """

    name: str
    role: str
    cost: Breakdown
    busy: float
    aside: Breakdown = field(default_factory=Breakdown)

    @property
    def cpu(self) -> float:
        """Seconds of it on a core of its worker."""
        return self.cost.on("worker")

    @property
    def moves(self) -> Breakdown:
        """What a batch waits for, of all that is done aside: no stage's thread does."""
        return self.aside.labelled(*MOVES)

    @property
    def whole_cost(self) -> Breakdown:
        """Its seconds and those aside, which are more than its time."""
        return self.cost + self.aside


@dataclass(frozen=True)
class MemoryPrediction:
    """The memory of one device, or of one machine, at its peak.

    Attributes:
        role: Whose process is largest there, one of `ROLES`.
        host: Name of the cluster's host.
        device: `cpu` is the machine's own memory.
        peak: Bytes, by what they hold.
        capacity: Bytes that may be used.
    """

    role: str
    host: str
    device: str
    peak: Breakdown
    capacity: float

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.peak.total <= self.capacity


@dataclass(frozen=True)
class Prediction:
    """What a plan is expected to do. Frozen; goes with the plan into JSON.

    Attributes:
        step_seconds: From the end of a step of one worker that reads to that of its next.
        samples: Of all workers in that time.
        stages: Of one worker of each role, in order.
        memory: Of each kind of device that is used.
        bounds: Seconds below which a step cannot be, by what does not allow less; the
            first is the largest.
        price_per_hour: Of the machines that are used; None is not known.
        assumed: What was not measured, for people.
        corrected: What training has shown to be longer, or less long, than it was
            predicted, and is predicted so now; for people.
    """

    step_seconds: float
    samples: float
    stages: tuple[StagePrediction, ...]
    memory: tuple[MemoryPrediction, ...]
    bounds: tuple[Part, ...]
    price_per_hour: float | None = None
    assumed: tuple[str, ...] = ()
    corrected: tuple[str, ...] = ()

    @property
    def samples_per_second(self) -> float:
        """Of all workers."""
        return self.samples / self.step_seconds

    @property
    def bottleneck(self) -> str:
        """What does not allow a step to be faster."""
        return self.bounds[0].label

    @property
    def fits(self) -> bool:
        """Whether there is enough memory everywhere."""
        return all(device.fits for device in self.memory)

    def stage(self, name: str) -> StagePrediction:
        """Returns the stage of a name.

        Raises:
            KeyError: There is none.
        """
        return {stage.name: stage for stage in self.stages}[name]

    def money(self, num_samples: float) -> float | None:
        """Returns what so many samples cost; None if a price is not known."""
        if self.price_per_hour is None:
            return None
        return self.price_per_hour * num_samples / self.samples_per_second / 3600
