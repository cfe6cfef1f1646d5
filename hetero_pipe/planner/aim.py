"""Aim: what a plan shall be best at, and what it must reach."""

import math
from dataclasses import dataclass

from hetero_pipe.cluster import Cluster
from hetero_pipe.errors import ConfigError
from hetero_pipe.plan import Prediction

__all__ = ["AIMS", "Aim"]

AIMS = {
    "throughput": "most samples a second",
    "money": "least money an hour",
    "epoch": "least money an epoch",
}
"""What can be best, and how a report says it."""


@dataclass(frozen=True)
class Aim:
    """What shall be best.

    Attributes:
        what: A key of `AIMS`.
        throughput: Samples a second that a plan must reach; 0 is none.

    Raises:
        ConfigError: There is no such aim, or money an hour shall be least and nothing
            must be reached: then the cheapest machine would do.
    """

    what: str = "throughput"
    throughput: float = 0.0

    def __post_init__(self) -> None:
        if self.what not in AIMS:
            raise ConfigError(f"an objective is one of {', '.join(AIMS)}, got {self.what!r}")
        if not 0 <= self.throughput < math.inf:
            raise ConfigError(
                f"a required throughput is at least 0, got throughput={self.throughput}"
            )
        if self.what == "money" and not self.throughput:
            raise ConfigError(
                "the least money an hour is of a throughput that is required, got none; say how "
                "many samples a second (--throughput), or minimise the money of an epoch"
            )

    @property
    def needs_prices(self) -> bool:
        """Whether it counts money."""
        return self.what != "throughput"

    def check_prices(self, cluster: Cluster) -> None:
        """Refuses a cluster whose money cannot be counted, if it must be.

        Raises:
            ConfigError: A host has no price.
        """
        missing = [host.name for host in cluster.hosts if host.price_per_hour is None]
        if self.needs_prices and missing:
            raise ConfigError(
                "money is counted by the price of each host, got none of "
                f"{', '.join(missing)}; give price_per_hour in the cluster file, or take the "
                "objective throughput"
            )

    def loss(self, prediction: Prediction) -> float:
        """Returns what shall be least, infinite for what is too slow.

        That is seconds a sample, money an hour, or money a sample.
        """
        speed = prediction.samples_per_second
        if speed < self.throughput:
            return math.inf
        if not self.needs_prices:
            return 1 / speed
        price = prediction.price_per_hour
        assert price is not None, "prices are asked for before plans are compared"
        return price if self.what == "money" else price / 3600 / speed
