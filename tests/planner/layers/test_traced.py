"""Stacks of graphs: costs summed by hand, and what must hold on any cluster."""

import random
from dataclasses import replace

import pytest

from hetero_pipe.cluster import Cluster, Device
from hetero_pipe.cost import (
    Constants,
    CostModel,
    Workload,
    compute_rates,
    op_cost,
    optimizer_cost,
)
from hetero_pipe.errors import PlanError
from hetero_pipe.planner import Strategy, Where
from hetero_pipe.planner.layers import (
    Goal,
    Objective,
    brute_force,
    exact,
    provision,
    stack_of,
)
from tests.cost.problems import ITEMS, USERS, workload
from tests.cost.problems import model as graph_of
from tests.planner.layers.problems import GB, cluster, model
from tests.planner.problems import cluster_of, problem_of
from tests.planner.problems import graph_of as graph_of_tables

BATCH = 1000
CONSTANTS = Constants()


def by_name(stack):
    layers = {layer.name: layer for layer in stack.layers}
    types = {each.name: i for i, each in enumerate(stack.types)}
    return layers, types


# ------------------------------------------------------------------ by hand

USER_ROWS, ITEM_ROWS = 900.0, 6000.0  # distinct, of a batch
USER_KEYS, ITEM_KEYS = 1000.0, 6000.0


def ops_by_hand(found, name, host, device):
    """Returns the seconds of a step of a layer's ops and of its optimizer, pull and push aside."""
    graph = found.workload.at(BATCH)
    rates = compute_rates(found.cluster, host, device, constants=CONSTANTS)
    values = graph.values(BATCH)
    ops = [op for op in graph.ops_of(name) if op.kind not in ("pull", "push")]
    read = {each for op in ops for each in op.inputs}
    weights = [each for each in graph.parameters if each.name in read]
    optimizer = optimizer_cost(weights, rates, state=2).total
    return sum(op_cost(op, rates, values).total for op in ops) + optimizer


def test_on_cores_a_sparse_layer_is_both_ends_of_its_requests():
    found = model()
    layers, types = by_name(stack_of(found, batch=BATCH))
    core = types["server/cpu"]
    # read: keys of all slots, 4 dense columns, a label; a value for each 8 bytes.
    read = ((USER_KEYS + ITEM_KEYS) * 8 + BATCH * 4 * 5) / 8 * CONSTANTS.read_value
    for table, rows, keys, first in (
        (USERS, USER_ROWS, USER_KEYS, read),
        (ITEMS, ITEM_ROWS, ITEM_KEYS, 0.0),
    ):
        row = 0.5 + 0.5 * table.dim / 16
        seconds = (
            ops_by_hand(found, table.name, "server", "cpu")
            + first
            + keys * CONSTANTS.route_key
            + rows * row * (CONSTANTS.pull_row + CONSTANTS.push_row)
            # Keys there and weights back, then keys and gradients there, packed and read.
            + 2 * rows * (8 + 4 * table.dim) * CONSTANTS.message_byte
            # A pull and a push to each of 2 servers, and there.
            + 2 * 2 * 2 * CONSTANTS.call_cpu
        )
        assert layers[table.name].compute[core] * BATCH == pytest.approx(seconds)
        # Of what 8 workers on 2 machines pull and push, a quarter leaves each machine.
        moved = 8 * 2 * rows * (8 + 4 * table.dim) / 4 / 1e9
        assert layers[table.name].comm[core] * BATCH == pytest.approx(moved)


def test_on_accelerators_rows_are_shared_out():
    found = model()
    graph = found.workload.at(BATCH)
    layers, types = by_name(stack_of(found, batch=BATCH))
    gpu = types["trainer/gpu"]
    rates = compute_rates(found.cluster, "trainer", "gpu", constants=CONSTANTS)
    values = graph.values(BATCH)
    for table, rows, keys in ((USERS, USER_ROWS, USER_KEYS), (ITEMS, ITEM_ROWS, ITEM_KEYS)):
        own = {op.kind: op for op in graph.ops_of(table.name)}
        # Both find distinct rows in the batches of both: as many, for there is no sample.
        both = found.workload.distinct_rows(table.name, 2 * BATCH)
        pushed = {**values, f"rows.{table.name}": both / 2}
        seconds = (
            ops_by_hand(found, table.name, "trainer", "gpu")
            + op_cost(own["pull"], rates, values).total
            + op_cost(own["push"], rates, pushed).total
        )
        assert layers[table.name].compute[gpu] * BATCH == pytest.approx(seconds)
        # Half of the keys go to the other GPU, and half of the rows come; then both go.
        half = [rows * size / 2 for size in (8, 4 * table.dim, 8 + 4 * table.dim)]
        meanwhile = (
            sum(2e-6 + num_bytes / 5e10 for num_bytes in half)
            + (keys + rows) * CONSTANTS.route_key  # its server-side twin: where each row is
        )
        if table is USERS:
            batch_bytes = (USER_KEYS + ITEM_KEYS) * 8 + BATCH * 4 * 5
            meanwhile += batch_bytes / 8 * CONSTANTS.read_value + 4e-6 + batch_bytes / 8e9
        assert layers[table.name].comm[gpu] * BATCH == pytest.approx(meanwhile)


def test_a_dense_layer_is_its_ops_its_optimizer_and_its_share_of_an_average():
    found = model()
    layers, types = by_name(stack_of(found, batch=BATCH))
    in_step, _ = by_name(stack_of(found, batch=BATCH, mode="sync"))
    deep = layers["deep"]
    for place in ("server/cpu", "trainer/cpu", "trainer/gpu"):
        host, _, device = place.partition("/")
        seconds = ops_by_hand(found, "deep", host, device)
        assert deep.compute[types[place]] * BATCH == pytest.approx(seconds)
        # The only layer with weights: averaged every 16 steps, or in each.
        assert deep.comm[types[place]] > 0
        assert in_step["deep"].comm[types[place]] == pytest.approx(16 * deep.comm[types[place]])
    gradients = 32 * 64 * 4
    ring = 2 * (2e-6 + gradients / 2 / 5e10)  # 2 GPUs
    assert in_step["deep"].comm[types["trainer/gpu"]] * BATCH == pytest.approx(ring)


def test_what_crosses_and_what_is_held_is_counted():
    rows = {"users": 1e7, "items": 3e7}
    found = model(rows=rows)
    layers, types = by_name(stack_of(found, batch=BATCH))
    # Keys of items, and the pooled row of a user; then pooled rows of all three slots.
    assert layers["users"].cut_bytes == pytest.approx(2 * (6 * 8 + 16 * 4))
    assert layers["items"].cut_bytes == pytest.approx(2 * 4 * (16 + 2 * 8))
    assert layers["deep"].cut_bytes == 0
    half, _ = by_name(stack_of(found, batch=BATCH, wire="float16"))
    assert half["items"].cut_bytes == layers["items"].cut_bytes / 2
    # Weights with gradients and two floats of state each; what the forward leaves.
    graph = found.workload.at(BATCH)
    kept = 32 * 64 * 4 * 4 + graph.activation_bytes(BATCH, "deep")
    assert layers["deep"].own_bytes == pytest.approx(kept)
    for table in (USERS, ITEMS):
        least = rows[table.name] * table.bytes_per_row
        assert all(least <= each < 4 * least for each in layers[table.name].shared_bytes)
    assert layers["deep"].shared_bytes == (0.0,) * len(types)


def test_a_type_has_its_share_of_what_its_host_has():
    found = cluster()
    stack = stack_of(model(cluster=found), batch=BATCH)
    core, _, gpu = stack.types
    assert [each.count for each in stack.types] == [8, 8, 2]
    # A machine's price by its devices, of which the trainer has three.
    assert [each.price_per_hour for each in stack.types] == pytest.approx([0.25, 3 / 8, 3.0])
    paid = sum(each.count * each.price_per_hour for each in stack.types)
    assert paid == pytest.approx(found.price_per_hour)
    # 1 GB/s each way for 4 cores.
    assert core.bandwidth == pytest.approx(2 * 1e9 / 4)
    assert core.message_byte == CONSTANTS.message_byte
    # 1 GB/s for 2 GPUs is less than PCIe has; 4 cores pack for each.
    assert 1 / gpu.bandwidth == pytest.approx(1 / 1e9 + CONSTANTS.message_byte / 4)
    assert core.memory == pytest.approx(64 * GB * 0.9 / 4 - CONSTANTS.process)
    assert gpu.memory == pytest.approx(16 * GB * 0.9)
    for each in stack.types:
        assert each.step == pytest.approx(CONSTANTS.step / BATCH)
    assert (core.call, gpu.call) == (pytest.approx(CONSTANTS.call_cpu / BATCH), 0)
    free = cluster(price=None)
    assert [t.price_per_hour for t in stack_of(model(cluster=free), batch=BATCH).types][1:] == [
        0,
        0,
    ]


def test_layers_together_take_what_the_dense_stage_is_predicted_to_take():
    found = model(device_seconds=0.5)
    layers, types = by_name(stack_of(found, batch=BATCH))
    dense = [layers["deep"].compute[types["trainer/gpu"]]]
    plain, _ = by_name(stack_of(model(), batch=BATCH))
    for name in ("users", "items"):  # pooled there, too: less what rows take on the device
        gpu = types["trainer/gpu"]
        table = plain[name].compute[gpu] - ops_by_hand(found, name, "trainer", "gpu") / BATCH
        dense.append(layers[name].compute[gpu] - table)
    assert sum(dense) * BATCH == pytest.approx(0.5)
    # Cores are not the accelerator that is stated.
    assert layers["deep"].compute[0] == plain["deep"].compute[0]


def test_all_layers_on_cores_take_what_a_plan_asks_of_them():
    graph = graph_of_tables([16])
    found = CostModel(cluster(), Workload(graph, {"t0": 1e6}, num_dense=3, skew=1.2))
    stack = stack_of(found, batch=BATCH)
    objective = Objective(Goal.TIME_PER_SAMPLE)
    alone = provision(stack, ["server/cpu"] * len(stack.layers), objective)
    where = (Where("whole", "server", "cpu"), Where("server", "server", "cpu"))
    strategy = Strategy(where, "bounded", BATCH, homes=(("t0", "host"),))
    plan = strategy.plan(graph, {"whole": (2, 4), "server": (2, 1)}, staleness=1)
    predicted = found.predict(plan)
    asked = {bound.label: bound.amount for bound in predicted.bounds}
    assert alone.stages[0].num_units == 8
    assert alone.stages[0].time * predicted.samples == pytest.approx(
        max(asked["cores of server"], asked["network of server"])
    )


# ------------------------------------------------------------------ on any cluster


def objectives(stack):
    fastest = exact(stack, Objective(Goal.TIME_PER_SAMPLE)).assignment.throughput
    yield Objective(Goal.TIME_PER_SAMPLE)
    yield Objective(Goal.PRICE_PER_HOUR, 0.3 * fastest)
    yield Objective(Goal.PRICE_PER_SAMPLE)


def test_the_best_of_a_traced_stack_is_what_brute_force_finds():
    num_stages = []
    for seed in range(12):
        try:
            stack = stack_of(problem_of(seed), batch=512)
            for objective in objectives(stack):
                found = exact(stack, objective)
                least = brute_force(stack, objective).loss
                assert found.is_optimal
                assert found.loss == pytest.approx(least, rel=1e-9)
                num_stages.append(len(found.assignment.stages))
        except PlanError:
            continue
    assert len(num_stages) > 20
    assert len(set(num_stages)) > 1


def faster(cluster, *, bandwidth=1.0, flops=1.0):
    """Returns a cluster with so many times the bandwidth of links, and rates of devices."""

    def link(each):
        return replace(each, bandwidth=each.bandwidth * bandwidth)

    def device(each):
        peaks = tuple((dtype, rate * flops) for dtype, rate in each.flops)
        return replace(each, flops=peaks)

    hosts = tuple(
        replace(host, devices=tuple(map(device, host.devices)), links=tuple(map(link, host.links)))
        for host in cluster.hosts
    )
    return replace(cluster, hosts=hosts, links=tuple(map(link, cluster.links)))


@pytest.mark.parametrize("more", [{"bandwidth": 2.0}, {"flops": 2.0}])
def test_more_bandwidth_or_flops_are_never_slower(more):
    num_faster = 0
    for seed in range(8):
        before = cluster_of(random.Random(seed), has_gpus=True)
        wide = workload(graph=graph_of(hidden=1024))
        slow, fast = (
            stack_of(CostModel(each, wide), batch=20 * BATCH)
            for each in (before, faster(before, **more))
        )
        for layer, after in zip(slow.layers, fast.layers, strict=True):
            for name in ("compute", "comm"):
                pairs = list(zip(getattr(layer, name), getattr(after, name), strict=True))
                assert all(new <= old * (1 + 1e-12) for old, new in pairs)
                num_faster += sum(new < old * 0.999 for old, new in pairs)
        for type_, after in zip(slow.types, fast.types, strict=True):
            assert after.bandwidth >= type_.bandwidth
        for objective in objectives(slow):
            assert exact(fast, objective).loss <= exact(slow, objective).loss * (1 + 1e-9)
    assert num_faster > 5


def test_larger_tables_take_more_units_and_then_none_are_enough():
    units = []
    for rows in (1e6, 1e8, 3e8):
        stack = stack_of(model(rows={"users": rows, "items": 1e5}), batch=BATCH)
        found = exact(stack, Objective(Goal.PRICE_PER_HOUR, 1000)).assignment
        units.append(sum(stage.num_units for stage in found.stages if "users" in stage.layers))
    assert units == sorted(set(units))
    full = stack_of(model(rows={"users": 1e10, "items": 1e5}), batch=BATCH)
    with pytest.raises(PlanError, match="what all layers hold needs the memory of more units"):
        exact(full, Objective(Goal.TIME_PER_SAMPLE))


def test_cores_without_memory_for_a_worker_are_left_out():
    found = cluster()
    tiny = replace(found.hosts[0], devices=(Device("cpu", memory=GB, cores=4),))
    stack = stack_of(model(cluster=replace(found, hosts=(tiny, found.hosts[1]))), batch=BATCH)
    assert [each.name for each in stack.types] == ["trainer/cpu", "trainer/gpu"]
    with pytest.raises(PlanError, match="worker's process needs memory, got too little"):
        stack_of(model(cluster=Cluster((replace(tiny, count=1),))), batch=BATCH)
