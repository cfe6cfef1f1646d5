"""Small planning problems, drawn at random: a model of examples/ctr, its data, and a cluster."""

import random
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hetero_pipe.cluster import Cluster, Device, Host, Link, Switch, preset
from hetero_pipe.cost import CostModel, Workload
from hetero_pipe.graph import Graph
from hetero_pipe.nn import BatchSpec, trace
from hetero_pipe.planner import Space

sys.path.append(str(Path(__file__).parents[2] / "examples" / "ctr"))

from models import MODELS

GB = 10**9
NUM_DENSE, NUM_SLOTS = 13, 4
SPACES = {
    "whole or split": Space((512,), max_staleness=1, max_per_machine=1),
    "whole workers": Space((64, 1024), max_staleness=1, splits=("whole",), max_per_machine=2),
    "a home for each table": Space(
        (256,),
        modes=("sync", "gpu_only"),
        splits=("whole",),
        homes=("host", "device", "sharded"),
        max_per_machine=2,
    ),
    "sparse and dense workers": Space(
        (256,),
        modes=("sync", "async"),
        splits=("split",),
        wires=("float32", "bfloat16"),
        max_per_machine=1,
    ),
}
"""What may be chosen, by name; problems take them in turns."""


@dataclass(frozen=True)
class Problem:
    """What is to be planned.

    Attributes:
        seed: That it was drawn with.
        model: Name of the model.
        space: Key of `SPACES`.
        cost: Of any plan.
    """

    seed: int
    model: str
    space: str
    cost: CostModel


def draw(seed: int) -> Problem:
    """Returns the problem of a seed, always the same one."""
    rng = random.Random(seed)
    name = rng.choice(["wide_deep", "deepfm", "dcn", "dlrm"])
    graph = _graph(name, rng.choice([4, 16, 64]))
    shares = {table.name: rng.choice([0.05, 0.3, 1.0]) for table in graph.tables}
    graph = graph.with_data(distinct=shares)
    rows = {table.name: rng.choice([1e4, 1e6, 2e7, 1e8]) for table in graph.tables}
    workload = Workload(graph, rows, num_dense=NUM_DENSE, skew=rng.choice([1.0, 1.3]))
    cost = CostModel(_cluster(rng), workload)
    return Problem(seed, name, list(SPACES)[seed % len(SPACES)], cost)


@dataclass(frozen=True)
class Machines:
    """Equal machines of a large cluster.

    Attributes:
        name: Of the host.
        preset: A host of `hetero_pipe.cluster.preset`.
        count: How many.
        price: Of one, an hour.
        nic: Bytes/s.
    """

    name: str
    preset: str
    count: int
    price: float
    nic: float


LARGE = {
    "four kinds": (
        Machines("cpu", "2xXeon-8275CL", 60, 4.08, 3.125e9),
        Machines("memory", "2xXeon-8275CL", 40, 7.0, 6.25e9),
        Machines("a100", "8xA100-40-NVLink", 80, 14.75, 5e10),
        Machines("v100", "8xV100-32-NVLink", 33, 10.0, 1.25e10),
    ),
    "seven kinds": (
        Machines("cpu", "2xXeon-8275CL", 100, 4.08, 3.125e9),
        Machines("epyc", "2xEPYC-9654", 50, 9.2, 1.25e10),
        Machines("h100", "8xH100-NVLink", 40, 32.0, 4e11),
        Machines("a100", "8xA100-80-NVLink", 60, 19.5, 5e10),
        Machines("v100", "8xV100-32-NVLink", 40, 10.0, 1.25e10),
        Machines("l4", "4xL4-PCIe", 60, 4.2, 6.25e9),
        Machines("t4", "4xT4-PCIe", 80, 2.6, 3.125e9),
    ),
    "many CPUs": (
        Machines("small", "2xXeon-8275CL", 1200, 4.08, 3.125e9),
        Machines("large", "2xEPYC-9654", 600, 9.2, 1.25e10),
        Machines("a100", "8xA100-40-NVLink", 24, 14.75, 5e10),
    ),
}
"""Clusters of 1,000 to 2,000 devices, by name: all machines are at one switch."""


def large_problem(name: str) -> tuple[CostModel, Space]:
    """Returns DeepFM with a billion rows a table on one of the clusters of `LARGE`."""
    graph = _graph("deepfm", 16)
    hosts, links = [], []
    for machines in LARGE[name]:
        of = preset(machines.preset)
        host = Host(
            machines.name, of.devices, of.links, count=machines.count, price_per_hour=machines.price
        )
        hosts.append(host)
        links.append(Link((machines.name, "switch"), "NIC", machines.nic, 5e-6))
    cluster = Cluster(tuple(hosts), tuple(links), (Switch("switch"),))
    rows = {table.name: 1e9 for table in graph.tables}
    distinct = {table.name: 0.4 for table in graph.tables}
    workload = Workload(graph.with_data(distinct=distinct), rows, num_dense=NUM_DENSE)
    return CostModel(cluster, workload), Space((512, 1024, 2048, 4096, 8192))


@cache
def _graph(model: str, dim: int) -> Graph:
    slots = [f"slot{i}" for i in range(NUM_SLOTS)]
    layer = MODELS[model](slots, NUM_DENSE, dim=dim)
    return trace(layer, BatchSpec(keys=dict.fromkeys(slots, 1.0), dense=NUM_DENSE))


def _cluster(rng: random.Random) -> Cluster:
    """Returns two kinds of hosts at one switch, some with devices."""
    hosts = tuple(_host(rng, f"host{i}") for i in range(2))
    links = [
        Link((host.name, "switch"), "NIC", rng.choice([1.25e8, 1.25e9, 1.25e10]), 1e-5)
        for host in hosts
    ]
    return Cluster(hosts, tuple(links), (Switch("switch"),))


def _host(rng: random.Random, name: str) -> Host:
    devices = [Device("cpu", memory=rng.choice([4, 16, 64]) * GB, cores=rng.randint(1, 8))]
    links = []
    if rng.random() < 0.7:
        devices.append(
            Device(
                "gpu",
                memory=rng.choice([1, 4, 16]) * GB,
                count=rng.choice([1, 2]),
                flops=(("float32", rng.choice([2e12, 2e13])),),
                memory_bandwidth=rng.choice([3e11, 1e12]),
            )
        )
        links.append(Link(("gpu", "cpu"), "PCIe", rng.choice([8e9, 3e10]), 5e-6))
    price = rng.choice([0.25, 0.5, 1.0, 3.0])
    return Host(name, tuple(devices), tuple(links), count=rng.randint(1, 3), price_per_hour=price)
