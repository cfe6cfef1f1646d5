"""PowerLaw: a quantity that rises with another, by what was measured at some points."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from hetero_pipe.errors import ConfigError

__all__ = ["PowerLaw"]


@dataclass(frozen=True)
class PowerLaw:
    """Power laws: one between each two points, and the last one goes on beyond them.

    It never falls. Below the first point it is in proportion to x, and beyond the
    last it grows no faster than that.

    Attributes:
        points: x and what was measured there, both above 0; x rises, the other
            never falls. None at all: the quantity is 0 everywhere.

    Raises:
        ConfigError: The points do not rise.

    >>> PowerLaw(((1, 3.0), (4, 6.0))).at(16)
    12.0
    """

    points: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        is_rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(self.points))
        if not is_rising or not all(0 < each < math.inf for point in self.points for each in point):
            raise ConfigError(f"a curve has points above 0 that rise, got {self.points}")

    @property
    def last(self) -> float:
        """The largest x that was measured, 0 without a point."""
        return self.points[-1][0] if self.points else 0.0

    def at(self, x: float) -> float:
        """Returns the quantity at an x from 0."""
        if not self.points:
            return 0.0
        right = bisect_right(self.points, x, key=lambda point: point[0])
        if right == 0:
            x0, y0 = self.points[0]
            return y0 * x / x0
        x0, y0 = self.points[right - 1]
        if x == x0 or len(self.points) == 1:
            return y0
        if right < len(self.points):
            x1, y1 = self.points[right]
            return min(float(y0 * (x / x0) ** _exponent((x0, y0), (x1, y1))), y1)
        return float(y0 * (x / x0) ** min(_exponent(*self.points[-2:]), 1.0))


def _exponent(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Returns that of the power law through two points."""
    return math.log(other[1] / one[1]) / math.log(other[0] / one[0])
