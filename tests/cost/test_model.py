"""CostModel: what better hardware, more of it, and a larger batch may do to a prediction."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.cluster import Cluster, Device, Host, Link, Rate, Spread, Switch, load_cluster
from hetero_pipe.cost import Constants, CostModel
from hetero_pipe.plan import Plan, ProcessPlan
from tests.cluster.clusters import known
from tests.cost.problems import plan, servers, workers, workload

BANDWIDTHS = st.sampled_from([1e8, 1e9, 3e9, 25e9, 300e9])
LATENCIES = st.sampled_from([0.0, 1e-6, 1e-4, 5e-3])
FASTER = st.sampled_from([1.0001, 1.5, 4.0, 1000.0])
EPSILON = 1 + 1e-9
MOVED = ("message", "upload", "download")  # aside, but in a batch's own way


def link(draw, *ends, kind="NIC"):
    return Link(ends, kind, draw(BANDWIDTHS), draw(LATENCIES))


def device(draw, kind, **more):
    peak = draw(st.sampled_from([None, 1e11, 1e13]))
    return Device(
        kind,
        memory=10**11,
        flops=(("float32", peak),) if peak else (),
        memory_bandwidth=draw(st.sampled_from([None, 1e10, 1e12])),
        **more,
    )


@st.composite
def clusters(draw):
    """Servers and trainers with GPUs, in one or two ways to switches of one or two tiers."""
    gpus = [link(draw, "gpu", "cpu", kind="PCIe")]
    gpus += [link(draw, "gpu", "gpu", kind="NVLink")] * draw(st.booleans())
    cores = draw(st.integers(1, 8))
    hosts = (
        Host("server", (device(draw, "cpu", cores=draw(st.integers(1, 8))),), count=2),
        Host(
            "trainer",
            (device(draw, "cpu", cores=cores), device(draw, "gpu", count=2)),
            links=tuple(gpus),
            count=2,
        ),
    )
    links = [link(draw, host.name, "leaf") for host in hosts]
    links.append(link(draw, "leaf", "spine", kind="switch"))
    links += [link(draw, host.name, "spine") for host in hosts if draw(st.booleans())]
    rates = [
        Rate("matmul", "trainer", spread, device="gpu", dtype="float32", size=size)
        for size in draw(st.sets(st.sampled_from([64, 512, 4096]), max_size=2))
        for spread in [Spread.of([draw(st.sampled_from([1e9, 1e11, 1e13]))])]
    ]
    switches = (Switch("leaf", count=draw(st.sampled_from([1, 2]))), Switch("spine"))
    return Cluster(hosts, tuple(links), switches, tuple(rates))


BATCHES = st.sampled_from([1, 100, 5000])


@st.composite
def plans(draw):
    """One of each kind."""
    machines, batch = draw(st.integers(1, 2)), draw(BATCHES)
    held = servers(machines=draw(st.integers(1, 2)), per_machine=draw(st.integers(1, 3)))
    staleness = draw(st.integers(0, 3))
    whole = workers(device="gpu", machines=machines, per_machine=draw(st.integers(1, 2)))
    kind = draw(st.sampled_from(["cpu", "sync", "cached", "stages", "device", "sharded"]))
    if kind == "cpu":
        return plan(held, workers(machines=machines), batch=batch, staleness=staleness)
    if kind == "sync":
        return plan(held, whole, batch=batch, staleness=0, mode="sync")
    if kind == "cached":
        return plan(held, whole, batch=batch, staleness=staleness, cached={"users": 10**5})
    if kind == "stages":
        sparse = workers("sparse", host=draw(st.sampled_from(["server", "trainer"])))
        dense = workers("dense", device="gpu", machines=machines)
        return plan(held, sparse, dense, batch=batch, staleness=staleness)
    homes = {"users": kind, "items": kind}
    return plan(whole, batch=batch, staleness=0, mode="gpu_only", homes=homes)


def seconds(cluster, chosen, **more):
    return CostModel(cluster, workload(**more)).predict(chosen).step_seconds


def with_link(cluster, data, change):
    """Returns the cluster with one link changed, between machines or within one."""
    held = [("", i) for i in range(len(cluster.links))]
    held += [(host.name, i) for host in cluster.hosts for i in range(len(host.links))]
    owner, i = data.draw(st.sampled_from(held))

    def changed(links):
        return (*links[:i], change(links[i]), *links[i + 1 :])

    if not owner:
        return replace(cluster, links=changed(cluster.links))
    return replace(
        cluster,
        hosts=tuple(
            replace(host, links=changed(host.links)) if host.name == owner else host
            for host in cluster.hosts
        ),
    )


def with_device(cluster, data, change):
    names = [(host.name, device.name) for host in cluster.hosts for device in host.devices]
    chosen = data.draw(st.sampled_from(names))
    return replace(
        cluster,
        hosts=tuple(
            replace(
                host,
                devices=tuple(
                    change(device) if (host.name, device.name) == chosen else device
                    for device in host.devices
                ),
            )
            for host in cluster.hosts
        ),
    )


# ---------------------------------------------------------------- better is never slower


@given(clusters(), plans(), st.data(), FASTER)
@settings(max_examples=150, deadline=None)
def test_more_bandwidth_of_a_link_is_never_slower(cluster, chosen, data, times):
    better = with_link(cluster, data, lambda link: replace(link, bandwidth=link.bandwidth * times))
    assert seconds(better, chosen) <= seconds(cluster, chosen) * EPSILON


@given(clusters(), plans(), st.data(), FASTER)
@settings(max_examples=150, deadline=None)
def test_less_latency_of_a_link_is_never_slower(cluster, chosen, data, times):
    better = with_link(cluster, data, lambda link: replace(link, latency=link.latency / times))
    assert seconds(better, chosen) <= seconds(cluster, chosen) * EPSILON


@given(clusters(), plans(), st.data(), FASTER)
@settings(max_examples=60, deadline=None)
def test_more_flops_and_memory_bandwidth_are_never_slower(cluster, chosen, data, times):
    def change(device):
        width = device.memory_bandwidth
        flops = tuple((dtype, rate * times) for dtype, rate in device.flops)
        return replace(device, flops=flops, memory_bandwidth=width and width * times)

    assert seconds(with_device(cluster, data, change), chosen) <= (
        seconds(cluster, chosen) * EPSILON
    )


@given(clusters(), plans(), st.data(), FASTER)
@settings(max_examples=60, deadline=None)
def test_a_higher_rate_that_was_measured_is_never_slower(cluster, chosen, data, times):
    if not cluster.rates:
        return
    rate = data.draw(st.sampled_from(cluster.rates))
    better = cluster.with_rates([replace(rate, value=Spread.of([rate.value.median * times]))])
    assert seconds(better, chosen) <= seconds(cluster, chosen) * EPSILON


@given(clusters(), plans(), st.data(), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_more_cores_like_those_that_there_are_are_never_slower(cluster, chosen, data, times):
    def change(device):  # a peak is of all cores
        flops = tuple((dtype, rate * times) for dtype, rate in device.flops)
        return replace(device, cores=device.cores and device.cores * times, flops=flops)

    assert seconds(with_device(cluster, data, change), chosen) <= (
        seconds(cluster, chosen) * EPSILON
    )


# ---------------------------------------------------------------- what a plan chooses


@given(clusters(), plans(), st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_more_staleness_is_never_slower_and_never_less_memory(cluster, chosen, more):
    if chosen.workers.is_sync:
        return
    model = CostModel(cluster, workload())
    before = model.predict(chosen)
    after = model.predict(replace(chosen, staleness=chosen.staleness + more))
    assert after.step_seconds <= before.step_seconds * EPSILON
    for one, other in zip(before.memory, after.memory, strict=True):
        assert one.peak.total <= other.peak.total


@given(clusters(), plans(), st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_a_larger_batch_is_never_a_shorter_step_and_never_less_memory(cluster, chosen, more):
    distinct = {"users": [(64, 60), (1000, 700), (4000, 650)]}  # as a noisy sample has it
    model = CostModel(cluster, workload(distinct=distinct))
    before = model.predict(chosen)
    after = model.predict(replace(chosen, batch_size=chosen.batch_size + more))
    assert after.step_seconds >= before.step_seconds / EPSILON
    memory = zip(before.memory, after.memory, strict=True)
    assert all(one.peak.total <= other.peak.total * EPSILON for one, other in memory)


@pytest.mark.parametrize("where", ["machines", "per_machine"])
def test_more_servers_at_one_switch_are_never_slower_but_for_their_calls(where):
    host = Host("server", (Device("cpu", memory=10**12, cores=2),), count=8)
    cluster = replace(known(), hosts=(known().hosts[0], host))
    free = CostModel(cluster, workload(), Constants(call=0.0, call_cpu=0.0))
    dear = CostModel(cluster, workload(), Constants(call=0.0, call_cpu=1e-2))

    def steps(model):
        counts = [{where: num} for num in (1, 2, 4, 8)]
        found = [model.predict(plan(servers(**c), workers(machines=2))) for c in counts]
        return [each.step_seconds for each in found]

    assert steps(free) == sorted(steps(free), reverse=True)
    assert steps(free)[0] > steps(free)[1]
    assert steps(dear) == sorted(steps(dear))


# ---------------------------------------------------------------- a prediction holds together


@given(clusters(), plans())
@settings(max_examples=60, deadline=None)
def test_a_step_is_its_largest_bound_and_stages_are_what_they_are_made_of(cluster, chosen):
    found = CostModel(cluster, workload()).predict(chosen)
    assert found.step_seconds == found.bounds[0].amount == max(b.amount for b in found.bounds)
    assert found.bottleneck == found.bounds[0].label
    assert found.samples == chosen.batch_size * chosen.workers.num_readers
    bounds = {bound.label: bound.amount for bound in found.bounds}
    readers, staleness = chosen.workers.num_readers, chosen.staleness
    # Of more dense workers than that, some have no batch.
    turns = readers / min(chosen.workers.num_dense, readers + staleness)
    for stage in found.stages:
        assert stage.cost.total == pytest.approx(sum(part.amount for part in stage.cost.parts))
        times = turns if stage.role == "dense" else 1
        assert bounds[stage.name] == pytest.approx(stage.cost.total * times)
        assert stage.busy >= stage.cost.total
    cycle = [stage for stage in found.stages if stage.name not in ("read", "route")]
    moved = [part for s in cycle for part in s.aside.parts if part.label in MOVED]
    cycle = sum(part.amount for part in moved) + sum(
        s.cost.total * (turns if s.role == "dense" and staleness == 0 else 1) for s in cycle
    )
    assert bounds["gate"] == pytest.approx(cycle / (1 + staleness))
    again = Plan.from_json(replace(chosen, predicted=found).to_json())
    assert again.predicted == found


def test_servers_on_one_core_bound_a_step_by_what_all_readers_ask_of_them():
    slow = Host("server", (Device("cpu", memory=10**12, cores=1),))
    cluster = replace(known(), hosts=(known().hosts[0], slow))
    constants = Constants(pull_row=1e-4, push_row=1e-4, call=0.0, call_cpu=0.0, message_byte=1e-15)
    model = CostModel(cluster, workload(), constants)
    found = model.predict(plan(servers(), workers(per_machine=4), staleness=9))
    users, items = 900, 6000  # an assumed row is as wide as its dim: 16 and 8 weights
    rows = users + items * 0.75
    assert found.bottleneck == "cores of server"
    assert found.step_seconds == pytest.approx(4 * rows * 2e-4, rel=1e-6)
    halves = model.predict(plan(servers(per_machine=2), workers(per_machine=4), staleness=9))
    assert halves.step_seconds == pytest.approx(found.step_seconds, rel=1e-6)  # the same core


def test_servers_on_two_machines_have_the_cores_of_both():
    slow = Host("server", (Device("cpu", memory=10**12, cores=1),), count=2)
    cluster = replace(known(), hosts=(known().hosts[0], slow))
    model = CostModel(cluster, workload(), Constants(pull_row=1e-4, push_row=1e-4))

    def cores(machines):
        chosen = plan(servers(machines=machines), workers(per_machine=4))
        bounds = model.predict(chosen).bounds
        return next(each.amount for each in bounds if each.label == "cores of server")

    calls = 4 * 2 * Constants().call_cpu  # of pull and push, for each of 4 workers, on each server
    assert cores(2) - calls == pytest.approx((cores(1) - calls) / 2)


def test_a_device_is_asked_by_all_that_it_serves_and_by_all_stages():
    def found(chosen):
        predicted = CostModel(known(), workload()).predict(chosen)
        bounds = {bound.label: bound.amount for bound in predicted.bounds}
        return bounds["gpu of trainer"], {s.name: s.cost.on("device") for s in predicted.stages}

    four = plan(servers(), workers("sparse", per_machine=4), workers("dense", device="gpu"))
    bound, on_device = found(four)
    assert bound == pytest.approx(4 * on_device["dense"])
    homes = {"users": "device", "items": "device"}
    alone = plan(workers(device="gpu"), mode="gpu_only", staleness=0, homes=homes)
    bound, on_device = found(alone)
    assert on_device["pull"] > 0 < on_device["push"]
    assert bound == pytest.approx(sum(on_device.values()))


def test_all_readers_share_the_links_of_the_servers_and_of_the_dense_workers():
    chosen = plan(
        servers(), workers("sparse", host="trainer", machines=2), workers("dense", host="server")
    )
    bounds = {b.label: b.amount for b in CostModel(known(), workload()).predict(chosen).bounds}
    keys, weights = 6900 * 8, 4 * (900 * 16 + 6000 * 8)
    pooled = 1000 * 4 * (16 + 2 * 8) + 1000 * 4 * (4 + 1)
    # Keys twice, gradients and what is pooled come in; rows and other gradients go out.
    entering = 2 * (2 * keys + weights + pooled)
    assert bounds["network of server"] == pytest.approx(entering / 3.125e9)


def test_money_is_that_of_the_machines_that_are_used():
    cluster = load_cluster("examples/ctr/cluster.toml")
    chosen = plan(servers(machines=3), ProcessPlan("whole", "trainer", "gpu", 2, 8), batch=4096)
    found = CostModel(cluster, workload()).predict(chosen)
    assert found.price_per_hour == pytest.approx(3 * 4.08 + 2 * 20.0)
    steps = 1e6 / (16 * 4096)
    assert found.money(1e6) == pytest.approx(52.24 / 3600 * steps * found.step_seconds)
    unpriced = replace(cluster, hosts=tuple(replace(h, price_per_hour=None) for h in cluster.hosts))
    assert CostModel(unpriced, workload()).predict(chosen).money(1e6) is None


def test_what_was_not_measured_is_told():
    assumed = CostModel(known(), workload()).predict(plan(servers(), workers())).assumed
    assert assumed == (
        "the rate of a matmul on trainer/cpu",
        "the rate of other ops on trainer/cpu",
        "the rates of pull and push on server",
        "the cost of a call from trainer",
    )
