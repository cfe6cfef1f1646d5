"""Every plan of a space, one by one, and what it is expected to do: slow and obvious."""

from itertools import product

from hetero_pipe.plan import STAGES, Plan, ProcessPlan, StagePlan, TablePlan, WorkersPlan


def every_plan(space, cluster, graph):
    """Yields each plan of a space, without a thought for which may be good."""
    for mode, batch, cached in product(space.modes, space.batch_sizes, space.cached_rows):
        for processes in every_placement(space, cluster, mode):
            roles = [each.role for each in processes]
            num_readers = next(p.count for p in processes if p.role in ("whole", "sparse"))
            num_dense = sum(p.count for p in processes if p.role == "dense")
            if mode == "sync" and num_dense > num_readers:
                continue
            if cached and (processes[0].role != "whole" or processes[0].device == "cpu"):
                continue
            if cached and "server" not in roles:
                continue
            stalenesses = range(space.max_staleness + 1) if mode == "bounded" else [0]
            wires = space.wires if "dense" in roles else ["float32"]
            choices = [every_home(space, mode, processes)] * len(graph.tables)
            for homes, staleness, wire in product(product(*choices), stalenesses, wires):
                if mode in ("cpu_only", "gpu_only") and len(set(homes)) > 1:
                    continue
                if cached and set(homes) != {"host"}:
                    continue
                yield plan_of(
                    graph,
                    processes,
                    homes,
                    mode=mode,
                    batch=batch,
                    staleness=staleness,
                    wire=wire,
                    cached=cached,
                )


def every_home(space, mode, processes):
    if mode in ("cpu_only", "gpu_only"):
        return ["device", "sharded"] if "sharded" in space.homes else ["device"]
    is_gpu = processes[0].role == "whole" and processes[0].device != "cpu"
    if mode == "sync" and is_gpu and any(p.role == "server" for p in processes):
        return list(dict.fromkeys(["host", *space.homes]))
    return ["host"]


def every_placement(space, cluster, mode):
    places = [(host, device) for host in cluster.hosts for device in host.devices]
    if "whole" in space.splits:
        for host, device in places:
            if mode in ("cpu_only", "gpu_only"):
                if (device.name == "cpu") == (mode == "cpu_only"):
                    yield from ((w,) for w in every_number(space, "whole", host, device))
                continue
            yield (ProcessPlan("whole", host.name, device.name),)
            for server in cluster.hosts:
                yield from product(
                    every_number(space, "whole", host, device),
                    every_number(space, "server", server, server.cpu),
                )
    if "split" in space.splits and mode not in ("cpu_only", "gpu_only"):
        for reader, server in product(cluster.hosts, cluster.hosts):
            for host, device in places:
                yield from product(
                    every_number(space, "sparse", reader, reader.cpu),
                    every_number(space, "dense", host, device),
                    every_number(space, "server", server, server.cpu),
                )


def every_number(space, role, host, device):
    most = host.cores if device.name == "cpu" else device.count
    most = min(most, space.max_per_machine or most)
    numbers = sorted({n for n in (1, 2, 4, 8, 16, 32, 64) if n < most} | {most})
    machines = min(host.count, space.max_machines or host.count)
    for count, per_machine in product(range(1, machines + 1), numbers):
        yield ProcessPlan(role, host.name, device.name, count, per_machine)


def plan_of(graph, processes, homes, *, mode, batch, staleness, wire, cached):
    dense = next(p for p in processes if p.role in ("dense", "whole"))
    device = dense.device if dense.device == "cpu" else f"{dense.device}:0"
    capacity = {"read": 4, "route": 2, "pull": 1 + staleness, "dense": 1, "push": 16}
    servers = ("server:1",) if any(p.role == "server" for p in processes) else ()
    return Plan(
        stages=tuple(
            StagePlan(name, device if name == "dense" else "cpu", capacity[name]) for name in STAGES
        ),
        tables=tuple(
            TablePlan(
                table.name,
                table.dim,
                tuple(table.slots),
                servers if home == "host" else (),
                home=home,
                cached_rows=cached if home == "host" else 0,
            )
            for table, home in zip(graph.tables, homes, strict=True)
        ),
        staleness=staleness,
        workers=WorkersPlan(
            mode,
            next(p.count for p in processes if p.role in ("whole", "sparse")),
            ("dense:1",) if any(p.role == "dense" for p in processes) else (),
            wire,
        ),
        batch_size=batch,
        processes=processes,
    )


def every_prediction(model, space):
    """Returns what each plan that fits is expected to do."""
    plans = every_plan(space, model.cluster, model.workload.graph)
    return [found for plan in plans if (found := model.predict(plan)).fits]
