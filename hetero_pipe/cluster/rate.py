"""Rate: what was measured of a host, with its spread."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hetero_pipe.cluster.check import check_count, check_one_of, check_positive
from hetero_pipe.cluster.device import DTYPES
from hetero_pipe.errors import ConfigError

__all__ = ["BESIDE", "RATES", "SIDES", "Rate", "Spread"]

RATES: dict[str, tuple[str, tuple[str, ...]]] = {
    "matmul": ("FLOP/s", ("device", "dtype", "size")),
    "elementwise": ("B/s", ("device", "dtype", "size")),
    "op": ("B/s", ("device", "kind", "size")),
    "linear": ("FLOP/s", ("device", "size")),
    "launch": ("s", ("device",)),
    "dense_step": ("s", ("device", "side", "size")),
    "upload": ("B/s", ("device", "size")),
    "upload_core": ("B/s", ("device", "size")),
    "download": ("B/s", ("device", "size")),
    "copy": ("B/s", ("size",)),
    "route": ("s", ("size",)),
    "pull": ("s", ("optimizer", "dim", "size")),
    "push": ("s", ("optimizer", "dim", "size")),
    "grpc_call": ("s", ()),
    "grpc_byte": ("s", ("size",)),
    "grpc_pull": ("s", ("side", "size")),
    "grpc_push": ("s", ("side", "size")),
    "cut_byte": ("s", ("dtype", "size")),
    "shm_call": ("s", ()),
    "shm_byte": ("s", ("size",)),
    "beside": ("", ("device", "kind")),
    "disk_read": ("B/s", ("size",)),
    "disk_write": ("B/s", ("size",)),
    "link_latency": ("s", ("peer",)),
    "link_bandwidth": ("B/s", ("peer", "size")),
}
"""By what is measured: its unit, and what it was measured at; docs/cluster.md says more."""

BESIDE = ("route", "pull", "push", "dense", "call", "server", "cut")
"""What takes a core longer beside the other stages of a step than alone: stages of a worker, its
calls to servers, all that servers do, and messages of cuts."""

SIDES = ("worker", "server", "wait", "aside")
"""What is held while a call or a step lasts: a core of the worker, one of who answers, or none.
These are as long as it is; what cores do aside, at the same time, is of both."""

_AT = ("device", "dtype", "kind", "size", "dim", "optimizer", "side", "peer")


@dataclass(frozen=True)
class Spread:
    """A measured value as several samples had it.

    Attributes:
        median: Of the samples.
        min: Least of them.
        max: Most of them.
        samples: How many.

    Raises:
        ConfigError: It is none of any samples.

    >>> Spread.of([3.0, 1.0, 2.0])
    Spread(median=2.0, min=1.0, max=3.0, samples=3)
    """

    median: float
    min: float
    max: float
    samples: int

    def __post_init__(self) -> None:
        for name in ("median", "min", "max"):
            check_positive("a measured value", name, getattr(self, name))
        check_count("a measured value", "samples", self.samples)
        if not self.min <= self.median <= self.max:
            raise ConfigError(
                f"a measured value has its median between min and max, got median={self.median}, "
                f"min={self.min}, max={self.max}"
            )

    @staticmethod
    def of(samples: Sequence[float]) -> "Spread":
        """Returns the spread of at least one sample."""
        return Spread(statistics.median(samples), min(samples), max(samples), len(samples))


@dataclass(frozen=True)
class Rate:
    """One measured value of each machine of a host.

    Attributes:
        what: A key of `RATES`.
        host: Its name.
        value: In the unit of `RATES`.
        device: Name of a device of the host: `cpu`, `gpu`.
        dtype: One of `DTYPES`.
        kind: Of an op, as Paddle names it: `relu`; of `beside`, one of `BESIDE`.
        size: Rows and columns of a square matmul; samples of a linear layer; keys of a route,
            a pull or a push; otherwise bytes.
        dim: Weights of a row.
        optimizer: Of the table, in lower case.
        side: One of `SIDES`.
        peer: The other host of a link, or its address.

    Raises:
        ConfigError: It lacks what such a rate is measured at, or has more.
    """

    what: str
    host: str
    value: Spread
    device: str | None = None
    dtype: str | None = None
    kind: str | None = None
    size: int | None = None
    dim: int | None = None
    optimizer: str | None = None
    side: str | None = None
    peer: str | None = None

    def __post_init__(self) -> None:
        owner = f"a rate of host {self.host!r}"
        check_one_of(owner, "what", self.what, RATES)
        needed = RATES[self.what][1]
        for name in _AT:
            value = getattr(self, name)
            if (value is None) == (name in needed):
                state = "no " if value is None else ""
                raise ConfigError(
                    f"rate {self.what!r} of host {self.host!r} is measured at "
                    f"{' and '.join(needed) or 'nothing'}, got {state}{name}"
                )
        for name in ("size", "dim"):
            if getattr(self, name) is not None:
                check_count(owner, name, getattr(self, name))
        if self.dtype is not None:
            check_one_of(owner, "dtype", self.dtype, DTYPES)
        if self.side is not None:
            check_one_of(owner, "side", self.side, SIDES)

    @property
    def unit(self) -> str:
        """`FLOP/s`, `B/s` or `s`: of a call, of a key, of a byte; of a ratio, nothing."""
        return RATES[self.what][0]

    @property
    def key(self) -> tuple[object, ...]:
        """All but the value: a later measurement of the same key replaces this one."""
        return tuple(getattr(self, name) for name in ("what", "host", *_AT))
