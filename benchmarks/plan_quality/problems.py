"""Planning problems: shipped models of any size on random clusters."""

import random
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "examples" / "ctr"))

from models import MODELS

from hetero_pipe.cluster import Cluster, Device, Host, Link, Switch, preset
from hetero_pipe.cost import CostModel, Workload
from hetero_pipe.graph import Graph
from hetero_pipe.nn import BatchSpec, trace
from hetero_pipe.planner import Space

GB = 10**9
NUM_DENSE = 13
SLOTS = tuple(f"slot{i}" for i in range(8))


def trace_models() -> dict[str, Graph]:
    """Returns the graph of each shipped model that has no history."""
    spec = BatchSpec(dense=NUM_DENSE)
    return {
        name: trace(made(SLOTS, NUM_DENSE), spec) for name, made in MODELS.items() if name != "din"
    }


def random_problem(seed: int, graphs: Mapping[str, Graph]) -> tuple[CostModel, Space]:
    """Returns a workload on one or two kinds of hosts, and a space of some thousand plans."""
    rng = random.Random(seed)
    graph = graphs[rng.choice(sorted(graphs))]
    size = 10 ** rng.uniform(4, 8.5)
    workload = Workload(
        graph.with_data(
            distinct={table.name: rng.uniform(0.05, 1.0) for table in graph.tables},
        ),
        {table.name: size for table in graph.tables},
        num_dense=NUM_DENSE,
        skew=rng.uniform(1.0, 1.5),
    )
    space = Space(
        tuple(rng.sample((128, 512, 2048, 8192), 2)),
        max_staleness=rng.choice((1, 2)),
        modes=rng.choice((("bounded", "cpu_only", "gpu_only"), ("sync", "bounded", "gpu_only"))),
        splits=rng.choice((("whole",), ("whole", "split"))),
        homes=rng.choice((("host",), ("host", "device", "sharded"))),
        max_per_machine=2,
    )
    return CostModel(_random_cluster(rng), workload), space


def _random_cluster(rng: random.Random) -> Cluster:
    hosts = tuple(_random_host(rng, f"host{i}") for i in range(rng.choice((1, 2, 2))))
    nics = [Link((host.name, "switch"), "NIC", 10 ** rng.uniform(8, 10.5), 1e-5) for host in hosts]
    return Cluster(hosts, tuple(nics), (Switch("switch"),))


def _random_host(rng: random.Random, name: str) -> Host:
    devices = [Device("cpu", memory=rng.choice((4, 16, 64)) * GB, cores=rng.choice((1, 4, 16)))]
    links = []
    if rng.random() < 0.6:
        gpu = Device(
            "gpu",
            memory=rng.choice((2, 16)) * GB,
            count=rng.choice((1, 2)),
            flops=(("float32", 10 ** rng.uniform(12, 13.5)),),
            memory_bandwidth=10 ** rng.uniform(11.3, 12.3),
        )
        devices.append(gpu)
        links.append(Link(("gpu", "cpu"), "PCIe", rng.choice((8e9, 3.2e10)), 5e-6))
    return Host(
        name,
        tuple(devices),
        tuple(links),
        count=rng.randint(1, 3),
        price_per_hour=round(rng.uniform(0.2, 5), 2),
    )


def large_problem(graphs: Mapping[str, Graph]) -> tuple[CostModel, Space]:
    """Returns DeepFM with a billion rows on 213 machines with 904 GPUs."""
    graph = graphs["deepfm"]
    cpu = preset("2xXeon-8275CL")
    machines = (
        ("cpu", cpu, 60, 4.08, 3.125e9),
        ("memory", cpu, 40, 7.0, 6.25e9),
        ("a100", preset("8xA100-40-NVLink"), 80, 14.75, 5e10),
        ("v100", preset("8xV100-32-NVLink"), 33, 10.0, 1.25e10),
    )
    hosts = tuple(
        Host(
            name,
            of.devices,
            of.links,
            count=count,
            price_per_hour=price,
        )
        for name, of, count, price, _ in machines
    )
    links = tuple(Link((name, "switch"), "NIC", nic, 5e-6) for name, *_, nic in machines)
    cluster = Cluster(hosts, links, (Switch("switch"),))
    rows = {table.name: 1e9 for table in graph.tables}
    distinct = {table.name: 0.4 for table in graph.tables}
    workload = Workload(graph.with_data(distinct=distinct), rows, num_dense=NUM_DENSE)
    return CostModel(cluster, workload), Space((512, 1024, 2048, 4096, 8192))
