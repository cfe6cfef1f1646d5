"""A small model on a cluster that is written down, for stacks of it."""

from hetero_pipe.cluster import Cluster, Device, Host, Link, Switch
from hetero_pipe.cost import CostModel
from tests.cost.problems import workload

GB = 10**9


def cluster(*, nic=1e9, flops=1e12, price=9.0):
    """Returns two machines of 4 cores, and one of 2 GPUs; nothing is measured."""
    server = Host(
        "server",
        (Device("cpu", memory=64 * GB, cores=4, flops=(("float32", 400e9),)),),
        count=2,
        price_per_hour=1.0,
    )
    devices = (
        Device("cpu", memory=64 * GB, cores=8, flops=(("float32", 400e9),)),
        Device("gpu", memory=16 * GB, count=2, flops=(("float32", flops),), memory_bandwidth=4e11),
    )
    links = (Link(("gpu", "cpu"), "PCIe", 8e9, 4e-6), Link(("gpu", "gpu"), "NVLink", 5e10, 2e-6))
    trainer = Host("trainer", devices, links, price_per_hour=price)
    nics = tuple(Link((name, "switch"), "NIC", nic, 1e-5) for name in ("server", "trainer"))
    return Cluster((server, trainer), nics, (Switch("switch"),))


def model(**changes):
    return CostModel(changes.pop("cluster", None) or cluster(), workload(**changes))
