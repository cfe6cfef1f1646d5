"""Breakdown: an amount, and what it is made of. Amounts add."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hetero_pipe.errors import PlanError

__all__ = ["MOVES", "RESOURCES", "Breakdown", "Part"]

RESOURCES = ("", "worker", "server", "device", "network", "wait")
"""What a second is spent on: a core of the worker's host or of a server's, an accelerator, a link,
or nothing at all. Bytes are on none."""


MOVES = ("message", "upload", "download")
"""Labels of parts that move a batch: done aside of a stage, they are in the batch's own way."""


@dataclass(frozen=True)
class Part:
    """One part of an amount.

    Attributes:
        label: What it is for: `matmul`, `table`, `activations`.
        amount: Seconds or bytes, at least 0.
        resource: One of `RESOURCES`, of seconds: what is held meanwhile.

    Raises:
        PlanError: The amount is none, or the resource.
    """

    label: str
    amount: float
    resource: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.amount < math.inf:
            raise PlanError(f"an amount is at least 0 and finite, got {self}")
        if self.resource not in RESOURCES:
            raise PlanError(f"a resource is one of {RESOURCES}, got {self}")


@dataclass(frozen=True)
class Breakdown:
    """The parts of an amount, in the order in which they come. Breakdowns add.

    Attributes:
        parts: Each label once for each resource.

    >>> pull = Breakdown.of("table", 0.002, "server") + Breakdown.of("bytes", 0.001, "network")
    >>> round(pull.total, 4), pull.on("server")
    (0.003, 0.002)
    """

    parts: tuple[Part, ...] = ()

    @staticmethod
    def of(label: str, amount: float, resource: str = "") -> "Breakdown":
        """Returns an amount of one part; of none if it is 0."""
        return Breakdown((Part(label, amount, resource),) if amount else ())

    @staticmethod
    def sum(breakdowns: "Iterable[Breakdown]") -> "Breakdown":
        """Returns all of them together."""
        amounts: dict[tuple[str, str], float] = {}
        for breakdown in breakdowns:
            for part in breakdown.parts:
                key = part.label, part.resource
                amounts[key] = amounts.get(key, 0.0) + part.amount
        return Breakdown(tuple(Part(label, each, on) for (label, on), each in amounts.items()))

    @staticmethod
    def least(breakdowns: "Iterable[Breakdown]") -> "Breakdown":
        """Returns of each part the least amount that one of them has.

        >>> Breakdown.least([Breakdown.of("call", 2.0), Breakdown.of("call", 1.0)]).total
        1.0
        """
        found: dict[tuple[str, str], list[float]] = {}
        number = 0
        for breakdown in breakdowns:
            number += 1
            for part in breakdown.parts:
                found.setdefault((part.label, part.resource), []).append(part.amount)
        return Breakdown(
            tuple(
                Part(label, min(amounts), resource)
                for (label, resource), amounts in found.items()
                if len(amounts) == number
            )
        )

    @property
    def total(self) -> float:
        """Of all parts."""
        return math.fsum(part.amount for part in self.parts)

    def on(self, *resources: str) -> float:
        """Returns how much of it is on any of these resources."""
        return math.fsum(part.amount for part in self.parts if part.resource in resources)

    def only(self, *resources: str) -> "Breakdown":
        """Returns the parts of it that are on any of these resources."""
        return Breakdown(tuple(part for part in self.parts if part.resource in resources))

    def labelled(self, *labels: str) -> "Breakdown":
        """Returns the parts of it that have any of these labels."""
        return Breakdown(tuple(part for part in self.parts if part.label in labels))

    def without(self, *labels: str) -> "Breakdown":
        """Returns the parts of it that have none of these labels."""
        return Breakdown(tuple(part for part in self.parts if part.label not in labels))

    def times(self, factor: float) -> "Breakdown":
        """Returns it so many times."""
        return self.map(lambda part: part.amount * factor)

    def map(self, amount_of: "Callable[[Part], float]") -> "Breakdown":
        """Returns it with another amount of each part."""
        return Breakdown(tuple(replace(part, amount=amount_of(part)) for part in self.parts))

    def __add__(self, other: "Breakdown") -> "Breakdown":
        return Breakdown.sum((self, other))
