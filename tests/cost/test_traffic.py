"""What the network bounds, against each message on each link of a tree."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.cluster import Cluster, Device, Host, Link, Switch, load_cluster
from hetero_pipe.cost.traffic import Flow, first_machine_times, network_times, uplink
from hetero_pipe.plan import ProcessPlan
from tests.cluster.clusters import known

CPU = Device("cpu", memory=1, cores=1)
WIDTHS = st.sampled_from([1.0, 2.5, 10.0, 40.0])


@st.composite
def trees(draw):
    """Two kinds of machines behind leaves, which are behind one spine."""
    leaves = draw(st.integers(1, 3))
    counts = [leaves * draw(st.integers(1, 3)) for _ in "ab"]
    hosts = tuple(Host(name, (CPU,), count=count) for name, count in zip("ab", counts, strict=True))
    links = tuple(Link((host.name, "leaf"), "NIC", draw(WIDTHS), 0.0) for host in hosts)
    links += (Link(("leaf", "spine"), "switch", draw(WIDTHS), 0.0),)
    return Cluster(hosts, links, (Switch("leaf", count=leaves), Switch("spine")))


def seconds_of_messages(flows, cluster):
    """The oracle: every message of every two machines on the one way between them."""
    load, width = Counter(), {}
    for flow in flows:
        sources = cluster.host(flow.source.host).names[: flow.source.machines]
        targets = cluster.host(flow.target.host).names[: flow.target.machines]
        for source in sources:
            for target in targets:
                for edge in cluster.path(source, target).edges:
                    link = edge.source, edge.target
                    load[link] += flow.num_bytes / len(sources) / len(targets)
                    width[link] = edge.bandwidth
    return max((load[link] / width[link] for link in load), default=0.0)


@given(st.data())
def test_in_a_tree_it_is_the_busiest_link(data):
    cluster = data.draw(trees())

    def some():
        host = data.draw(st.sampled_from(cluster.hosts))
        return ProcessPlan("sparse", host.name, "cpu", data.draw(st.integers(1, host.count)))

    flows = [Flow(some(), some(), data.draw(st.floats(1, 100))) for _ in range(3)]
    found = network_times(flows, cluster)
    slow = seconds_of_messages(flows, cluster)
    assert max(found.values(), default=0.0) == pytest.approx(slow)


def test_links_are_told_by_where_they_are():
    cluster = load_cluster("examples/ctr/cluster.toml")
    servers, workers = (
        ProcessPlan("server", "server", "cpu", 4),
        ProcessPlan("whole", "trainer", "gpu", 2, 8),
    )
    found = network_times([Flow(workers, servers, 8e9)], cluster)
    assert found == {
        "network of server": pytest.approx(2e9 / (25e9 / 8)),
        "network of trainer": pytest.approx(4e9 / 50e9),
        # Half of what the trainer of a leaf sends is for servers of the other.
        "network between switches": pytest.approx(2e9 / 100e9),
    }
    assert uplink(cluster, "server-0") == 25e9 / 8
    assert uplink(Cluster((Host("a", (CPU,)),)), "a") == float("inf")


def test_both_ways_are_busy_at_once():
    one, other = ProcessPlan("server", "server", "cpu"), ProcessPlan("whole", "trainer", "cpu", 2)
    there, back = Flow(one, other, 8e9), Flow(other, one, 3e9)
    assert network_times([there, back], known()) == network_times([there], known())


@given(st.data())
def test_between_two_plans_no_network_is_faster_than_is_said(data):
    cluster = Cluster(
        tuple(Host(name, (CPU,), count=6) for name in "ab"),
        tuple(Link((name, "switch"), "NIC", data.draw(WIDTHS), 0.0) for name in "ab"),
        (Switch("switch"),),
    )
    roles = ("sparse", "dense", "server")
    places = {role: data.draw(st.sampled_from("ab")) for role in roles}
    ends = {role: sorted(data.draw(st.tuples(*[st.integers(1, 5)] * 2))) for role in roles}
    sizes = data.draw(st.tuples(*[st.floats(0, 100)] * 4))
    ways = [("sparse", "server"), ("server", "sparse"), ("sparse", "dense"), ("dense", "sparse")]

    def flows(machines):
        of = {role: ProcessPlan(role, places[role], "cpu", machines[role]) for role in roles}
        return [Flow(of[a], of[b], size) for (a, b), size in zip(ways, sizes, strict=True)]

    few = {role: low for role, (low, _) in ends.items()}
    numbers = {role: tuple(each) for role, each in ends.items()}
    said = first_machine_times(flows(few), cluster, numbers)
    plans = [
        dict(zip(roles, machines, strict=True))
        for machines in product(*(range(low, high + 1) for low, high in ends.values()))
    ]
    found = [network_times(flows(machines), cluster) for machines in plans]
    for name, seconds in said.items():
        assert seconds <= min(each.get(name, 0.0) for each in found) * (1 + 1e-9)
    if len(plans) == 1:
        assert max(said.values()) == pytest.approx(max(found[0].values()))


def test_readers_between_the_fewest_and_the_most_may_balance_what_comes_and_goes():
    # Of servers on 3 machines, as many readers send as much as they get: fewer get more.
    host = Host("a", (CPU,), count=80)
    link = Link(("a", "switch"), "NIC", 1.0, 0.0)
    cluster = Cluster((host,), (link,), (Switch("switch"),))
    readers, servers = (ProcessPlan(role, "a", "cpu", 3) for role in ("sparse", "server"))
    flows = [Flow(readers, servers, 3.0), Flow(servers, readers, 1.0)]
    even = network_times(flows, cluster)["network of a"]
    numbers = {"sparse": (1, 80), "server": (3, 3)}
    assert first_machine_times(flows, cluster, numbers)["network of a"] <= even
    for machines in (1, 80):
        moved = [
            replace(
                flow,
                source=replace(flow.source, machines=machines if flow.source is readers else 3),
                target=replace(flow.target, machines=machines if flow.target is readers else 3),
            )
            for flow in flows
        ]
        assert network_times(moved, cluster)["network of a"] > even
