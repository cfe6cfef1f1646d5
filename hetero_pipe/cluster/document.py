"""A cluster as the tables of a TOML or JSON file; docs/cluster.md lists the keys."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hetero_pipe.cluster.cluster import Cluster
from hetero_pipe.cluster.device import Device
from hetero_pipe.cluster.host import Disk, Host
from hetero_pipe.cluster.link import Link, Switch
from hetero_pipe.cluster.preset import device_preset, preset
from hetero_pipe.cluster.rate import Rate, Spread
from hetero_pipe.errors import ConfigError
from hetero_pipe.section import Section
from hetero_pipe.units import parse_bytes, parse_flops, parse_rate, parse_seconds

__all__ = ["cluster_of_tables", "rate_tables", "tables_of_cluster"]

Table = dict[str, Any]  # what TOML and JSON hold

CLUSTER_KEYS = ("host", "switch", "link", "rate")
HOST_KEYS = (
    *("name", "preset", "count", "addresses", "price_per_hour", "disk"),
    *("device", "link", "switch"),
)
DEVICE_KEYS = (
    *("kind", "name", "preset", "model", "count", "cores", "memory"),
    *("memory_bandwidth", "flops"),
)
DISK_KEYS = ("capacity", "read_bandwidth", "write_bandwidth")
LINK_KEYS = ("between", "kind", "bandwidth", "latency")
SWITCH_KEYS = ("name", "count")
_AT = ("device", "dtype", "kind", "size", "dim", "optimizer", "side", "peer")
_SPREAD = ("median", "min", "max", "samples")
RATE_KEYS = ("what", "host", *_AT, *_SPREAD)

# ------------------------------------------------------------------ from tables


@contextmanager
def _within(where: str) -> Iterator[None]:
    """Says where the values stand that a description refuses."""
    try:
        yield
    except ConfigError as error:
        said, owner = str(error), re.split("[:,] ", where)[-1]
        if said.startswith(f"{owner} "):  # "host 'a' needs ..." of host 'a'
            said = f"{where}{said.removeprefix(owner)}"
        raise ConfigError(said if said.startswith(where) else f"{where}: {said}") from error


def cluster_of_tables(tables: object, where: str) -> Cluster:
    """Returns the cluster that the tables of a file describe.

    Args:
        tables: As a parser gave them.
        where: The file, for errors.

    Raises:
        ConfigError: They describe none; names file, part and key.
    """
    section = Section(tables, where, CLUSTER_KEYS)
    if not section.tables("host"):
        raise ConfigError(f"{where}: a cluster needs a host, got none; add [[host]]")
    with _within(where):
        return Cluster(
            hosts=tuple(_host(each, where) for each in section.tables("host")),
            links=_links(section),
            switches=_switches(section),
            rates=tuple(
                _rate(each, section.within(f"rate {i}"))
                for i, each in enumerate(section.tables("rate"), start=1)
            ),
        )


def _host(values: object, where: str) -> Host:
    name = values.get("name") if isinstance(values, Mapping) else None
    section = Section(values, f"{where}: host {name!r}", HOST_KEYS)
    fields: Table = {"name": section.text("name")}
    with _within(section.where):
        for key, read in (
            ("count", section.number),
            ("price_per_hour", section.number),
            ("addresses", section.texts),
        ):
            if key in section:
                fields[key] = read(key)
        if "disk" in section:
            fields["disk"] = _disk(section.table("disk"), section.within("disk"))
        if "device" in section or "preset" not in section:
            devices = section.tables("device")
            fields["devices"] = tuple(_device(each, section) for each in devices)
        if "link" in section:
            fields["links"] = _links(section)
        if "switch" in section:
            fields["switches"] = _switches(section)
        if "preset" in section:
            return replace(preset(section.text("preset")), **fields)
        return Host(**fields)


def _device(values: object, host: Section) -> Device:
    got = values if isinstance(values, Mapping) else {}
    title = got.get("name") or got.get("kind") or got.get("preset")
    section = Section(values, host.within(f"device {title!r}"), DEVICE_KEYS)
    fields: Table = {}
    with _within(section.where):
        for key in ("kind", "name", "model"):
            if key in section:
                fields[key] = section.text(key)
        for key in ("count", "cores"):
            if key in section:
                fields[key] = section.number(key)
        if "memory_bandwidth" in section:
            fields["memory_bandwidth"] = section.quantity("memory_bandwidth", parse_rate, "2TB/s")
        if "flops" in section:
            peaks = section.table("flops")
            flops = Section(peaks, section.within("flops"), tuple(peaks))
            fields["flops"] = tuple(
                (dtype, flops.quantity(dtype, parse_flops, "19.5TFLOP/s")) for dtype in peaks
            )
        if "memory" in section or "preset" not in section:
            fields["memory"] = _size(section, "memory", "80GiB")
        if "preset" in section:
            return replace(device_preset(section.text("preset")), **fields)
        return Device(**{"kind": section.text("kind"), **fields})


def _disk(values: object, where: str) -> Disk:
    section = Section(values, where, DISK_KEYS)
    with _within(where):
        rates = {
            key: section.quantity(key, parse_rate, "2GB/s")
            for key in ("read_bandwidth", "write_bandwidth")
            if key in section
        }
        return Disk(_size(section, "capacity", "2TB"), **rates)


def _links(section: Section) -> tuple[Link, ...]:
    links = enumerate(section.tables("link"), start=1)
    return tuple(_link(values, section.within(f"link {i}")) for i, values in links)


def _link(values: object, where: str) -> Link:
    section = Section(values, where, LINK_KEYS)
    ends = section.texts("between")
    if len(ends) != 2:
        raise section.error("between", f"two names, got {list(ends)!r}")
    with _within(where):
        return Link(
            (ends[0], ends[1]),
            section.text("kind"),
            section.quantity("bandwidth", parse_rate, "25Gbit/s"),
            section.quantity("latency", parse_seconds, "5us"),
        )


def _switches(section: Section) -> tuple[Switch, ...]:
    found = []
    for i, values in enumerate(section.tables("switch"), start=1):
        where = section.within(f"switch {i}")
        switch = Section(values, where, SWITCH_KEYS)
        with _within(where):
            found.append(Switch(switch.text("name"), switch.number("count", 1)))  # type: ignore[arg-type]  # Switch refuses what is no whole number
    return tuple(found)


def _rate(values: object, where: str) -> Rate:
    section = Section(values, where, RATE_KEYS)
    with _within(where):
        spread = Spread(*(section.number(key) for key in _SPREAD))  # type: ignore[arg-type]  # Spread refuses samples that are no whole number
        at: Table = {
            key: section.number(key) if key in ("size", "dim") else section.text(key)
            for key in _AT
            if key in section
        }
        return Rate(section.text("what"), section.text("host"), spread, **at)


def _size(section: Section, key: str, example: str) -> int:
    size = section.quantity(key, parse_bytes, example)
    return int(size) if size == int(size) else size  # type: ignore[return-value]  # refused by what takes it


# ------------------------------------------------------------------ to tables


def tables_of_cluster(cluster: Cluster) -> Table:
    """Returns the tables of a cluster, from which `cluster_of_tables` makes an equal one."""
    return _without_nothing(
        {
            "host": [_host_table(host) for host in cluster.hosts],
            "switch": [_switch_table(switch) for switch in cluster.switches],
            "link": [_link_table(link) for link in cluster.links],
            "rate": rate_tables(cluster),
        }
    )


def rate_tables(cluster: Cluster) -> list[Table]:
    """Returns the tables of a cluster's rates."""
    return [
        _without_nothing(
            {
                "what": rate.what,
                "host": rate.host,
                **{key: getattr(rate, key) for key in _AT},
                **{key: getattr(rate.value, key) for key in _SPREAD},
            }
        )
        for rate in cluster.rates
    ]


def _host_table(host: Host) -> Table:
    return _without_nothing(
        {
            "name": host.name,
            "count": None if host.count == 1 else host.count,
            "addresses": list(host.addresses),
            "price_per_hour": host.price_per_hour,
            "disk": None if host.disk is None else _disk_table(host.disk),
            "device": [_device_table(device) for device in host.devices],
            "switch": [_switch_table(switch) for switch in host.switches],
            "link": [_link_table(link) for link in host.links],
        }
    )


def _device_table(device: Device) -> Table:
    return _without_nothing(
        {
            "kind": device.kind,
            "name": None if device.name == device.kind else device.name,
            "model": device.model,
            "count": None if device.count == 1 else device.count,
            "cores": device.cores,
            "memory": _size_text(device.memory),
            "memory_bandwidth": _rate_text(device.memory_bandwidth),
            "flops": {
                dtype: _text(rate, parse_flops, {"TFLOP/s": 1e12, "GFLOP/s": 1e9})
                for dtype, rate in device.flops
            },
        }
    )


def _disk_table(disk: Disk) -> Table:
    return _without_nothing(
        {
            "capacity": _size_text(disk.capacity),
            "read_bandwidth": _rate_text(disk.read_bandwidth),
            "write_bandwidth": _rate_text(disk.write_bandwidth),
        }
    )


def _link_table(link: Link) -> Table:
    return {
        "between": list(link.ends),
        "kind": link.kind,
        "bandwidth": _rate_text(link.bandwidth),
        "latency": _text(link.latency, parse_seconds, {"ms": 1e-3, "us": 1e-6, "ns": 1e-9}),
    }


def _switch_table(switch: Switch) -> Table:
    return {"name": switch.name} | ({} if switch.count == 1 else {"count": switch.count})


def _without_nothing(table: Table) -> Table:
    return {key: value for key, value in table.items() if value not in (None, "", [], {})}


def _size_text(size: int) -> str | int:
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB"):
        if size % parse_bytes(f"1{unit}") == 0:
            return f"{size // parse_bytes(f'1{unit}')}{unit}"
    return size


def _rate_text(rate: float | None) -> str | float | None:
    return None if rate is None else _text(rate, parse_rate, {"GB/s": 1e9, "MB/s": 1e6})


def _text(value: float, parse: Callable[[str], float], units: Mapping[str, float]) -> str | float:
    """Returns the text of a quantity in the largest unit that fits, if it reads as the same one."""
    for unit, factor in units.items():
        text = f"{value / factor:.6g}{unit}"
        if value >= factor and "e" not in text.removesuffix(unit) and parse(text) == value:
            return text
    return value
