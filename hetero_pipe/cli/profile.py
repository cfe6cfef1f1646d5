"""`hetero-pipe profile`: measures this host, for a cluster file."""

import argparse
import socket
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hetero_pipe.cli.this_host import few_words, has_paddle, this_host
from hetero_pipe.client import profile_grpc, profile_route, profile_tables
from hetero_pipe.cluster import (
    HOST_PRESETS,
    Cluster,
    Host,
    Rate,
    Sampling,
    cluster_to_json,
    cluster_to_toml,
    load_cluster,
    profile_disk,
    profile_link,
    profile_memory,
    profile_shared_memory,
    save_cluster,
    save_rates,
    serve_link,
)
from hetero_pipe.errors import ConfigError
from hetero_pipe.launch import local_server
from hetero_pipe.pipeline import profile_cuts
from hetero_pipe.units import format_flops, format_rate, format_seconds, ns, us

__all__ = ["add_to"]

DESCRIPTION = """\
Measures what matters for training on this host: matmul, elementwise ops and
copies of its devices as Paddle has them, memory, pulls and pushes of a table,
what gRPC and shared memory add, the disk; and the link to another host. The
rates, each with its spread, go into a cluster file, which plans are made from.
"""

EPILOG = f"""\
examples:
  hetero-pipe profile > cluster.toml          describe and measure this host, 2 minutes
  hetero-pipe profile --quick                 10 seconds, and a wider spread
  hetero-pipe profile --cluster cluster.toml --host server
                                              measure a host of a file, into the file
  10.0.0.1$ hetero-pipe profile --listen 10.0.0.1:7300
  10.0.0.2$ hetero-pipe profile --cluster cluster.toml --host trainer \\
                --link 10.0.0.1:7300 --peer server
                                              measure the link between two, and nothing else

Let nothing else run meanwhile. What is measured stands on stderr. Ctrl-C leaves
the file as it was.

presets of hosts, for `preset = "..."` in a file:
  {"  ".join(HOST_PRESETS)}
"""

QUICK = Sampling(num_samples=3, min_seconds=0.005, is_quick=True)
INTERRUPTED = 130


def add_to(commands: Any) -> None:  # argparse's sub-parsers, whose class is private
    """Adds the sub-command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "profile",
        help="measure this host for a cluster file",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--cluster", metavar="FILE", type=Path, help="TOML or JSON; default: discover this host")
    add("--host", metavar="NAME", help="which of the file's hosts this is; default: by its name")
    add("--out", metavar="FILE", type=Path, help="default: the --cluster FILE, otherwise stdout")
    add("--folder", metavar="DIR", type=Path, default=Path(), help="whose disk; default: here")
    add("--quick", action="store_true", help="fewer samples and sizes")
    add("--json", action="store_true", help="print the cluster and its rates as JSON")
    add("--listen", metavar="HOST:PORT", help="answer --link of another host until Ctrl-C")
    add("--link", metavar="HOST:PORT", help="measure the link to a host that listens there")
    add("--peer", metavar="NAME", help="what the rates call that host; default: its address")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    if options.listen is not None:
        with suppress(KeyboardInterrupt):
            serve_link(options.listen, lambda at: print(f"listening on {at}", flush=True))
        return 0
    if options.peer is not None and options.link is None:
        raise ConfigError("a peer is at the end of a link, got --peer without --link HOST:PORT")
    cluster = _cluster(options)
    host = _host(cluster, options)
    sampling = QUICK if options.quick else Sampling()
    rates: list[Rate] = []
    try:
        with few_words():
            rates += _told(_measure(host, options, sampling))
            if options.link is None and has_paddle():
                rates += _told(_measure_jobs(cluster.with_rates(rates), host, sampling))
    except KeyboardInterrupt:
        print("hetero-pipe: interrupted, nothing was written", file=sys.stderr)
        return INTERRUPTED
    _write(cluster.with_rates(rates), options)
    return 0


def _cluster(options: argparse.Namespace) -> Cluster:
    if options.cluster is not None:
        return load_cluster(options.cluster)
    return Cluster((this_host(options.host),))


def _host(cluster: Cluster, options: argparse.Namespace) -> Host:
    """Returns which of the hosts this one is."""
    if options.host is not None:
        return cluster.host(options.host)
    if len(cluster.hosts) == 1:
        return cluster.hosts[0]
    name = socket.gethostname()
    for host in cluster.hosts:
        if name in (host.name, *host.names, *host.addresses):
            return host
    raise ConfigError(
        f"{options.cluster} has the hosts {', '.join(host.name for host in cluster.hosts)}, got "
        f"none that is this one, {name!r}; name it (--host NAME)"
    )


def _measure(host: Host, options: argparse.Namespace, sampling: Sampling) -> Iterator[Rate]:
    if options.link is not None:
        yield from profile_link(host.name, options.link, sampling, peer=options.peer)
        return
    yield from profile_memory(host.name, sampling)
    yield from profile_shared_memory(host.name, sampling)
    yield from profile_disk(host.name, options.folder, sampling)
    yield from profile_route(host.name, sampling)
    yield from profile_tables(host.name, sampling)
    with local_server() as server:
        yield from profile_grpc(host.name, server.address, sampling, pid=server.pid)
    yield from profile_cuts(host.name, sampling)
    if has_paddle():
        yield from _measure_devices(host, sampling)
    else:
        print("hetero-pipe: PaddlePaddle is not installed: no rates of devices", file=sys.stderr)


def _measure_devices(host: Host, sampling: Sampling) -> Iterator[Rate]:
    from hetero_pipe import nn  # noqa: PLC0415  # Paddle is slow to load

    # The only one of a custom kind has no number there.
    available = {name.partition(":")[0] for name in nn.available_devices()}
    for device in host.devices:
        name = device.names[0]
        if device.name in available:
            yield from nn.profile_device(host.name, nn.Device(name), sampling)
            yield from nn.profile_ops(host.name, nn.Device(name), sampling)
        else:
            print(
                f"hetero-pipe: host {host.name} has {name}, which this Paddle does not: no rates",
                file=sys.stderr,
            )


def _measure_jobs(cluster: Cluster, host: Host, sampling: Sampling) -> Iterator[Rate]:
    """Yields what work takes longer in a job than alone, with the rates of all that is in one."""
    from hetero_pipe import nn, trainer  # noqa: PLC0415  # Paddle is slow to load

    measured = {rate.device for rate in cluster.rates_of("op", host=host.name)}
    names = [device.names[0] for device in host.devices if device.name in measured]
    for name in names:
        with local_server() as server:
            pair = server.address, server.pid
            yield from trainer.profile_beside(cluster, host.name, name, sampling, server=pair)
    nn.Device("cpu").enter()


def _told(rates: Iterable[Rate]) -> Iterator[Rate]:
    """Yields the rates, and prints each on stderr when it was measured."""
    for rate in rates:
        print(_line(rate), file=sys.stderr, flush=True)
        yield rate


def _line(rate: Rate) -> str:
    """Returns what a person reads: `matmul cpu float32 512  97.4 GFLOP/s (96 to 98, 9 samples)`."""
    value = rate.value
    show = {
        "FLOP/s": format_flops,
        "B/s": format_rate,
        "s": _format_seconds,
        "": "{:.2f} times".format,
    }[rate.unit]
    at = (
        rate.device,
        rate.dtype,
        rate.kind,
        rate.optimizer,
        rate.dim and f"dim {rate.dim}",
        rate.side,
        rate.size,
    )
    title = " ".join(str(part) for part in (rate.what, *at, rate.peer) if part)
    spread = f"{show(value.min)} to {show(value.max)}, {value.samples} samples"
    return f"{title:36s} {show(value.median):>14s}  ({spread})"


def _format_seconds(seconds: float) -> str:
    # A key or a byte takes far less than what `format_seconds` is for.
    return format_seconds(seconds) if seconds >= us else f"{seconds / ns:.4g} ns"


def _write(cluster: Cluster, options: argparse.Namespace) -> None:
    if options.out is not None:
        save_cluster(cluster, options.out)
    elif options.cluster is not None:
        save_rates(cluster, options.cluster)
    if options.json:
        print(cluster_to_json(cluster), end="")
    elif options.out is None and options.cluster is None:
        print(cluster_to_toml(cluster), end="")
