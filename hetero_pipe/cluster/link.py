"""Link: what carries bytes between two parts, and Switch: where links meet."""

from dataclasses import dataclass

from hetero_pipe.cluster.check import check_count, check_name, check_one_of, check_positive

__all__ = ["LINK_KINDS", "Link", "Switch"]

LINK_KINDS = ("loopback", "NVLink", "PCIe", "NIC", "switch")
"""What a link is; `switch` is between two tiers of switches, `loopback` within one place."""


@dataclass(frozen=True)
class Link:
    """One link, or one of each of several equal parts.

    Ends are names: of devices and switches of a host, for a link within it; of
    hosts and switches of the cluster, for one between them. Where an end stands
    for several, there are several links, each with the whole bandwidth::

        gpu (8) - cpu         one from each gpu
        gpu (8) - bridge (4)  gpus 0 and 1 to bridge 0, 2 and 3 to bridge 1, ...
        gpu (8) - gpu (8)     one port of each gpu into a fabric that joins all

    Attributes:
        ends: Two names.
        kind: One of `LINK_KINDS`.
        bandwidth: Bytes/s each way, both ways at once.
        latency: Seconds from end to end.

    Raises:
        ConfigError: There is no such link.
    """

    ends: tuple[str, str]
    kind: str
    bandwidth: float
    latency: float

    def __post_init__(self) -> None:
        for end in self.ends:
            check_name("link's end", end)
        owner = f"the link between {self.ends[0]!r} and {self.ends[1]!r}"
        check_one_of(owner, "kind", self.kind, LINK_KINDS)
        check_positive(owner, "bandwidth", self.bandwidth)
        check_positive(owner, "latency", self.latency, or_zero=True)


@dataclass(frozen=True)
class Switch:
    """A switch, or several equal ones; it passes on as much as its links carry.

    Raises:
        ConfigError: There is no such switch.
    """

    name: str
    count: int = 1

    def __post_init__(self) -> None:
        check_name("switch", self.name)
        check_count(f"switch {self.name!r}", "count", self.count)

    @property
    def names(self) -> tuple[str, ...]:
        """Of each: `leaf`, or `leaf-0`, `leaf-1`, ... if there are several."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{i}" for i in range(self.count))
