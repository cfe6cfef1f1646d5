"""Random planning problems: small clusters and small models. Not a test itself."""

import random

from hetero_pipe.cluster import Cluster, Device, Host, Link, Switch
from hetero_pipe.cost import CostModel, Workload
from hetero_pipe.graph import BATCH, Call, Size, Table, Tensor, build_graph

GB = 10**9


def activation(name, *sizes, dtype="float32", needs_gradient=True):
    return Tensor(name, tuple(map(Size.of, sizes)), dtype, needs_gradient=needs_gradient)


def graph_of(dims, *, keys=2.0, width=64, state=1):
    """Returns a model of some tables, each with one slot, and two layers above them."""
    tables, inputs, calls, pooled = [], [], [], []
    for i, dim in enumerate(dims):
        name = f"t{i}"
        table = Table(name, dim, {f"s{i}": keys}, state_per_weight=state)
        key = activation(f"keys{i}", table.keys(f"s{i}"), dtype="uint64", needs_gradient=False)
        rows = activation(f"{name}.rows", table.rows, dim)
        out = activation(f"{name}.out", BATCH, 1, dim)
        tables.append(table)
        inputs.append(key)
        pooled.append(out)
        calls.append(Call("pull", (key,), (rows,), {}, name, name, "m.py:1", name))
        slots = {"slots": f"s{i}"}
        calls.append(Call("pool", (rows, key), (out,), slots, name, name, "m.py:1", name))
    first = Tensor("first", (Size.of(sum(dims)), Size.of(width)), is_parameter=True,
                   needs_gradient=True)  # fmt: skip
    last = Tensor("last", (Size.of(width), Size.of(1)), is_parameter=True, needs_gradient=True)
    flat = activation("flat", BATCH, sum(dims))
    hidden, logit = activation("hidden", BATCH, width), activation("logit", BATCH, 1)
    calls += [
        Call("concat", tuple(pooled), (flat,), {}, "deep", "deep", "m.py:2"),
        Call("matmul", (flat, first), (hidden,), {}, "deep", "deep", "m.py:3"),
        Call("matmul", (hidden, last), (logit,), {}, "out", "out", "m.py:4"),
    ]
    return build_graph(
        "Model", calls, inputs=inputs, outputs=[logit], tables=tables, parameters=[first, last]
    )


def cluster_of(rng, *, num_hosts=2, most_machines=2, has_gpus=None):
    """Returns hosts with a few cores, some with devices, all at one switch."""
    hosts = []
    for i in range(num_hosts):
        memory = rng.choice([2, 4, 16, 64])
        devices = [Device("cpu", memory=memory * GB, cores=rng.choice([1, 2, 3, 4]))]
        links = []
        if has_gpus if has_gpus is not None else rng.random() < 0.6:
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
            if rng.random() < 0.5:
                links.append(Link(("gpu", "gpu"), "NVLink", 1e11, 3e-6))
        price = rng.choice([0.25, 0.5, 1.0, 3.0])
        hosts.append(
            Host(
                f"h{i}",
                tuple(devices),
                tuple(links),
                count=rng.randint(1, most_machines),
                price_per_hour=price,
            )
        )
    links = [Link((h.name, "s"), "NIC", rng.choice([1.25e8, 1.25e9, 1.25e10]), 1e-5) for h in hosts]
    return Cluster(tuple(hosts), tuple(links), (Switch("s"),))


def problem_of(seed, **cluster):
    """Returns the cost model of a random problem."""
    rng = random.Random(seed)
    dims = [rng.choice([1, 8, 16, 64]) for _ in range(rng.choice([1, 2, 2]))]
    graph = graph_of(dims, keys=rng.choice([1.0, 5.0]), width=rng.choice([16, 512]))
    rows = {table.name: rng.choice([1e4, 1e6, 2e7, 1e8]) for table in graph.tables}
    workload = Workload(graph, rows, skew=rng.choice([1.0, 1.3]))
    return CostModel(cluster_of(rng, **cluster), workload)
