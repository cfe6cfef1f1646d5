"""Ranks by a bounded Zipf law: how often the values of a categorical field are seen."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.errors import ConfigError

__all__ = ["BoundedZipf"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BoundedZipf:
    """The law `P(rank) = (rank + 1)**-exponent / sum((r + 1)**-exponent for r < num_ranks)`.

    Attributes:
        num_ranks: Ranks, from 0; at least 1.
        exponent: At least 0, which makes all ranks equally likely.

    Raises:
        ConfigError: An attribute is out of range.
    """

    num_ranks: int
    exponent: float

    def __post_init__(self) -> None:
        if self.num_ranks < 1 or not self.exponent >= 0:
            raise ConfigError(
                "a bounded Zipf law has num_ranks of at least 1 and an exponent of at least 0, "
                f"got num_ranks={self.num_ranks}, exponent={self.exponent}"
            )

    def sample(self, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Returns independent ranks, `[size]`, by rejection-inversion.

        The law is exact and costs one power a rank and no table, however many
        ranks there are. A point x is drawn under the curve `t**-exponent` and
        rounded to the rank k; where the curve around k holds more than k's
        share, the surplus is rejected and drawn again.

        Reference:
            Hörmann and Derflinger, "Rejection-Inversion to Generate Variates
            from Monotone Discrete Distributions", ACM TOMACS 6(3), 1996.
        """
        first, last = self._area(1.5) - 1, self._area(self.num_ranks + 0.5)
        # Left of it, k - x is so small that x is under k's share for every k.
        always = 2 - self._inverse_area(self._area(2.5) - 2**-self.exponent)
        ranks = np.empty(size, np.int64)
        pending = np.arange(size)
        while len(pending):
            area = rng.random(len(pending))
            area *= first - last
            area += last
            x = self._inverse_area(area)
            # Rounding may reach past the ends by one unit of the last place.
            rank = np.clip(np.rint(x), 1, self.num_ranks)
            ranks[pending] = rank
            doubted = np.flatnonzero(rank - x > always)
            doubted_rank = rank[doubted]
            share = doubted_rank**-self.exponent
            is_rejected = area[doubted] < self._area(doubted_rank + 0.5) - share
            pending = pending[doubted[is_rejected]]
        ranks -= 1
        return ranks

    def _area(self, x: Floats | float) -> Floats | float:
        """Returns an integral of `t**-exponent`, up to a constant."""
        power = 1 - self.exponent
        return np.log(x) if power == 0 else x**power / power

    def _inverse_area(self, area: Floats | float) -> Floats | float:
        power = 1 - self.exponent
        return np.exp(area) if power == 0 else (area * power) ** (1 / power)
