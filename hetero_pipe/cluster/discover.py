"""Discovery: this host as its kernel shows it to this process."""

import os
import re
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from hetero_pipe.cluster.device import Device
from hetero_pipe.cluster.host import Disk, Host
from hetero_pipe.cluster.link import Link
from hetero_pipe.errors import ConfigError

__all__ = ["discover"]

_UNLIMITED = 2**60  # what version 1 of cgroups writes for none, rounded to pages


def discover(
    devices: Sequence[Device] = (),
    links: Sequence[Link] = (),
    *,
    name: str | None = None,
    root: Path = Path("/"),
) -> Host:
    """Returns this host: its CPU as far as this process may use it, and given devices.

    Cores are those of the process's affinity, and no more than its cgroups'
    quota; memory is the machine's, and no more than their limit. The disk is
    that of the working directory.

    Args:
        devices: Others than the CPU, as `hetero_pipe.nn.describe_devices` finds them.
        links: Between them and the CPU.
        name: Of the host; its own by default.
        root: Of the file system that holds `proc` and `sys`.

    Raises:
        ConfigError: The kernel shows no memory (it is not Linux), or a device
            has no link.
    """
    memory = _number(_read(root / "proc/meminfo"), r"MemTotal:\s+(\d+) kB")
    if memory is None:
        raise ConfigError(
            f"a host is discovered from Linux's {root / 'proc/meminfo'}, got no MemTotal there; "
            "describe the host in a cluster file"
        )
    cores, limit = _limits(root)
    model = re.search(r"model name\s*:\s*(.+)", _read(root / "proc/cpuinfo"))
    cpu = Device(
        "cpu",
        memory=int(min(memory * 1024, limit)),
        model=model[1].strip() if model else "",
        cores=max(1, int(min(len(os.sched_getaffinity(0)), cores))),
    )
    return Host(
        name or re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname()).lstrip(".-") or "localhost",
        devices=(cpu, *devices),
        links=tuple(links),
        disk=Disk(shutil.disk_usage(".").total),
    )


def _limits(root: Path) -> tuple[float, float]:
    """Returns the cores and the bytes that the process's cgroups leave it, infinite if any."""
    cores = memory = float("inf")
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        # Version 2 has one tree without a name, version 1 one for each controller.
        for tree in controllers.split(",") if controllers else [""]:
            for folder in _upwards(root / "sys/fs/cgroup" / tree, path):
                cores = min(cores, _quota(folder))
                for limit in ("memory.max", "memory.limit_in_bytes"):
                    found = _number(_read(folder / limit), r"(\d+)")
                    if found is not None and found < _UNLIMITED:
                        memory = min(memory, found)
    return cores, memory


def _upwards(tree: Path, path: str) -> list[Path]:
    """Returns a cgroup's folder and those above it, whose limits hold for it, too."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [tree.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota(folder: Path) -> float:
    """Returns the cores of a cgroup, infinite if it has no quota."""
    words = _read(folder / "cpu.max").split() or [
        *_read(folder / "cpu.cfs_quota_us").split(),
        *_read(folder / "cpu.cfs_period_us").split(),
    ]
    if len(words) != 2 or not words[0].isdecimal():  # `max`, -1 or no such file
        return float("inf")
    return int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(text: str, pattern: str) -> int | None:
    found = re.search(pattern, text)
    return int(found[1]) if found else None
