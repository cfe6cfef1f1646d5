"""Curve: the seconds of a piece of work of any size, from those of a few."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_pipe.errors import ConfigError

__all__ = ["Curve"]


@dataclass(frozen=True)
class Curve:
    """Seconds over sizes: never falls, straight between its points.

    Below the first point it goes straight to the origin, beyond the last on at
    that one's rate.

    Attributes:
        points: (size, seconds), sizes above 0 and rising.

    Raises:
        ConfigError: There is no point, or sizes do not rise.

    >>> Curve.of([(100, 1.0), (200, 4.0)]).at(150)
    2.5
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes or sizes[0] <= 0 or sorted(set(sizes)) != sizes:
            raise ConfigError(f"a curve has sizes above 0 that rise, got {self.points}")

    @staticmethod
    def of(points: Sequence[tuple[float, float]]) -> "Curve":
        """Returns a curve through points; one that falls is lifted to what was before it."""
        found: list[tuple[float, float]] = []
        for size, seconds in sorted(points):
            found.append((size, max(seconds, found[-1][1] if found else 0.0)))
        return Curve(tuple(found))

    def at(self, size: float) -> float:
        """Returns the seconds of a size."""
        if size <= 0:
            return 0.0
        index = bisect_left(self.points, (size, 0.0))
        right = self.points[min(index, len(self.points) - 1)]
        if index == len(self.points):
            return right[1] * size / right[0]
        left = self.points[index - 1] if index else (0.0, 0.0)
        return left[1] + (right[1] - left[1]) * (size - left[0]) / (right[0] - left[0])
