"""Device: a CPU, a GPU or another accelerator, as its data sheet has it."""

from dataclasses import dataclass

from hetero_pipe.cluster.check import (
    check_count,
    check_name,
    check_one_of,
    check_positive,
    check_unique,
)
from hetero_pipe.errors import ConfigError

__all__ = ["DEVICE_KINDS", "DTYPES", "Device"]

DEVICE_KINDS = ("cpu", "gpu", "custom")
"""What a device is; `custom` is one of Paddle's plug-in devices."""

DTYPES = ("float64", "float32", "tfloat32", "bfloat16", "float16", "int8")
"""What a matmul computes in. `tfloat32` takes and gives float32 (NVIDIA, from Ampere on)."""


@dataclass(frozen=True)
class Device:
    """One device, or several equal ones of a host.

    Attributes:
        kind: One of `DEVICE_KINDS`.
        memory: Bytes of each; of a CPU, its host's.
        name: As Paddle calls it, without the number; of a GPU or a CPU, its kind.
        model: For people: `NVIDIA A100-SXM4-80GB`.
        count: How many; 1 of a CPU, which stands for all of its host's sockets.
        flops: Peak FLOP/s of each by dtype, dense, as pairs in the order of `DTYPES`.
        memory_bandwidth: Bytes/s to its memory; None is not known.
        cores: That may compute; only a CPU has them.

    Raises:
        ConfigError: There is no such device.

    >>> Device("gpu", memory=80 * 10**9, count=8).names[-1]
    'gpu:7'
    """

    kind: str
    memory: int
    name: str = ""
    model: str = ""
    count: int = 1
    flops: tuple[tuple[str, float], ...] = ()
    memory_bandwidth: float | None = None
    cores: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.kind)
        owner = f"device {self.name!r}"
        check_one_of(owner, "kind", self.kind, DEVICE_KINDS)
        check_name("device", self.name)
        check_count(owner, "count", self.count)
        check_count(owner, "memory", self.memory)
        if (self.name == "cpu") != (self.kind == "cpu"):
            raise ConfigError(
                f"a device is named cpu if it is of kind cpu, got {owner} of kind {self.kind}"
            )
        if self.kind == "custom" and self.name == "custom":
            raise ConfigError("a device of kind custom needs the name by which Paddle knows it")
        for dtype, rate in self.flops:
            check_one_of(owner, "flops", dtype, DTYPES)
            check_positive(owner, f"flops of {dtype}", rate)
        check_unique(owner, "dtype", [dtype for dtype, _ in self.flops])
        ordered = tuple(sorted(self.flops, key=lambda pair: DTYPES.index(pair[0])))
        object.__setattr__(self, "flops", ordered)
        if self.memory_bandwidth is not None:
            check_positive(owner, "memory_bandwidth", self.memory_bandwidth)
        self._check_cores(owner)

    def _check_cores(self, owner: str) -> None:
        if self.kind == "cpu":
            check_count(owner, "cores", self.cores)
            if self.count != 1:
                raise ConfigError(
                    f"device 'cpu' stands for all sockets of its host, got count={self.count}; "
                    "count the cores of all of them"
                )
        elif self.cores is not None:
            raise ConfigError(f"only a cpu has cores, got {owner} with cores={self.cores}")

    @property
    def names(self) -> tuple[str, ...]:
        """As Paddle calls each: `cpu`, or `gpu:0`, `gpu:1`, ..."""
        if self.kind == "cpu":
            return (self.name,)
        return tuple(f"{self.name}:{i}" for i in range(self.count))

    def peak(self, dtype: str) -> float | None:
        """Returns the peak FLOP/s of one in a dtype; None is not known."""
        return dict(self.flops).get(dtype)
