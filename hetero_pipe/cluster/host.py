"""Host: a machine, its devices and what joins them, its disk and its price."""

from dataclasses import dataclass
from functools import cached_property

from hetero_pipe.cluster.check import check_count, check_name, check_positive, check_unique
from hetero_pipe.cluster.device import Device
from hetero_pipe.cluster.link import Link, Switch
from hetero_pipe.cluster.wiring import Edges, reach, wire
from hetero_pipe.errors import ConfigError

__all__ = ["Disk", "Host"]


@dataclass(frozen=True)
class Disk:
    """Where a host keeps checkpoints and data.

    Attributes:
        capacity: Bytes.
        read_bandwidth: Bytes/s, in sequence; None is not known.
        write_bandwidth: Bytes/s, in sequence; None is not known.

    Raises:
        ConfigError: There is no such disk.
    """

    capacity: int
    read_bandwidth: float | None = None
    write_bandwidth: float | None = None

    def __post_init__(self) -> None:
        check_count("a disk", "capacity", self.capacity)
        for name in ("read_bandwidth", "write_bandwidth"):
            if getattr(self, name) is not None:
                check_positive("a disk", name, getattr(self, name))


@dataclass(frozen=True)
class Host:
    """One machine, or several equal ones.

    Its cores and its memory are those of its CPU, over which it is reached from
    other hosts, and over which bytes pass between parts that no link joins.

    Attributes:
        name: Of the machine; several are `NAME-0`, `NAME-1`, ...
        devices: One is its `cpu`; names are unique.
        links: Between devices and switches of this host.
        switches: Of this host: PCIe switches, for example.
        count: How many machines.
        addresses: Where each is reached, or none.
        price_per_hour: Of one, in whatever money the cluster counts; None is not known.
        disk: Of one; None is not known.

    Raises:
        ConfigError: There is no such host.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    switches: tuple[Switch, ...] = ()
    count: int = 1
    addresses: tuple[str, ...] = ()
    price_per_hour: float | None = None
    disk: Disk | None = None

    def __post_init__(self) -> None:
        owner = f"host {self.name!r}"
        check_name("host", self.name)
        check_count(owner, "count", self.count)
        if self.price_per_hour is not None:
            check_positive(owner, "price_per_hour", self.price_per_hour, or_zero=True)
        if self.addresses and len(self.addresses) != self.count:
            raise ConfigError(
                f"{owner} has an address for each machine or none, got {len(self.addresses)} "
                f"for {self.count}"
            )
        check_unique(owner, "device or switch", [part.name for part in self._parts])
        if not any(device.kind == "cpu" for device in self.devices):
            raise ConfigError(f"{owner} needs a device of kind cpu, with its cores and its memory")
        self._check_reach(owner)

    def _check_reach(self, owner: str) -> None:
        # A device passes nothing on: what its neighbour reaches over it alone is not reached.
        blind = {name for device in self.devices for name in device.names} - {"cpu"}
        found = reach(self.edges, "cpu", blind=blind)
        for device in self.devices:
            lost = next((name for name in device.names if name not in found), None)
            if lost is not None:
                raise ConfigError(
                    f"{owner} reaches each device from its cpu, got none that leads to {lost}; "
                    f"add a link between {device.name!r} and 'cpu'"
                )

    @cached_property
    def edges(self) -> Edges:
        """What joins its parts, by the name of each."""
        groups = {part.name: part.names for part in self._parts}
        return wire(f"host {self.name!r}", self.links, groups)

    @property
    def _parts(self) -> tuple[Device | Switch, ...]:
        return (*self.devices, *self.switches)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of each machine: `trainer`, or `trainer-0`, `trainer-1`, ... if there are several."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{i}" for i in range(self.count))

    @property
    def cpu(self) -> Device:
        """All sockets of one."""
        return next(device for device in self.devices if device.kind == "cpu")

    @property
    def cores(self) -> int:
        """Of one."""
        assert self.cpu.cores is not None
        return self.cpu.cores

    @property
    def memory(self) -> int:
        """Bytes of one."""
        return self.cpu.memory
