"""Cluster: all hosts of a job, what joins them, and what was measured of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

from hetero_pipe.cluster.border import Border, borders_of
from hetero_pipe.cluster.check import check_unique
from hetero_pipe.cluster.device import Device
from hetero_pipe.cluster.host import Host
from hetero_pipe.cluster.link import Link, Switch
from hetero_pipe.cluster.path import Path, Ways, fastest_path, ways
from hetero_pipe.cluster.place import Place
from hetero_pipe.cluster.rate import Rate
from hetero_pipe.cluster.wiring import Edge, Edges, reach, wire
from hetero_pipe.errors import ConfigError
from hetero_pipe.section import nearest

__all__ = ["Cluster"]


@dataclass(frozen=True)
class Cluster:
    """The machines of a job.

    Attributes:
        hosts: Names are unique, also those of the machines they stand for.
        links: Between hosts and switches.
        switches: Between hosts.
        rates: Measured, each once.

    Raises:
        ConfigError: There is no such cluster.
    """

    hosts: tuple[Host, ...]
    links: tuple[Link, ...] = ()
    switches: tuple[Switch, ...] = ()
    rates: tuple[Rate, ...] = ()

    def __post_init__(self) -> None:
        if not self.hosts:
            raise ConfigError("a cluster needs a host, got none; add [[host]]")
        check_unique("a cluster", "host or switch", [group.name for group in self._groups])
        members = [name for group in self._groups for name in group.names]
        check_unique("a cluster", "machine and switch", members)
        first = self.hosts[0].names[0]
        found = reach(self._network, first, blind=self._by_member.keys() - {first})
        for name in self._by_member:
            if name not in found:
                raise ConfigError(
                    f"hosts reach each other over links and switches, got no way from {first!r} to "
                    f"{name!r}; add [[link]] between two hosts, or from each to one [[switch]]"
                )
        self._check_rates()

    def _check_rates(self) -> None:
        by_name = {host.name: host for host in self.hosts}
        for rate in self.rates:
            host = by_name.get(rate.host)
            if host is None:
                raise ConfigError(
                    f"a rate is of a host, one of {', '.join(by_name)}, got host={rate.host!r}"
                    f"{nearest(rate.host, by_name)}"
                )
            devices = [device.name for device in host.devices]
            if rate.device is not None and rate.device not in devices:
                raise ConfigError(
                    f"a rate of host {host.name!r} is of one of its devices {', '.join(devices)}, "
                    f"got device={rate.device!r}{nearest(rate.device, devices)}"
                )
        keys = [rate.key for rate in self.rates]
        if len(set(keys)) < len(keys):
            twice = next(rate for i, rate in enumerate(self.rates) if rate.key in keys[:i])
            raise ConfigError(f"a cluster has each rate once, got two of {_title(twice)}")

    @cached_property
    def _by_member(self) -> dict[str, Host]:
        return {name: host for host in self.hosts for name in host.names}

    @cached_property
    def _by_name(self) -> dict[str, Host]:
        """By the name of each host, and of each of its machines; a host's own comes first."""
        found: dict[str, Host] = {}
        for host in self.hosts:
            for name in (host.name, *host.names):
                found.setdefault(name, host)
        return found

    @cached_property
    def _network(self) -> Edges:
        groups = {group.name: group.names for group in self._groups}
        return wire("the cluster", self.links, groups)

    @property
    def _groups(self) -> tuple[Host | Switch, ...]:
        return (*self.hosts, *self.switches)

    def host(self, name: str) -> Host:
        """Returns the host of a name, which stands for one machine or several.

        Raises:
            ConfigError: There is none.
        """
        found = self._by_name.get(name)
        if found is None:
            known = [*(host.name for host in self.hosts), *self._by_member]
            raise ConfigError(
                f"the cluster has the hosts {', '.join(host.name for host in self.hosts)}, got "
                f"{name!r}{nearest(name, known)}"
            )
        return found

    def places(self, kind: str | None = None) -> Iterator[Place]:
        """Yields every device of every machine, in order; of one kind, if given."""
        for name, host in self._by_member.items():
            for device in host.devices:
                if kind in (None, device.kind):
                    yield from (Place(name, each) for each in device.names)

    def device(self, place: Place | str) -> Device:
        """Returns what is at a place; its `count` is of its host.

        Raises:
            ConfigError: There is nothing.
        """
        place = Place.parse(place) if isinstance(place, str) else place
        host = self._by_member.get(place.host)
        if host is None:
            raise ConfigError(
                f"a place is on one of the cluster's machines, got {str(place)!r}"
                f"{nearest(place.host, self._by_member)}"
            )
        by_name = {name: device for device in host.devices for name in device.names}
        if place.device not in by_name:
            raise ConfigError(
                f"machine {place.host} has {_listed(by_name)}, got {str(place)!r}"
                f"{nearest(place.device, by_name)}"
            )
        return by_name[place.device]

    def path(
        self, source: Place | str, target: Place | str, *, num_bytes: float = math.inf
    ) -> Path:
        """Returns the way that a message takes from one place to another.

        A host's CPU and switches pass bytes on; other devices and third hosts do
        not. Within one place there are no links: memory is not one of them.
        (`loopback` is what two processes there pay, see `Cluster.loopback`.)

        Args:
            source: Where the message is.
            target: Where it goes.
            num_bytes: Of the message: the way is the one on which it arrives first.
                Infinite, the default, is the widest.

        Raises:
            ConfigError: There is no such place, or no way between them.
        """
        ends = self._ends(source, target)
        if ends is None:
            return Path()
        found = fastest_path(self._leaving(*ends), *map(str, ends), num_bytes=num_bytes)
        return found or _no_way(*ends)

    def ways(self, source: Place | str, target: Place | str) -> Ways:
        """Returns all that `path` returns for messages of any size.

        Raises:
            ConfigError: There is no such place, or no way between them.
        """
        ends = self._ends(source, target)
        if ends is None:
            return Ways()
        found = tuple(ways(self._leaving(*ends), *map(str, ends)))
        return Ways(found or (_no_way(*ends),))

    def _ends(self, source: Place | str, target: Place | str) -> tuple[Place, Place] | None:
        """Returns two places that there are; None if they are one."""
        source = Place.parse(source) if isinstance(source, str) else source
        target = Place.parse(target) if isinstance(target, str) else target
        self.device(source)
        self.device(target)
        return None if source == target else (source, target)

    def _leaving(self, source: Place, target: Place) -> Callable[[str], Iterable[Edge]]:
        """Returns what leads on from each member between two places."""
        hosts = (source.host, target.host)

        def edges_of(member: str) -> Iterable[Edge]:
            return self._edges_of(member, hosts) if self._passes(member, source, hosts) else ()

        return edges_of

    @cached_property
    def borders(self) -> tuple[Border, ...]:
        """How much can leave some of the machines at once, whatever way it takes."""
        return borders_of(self._network, self._by_member)

    @cached_property
    def uplinks(self) -> dict[str, float]:
        """By machine, the bytes/s that can leave it at once; a machine without others has none."""
        return {
            border.machines[0]: border.bandwidth
            for border in self.borders
            if len(border.machines) == 1
        }

    def _passes(self, member: str, source: Place, hosts: tuple[str, str]) -> bool:
        host, slash, part = member.partition("/")
        if not slash:  # a switch or a fabric
            return True
        if host not in hosts:
            return False
        is_device = any(part in device.names for device in self._by_member[host].devices)
        return not is_device or part == "cpu" or member == str(source)

    def _edges_of(self, member: str, hosts: tuple[str, str]) -> Iterator[Edge]:
        """Yields what leads on from a member: `HOST/PART` within a host, else a switch."""
        host, slash, part = member.partition("/")
        if slash:
            for edge in self._by_member[host].edges.get(part, ()):
                yield replace(edge, source=member, target=f"{host}/{edge.target}")
        if not slash or part == "cpu":
            for edge in self._network.get(host, ()):
                if edge.target not in self._by_member:
                    yield replace(edge, source=member)
                elif edge.target in hosts:
                    yield replace(edge, source=member, target=f"{edge.target}/cpu")

    def loopback(self, host: str) -> Path | None:
        """Returns what lies between two processes of a host, if its CPU has such a link.

        Raises:
            ConfigError: There is no such host.
        """
        found = [e for e in self.host(host).edges.get("cpu", ()) if e.target == "cpu"]
        return Path((found[0],)) if found else None

    @cached_property
    def _rates_by_what(self) -> dict[str, list[Rate]]:
        found: dict[str, list[Rate]] = {}
        for rate in self.rates:
            found.setdefault(rate.what, []).append(rate)
        return found

    def rates_of(self, what: str, **at: object) -> tuple[Rate, ...]:
        """Returns the rates of a kind that were measured at given values, by size.

        Args:
            what: A key of `RATES`.
            at: Such as `host="server"`, `optimizer="adagrad"`: attributes of a `Rate`.
        """
        found = [
            rate
            for rate in self._rates_by_what.get(what, ())
            if all(getattr(rate, name) == at[name] for name in at)
        ]
        return tuple(sorted(found, key=lambda rate: rate.size or 0))

    def with_rates(self, rates: Sequence[Rate]) -> "Cluster":
        """Returns the cluster with these rates, in place of its own of the same keys.

        Raises:
            ConfigError: One is of no host or device of the cluster.
        """
        measured = {rate.key for rate in rates}
        kept = [rate for rate in self.rates if rate.key not in measured]
        return replace(self, rates=(*kept, *rates))

    @property
    def num_devices(self) -> int:
        """Of all machines, CPUs among them."""
        return sum(host.count * sum(d.count for d in host.devices) for host in self.hosts)

    @property
    def price_per_hour(self) -> float | None:
        """Of all machines together; None if that of one is not known."""
        prices = [(host.count, host.price_per_hour) for host in self.hosts]
        known = [count * price for count, price in prices if price is not None]
        return math.fsum(known) if len(known) == len(prices) else None


def _no_way(source: Place, target: Place) -> NoReturn:
    raise ConfigError(
        f"two places need a way between them, got none from {str(source)!r} to {str(target)!r}; "
        "hosts pass nothing on: join them by a [[switch]]"
    )


def _title(rate: Rate) -> str:
    return " ".join(str(part) for part in rate.key if part is not None)


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found) if len(found) < 4 else f"{found[0]}, {found[1]}, ..., {found[-1]}"
