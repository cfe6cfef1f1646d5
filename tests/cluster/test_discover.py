"""This host, and hosts whose kernel says something else."""

import os

import pytest

from hetero_pipe.cluster import Device, Link, discover
from hetero_pipe.errors import ConfigError
from hetero_pipe.units import GiB

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def machine(tmp_path):
    """Returns a function that writes files of a root folder and gives the folder."""

    def write(files):
        known = {
            "proc/meminfo": "MemFree: 1 kB\nMemTotal:       16777216 kB\n",
            "proc/cpuinfo": "processor : 0\nmodel name\t: A CPU @ 3 GHz\nmodel name : again\n",
        }
        for name, text in (known | files).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


def test_this_host_is_found():
    host = discover()
    assert 1 <= host.cores <= CORES
    assert 2**28 < host.memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host.disk.capacity > 0


def test_what_the_kernel_says_is_taken(machine):
    host = discover(name="me", root=machine({}))
    assert (host.name, host.memory, host.cpu.model) == ("me", 16 * GiB, "A CPU @ 3 GHz")
    assert host.cores == CORES


@pytest.mark.parametrize(
    ("files", "memory", "cores"),
    [
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": f"{4 * GiB}\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/cpu.max": "150000 100000\n",
            },
            4 * GiB,
            1,
        ),
        (
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"},
            16 * GiB,
            CORES,
        ),
        (
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"},
            16 * GiB,
            1,
        ),
        (
            {
                "proc/self/cgroup": "5:memory:/x\n3:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{GiB}\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            GiB,
            1,
        ),
    ],
)
def test_limits_of_its_cgroups_hold(files, memory, cores, machine):
    host = discover(root=machine(files))
    assert (host.memory, host.cores) == (memory, cores)


def test_devices_are_those_it_is_told_of(machine):
    gpu = Device("gpu", memory=80 * 10**9, count=2)
    link = Link(("gpu", "cpu"), "PCIe", 32e9, 5e-6)
    assert discover([gpu], [link], root=machine({})).devices[1] == gpu
    with pytest.raises(ConfigError, match="got none that leads to gpu:0"):
        discover([gpu], root=machine({}))


def test_a_system_that_is_not_linux_is_told(tmp_path):
    with pytest.raises(ConfigError, match="got no MemTotal there; describe the host"):
        discover(root=tmp_path)
