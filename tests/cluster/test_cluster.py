"""Clusters: who is there, and what bytes pass on the way from one to another."""

import itertools
import math
import pickle
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetero_pipe.cluster import Cluster, Device, Host, Link, Place, Rate, Spread, Switch
from hetero_pipe.errors import ConfigError
from tests.cluster.clusters import clusters, known

CPU = Device("cpu", memory=1, cores=1)
GPU = Device("gpu", memory=1, count=2)
HOST = Host("a", (CPU,))
NIC = Link(("a", "b"), "NIC", 1.0, 0.0)


# ------------------------------------------------------------------ who is there


def test_a_group_stands_for_all_its_machines_and_devices():
    cluster = known()
    assert [str(place) for place in cluster.places()] == [
        *("trainer-0/cpu", "trainer-0/gpu:0", "trainer-0/gpu:1"),
        *("trainer-1/cpu", "trainer-1/gpu:0", "trainer-1/gpu:1"),
        "server/cpu",
    ]
    assert [str(place) for place in cluster.places("gpu")][::3] == [
        "trainer-0/gpu:0",
        "trainer-1/gpu:1",
    ]
    assert cluster.num_devices == 7
    assert cluster.price_per_hour == 21.5
    assert cluster.host("trainer-1") is cluster.host("trainer") is cluster.hosts[0]
    assert cluster.device("trainer-1/gpu:1").memory == 80 * 10**9
    assert (cluster.hosts[0].cores, cluster.hosts[0].memory) == (32, 10**12)


def test_the_price_of_all_is_unknown_if_that_of_one_is():
    first, second = known().hosts
    assert (
        replace(known(), hosts=(first, replace(second, price_per_hour=None))).price_per_hour is None
    )


def test_a_cluster_can_be_pickled_and_hashed():
    cluster = known()
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert hash(cluster) == hash(known())


# ------------------------------------------------------------------ paths


@pytest.mark.parametrize(
    ("source", "target", "bandwidth", "latency", "kinds"),
    [
        ("trainer-0/gpu:0", "trainer-0/gpu:1", 300e9, 3e-6, ["NVLink", "NVLink"]),
        ("trainer-0/gpu:0", "trainer-0", 20e9, 3e-6, ["PCIe", "PCIe"]),
        ("trainer-0", "trainer-1", 12.5e9, 8e-6, ["NIC", "NIC"]),
        ("server", "trainer-1/gpu:1", 3.125e9, 12e-6, ["NIC", "NIC", "PCIe", "PCIe"]),
        ("server", "server/cpu", math.inf, 0, []),
    ],
)
def test_a_path_has_the_least_bandwidth_and_the_sum_of_latencies(
    source, target, bandwidth, latency, kinds
):
    path = known().path(source, target)
    assert path.bandwidth == bandwidth
    assert path.latency == pytest.approx(latency)
    assert [edge.kind for edge in path.edges] == kinds
    assert path.time(1000) == path.latency + 1000 / bandwidth


def test_paths_share_the_links_they_take_the_same_way():
    cluster = known()
    first = cluster.path("server", "trainer-0/gpu:0")
    second = cluster.path("server", "trainer-0/gpu:1")
    back = cluster.path("trainer-0/gpu:1", "server")
    assert [f"{edge.source} {edge.target}" for edge in first.shared(second)] == [
        "server/cpu leaf",
        "leaf trainer-0/cpu",
        "trainer-0/cpu trainer-0/bridge",
    ]
    assert first.shared(back) == ()  # each way has its own bandwidth


def test_a_loopback_is_no_part_of_a_path():
    assert known().loopback("server").bandwidth == 5e9
    assert known().loopback("trainer") is None


def test_members_of_the_larger_group_go_to_the_smaller_in_equal_blocks():
    hosts = (Host("h", (CPU,), count=4),)
    links = (Link(("h", "leaf"), "NIC", 2.0, 0.0), Link(("leaf", "spine"), "switch", 1.0, 0.0))
    cluster = Cluster(hosts, links, (Switch("leaf", 2), Switch("spine")))
    assert [cluster.path("h-0", f"h-{i}").bandwidth for i in (1, 2, 3)] == [2.0, 1.0, 1.0]


def test_a_small_message_takes_the_quick_way_and_a_large_one_the_wide_way():
    links = (Link(("a", "b"), "NIC", 1e6, 0.0), Link(("a", "b"), "NIC", 1e9, 1.0))
    cluster = Cluster((HOST, Host("b", (CPU,))), links)
    assert cluster.path("a", "b", num_bytes=1000).bandwidth == 1e6
    assert cluster.path("a", "b", num_bytes=2_000_000).bandwidth == 1e9
    assert cluster.path("a", "b").bandwidth == 1e9


def test_a_device_passes_nothing_on():
    """The wide way over gpu 1 would be one of bytes that nobody copies."""
    links = (
        Link(("gpu", "cpu"), "PCIe", 1.0, 0.0),
        Link(("npu", "gpu"), "PCIe", 9.0, 0.0),
        Link(("npu", "cpu"), "PCIe", 2.0, 0.0),
    )
    npu = Device("custom", name="npu", memory=1, count=2)
    cluster = Cluster((Host("a", (CPU, GPU, npu), links),))
    assert cluster.path("a/cpu", "a/gpu:0").bandwidth == 1.0
    assert cluster.path("a/npu:0", "a/gpu:0").bandwidth == 9.0
    assert cluster.path("a/npu:0", "a/gpu:1").bandwidth == 1.0


def test_hosts_pass_nothing_on():
    links = (
        Link(("a", "left"), "NIC", 1.0, 0.0),
        Link(("a", "right"), "NIC", 1.0, 0.0),
        Link(("b", "left"), "NIC", 1.0, 0.0),
        Link(("c", "right"), "NIC", 1.0, 0.0),
    )
    hosts = (HOST, Host("b", (CPU,)), Host("c", (CPU,)))
    cluster = Cluster(hosts, links, (Switch("left"), Switch("right")))
    assert cluster.path("a", "c").bandwidth == 1.0
    with pytest.raises(ConfigError, match=r"got none from 'b/cpu' to 'c/cpu'; hosts pass nothing"):
        cluster.path("b", "c")


def test_a_thousand_devices_are_few_links():
    hosts = (
        Host(
            "h", (CPU, replace(GPU, count=8)), (Link(("gpu", "cpu"), "PCIe", 1.0, 0.0),), count=125
        ),
    )
    cluster = Cluster(hosts, (Link(("h", "h"), "NIC", 2.0, 4e-6),))
    assert cluster.num_devices == 1125
    path = cluster.path("h-0/gpu:7", "h-124/gpu:0")
    assert (path.bandwidth, path.latency) == (1.0, 4e-6)


def all_times(cluster, source, target, num_bytes):
    """The oracle: the time of every simple path, by trying each, with only what may pass on."""
    hosts = {place.host for place in (source, target)}
    devices = {str(place) for place in cluster.places()}
    edges = [
        (
            a if "/" in a else f"{a}/cpu" if a in machines(cluster) else a,
            b if "/" in b else f"{b}/cpu" if b in machines(cluster) else b,
            edge,
        )
        for scope, found in scopes(cluster)
        for edge in found
        for a, b in [(scope + edge.source, scope + edge.target)]
    ]

    def walk(member, seen, bandwidth, latency):
        if member == str(target):
            yield latency + num_bytes / bandwidth
            return
        passes = (
            member not in devices
            or member == str(source)
            or (member.endswith("/cpu") and member.split("/")[0] in hosts)
        )
        for a, b, edge in edges if passes else ():
            if a == member and b not in seen:
                yield from walk(
                    b, seen | {b}, min(bandwidth, edge.bandwidth), latency + edge.latency
                )

    return list(walk(str(source), {str(source)}, math.inf, 0.0))


def machines(cluster):
    return {name for host in cluster.hosts for name in host.names}


def scopes(cluster):
    yield "", list(itertools.chain.from_iterable(cluster._network.values()))
    for host in cluster.hosts:
        for name in host.names:
            yield f"{name}/", list(itertools.chain.from_iterable(host.edges.values()))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_way_is_faster_than_the_path(data):
    cluster = data.draw(clusters())
    places = st.sampled_from(list(cluster.places()))
    source, target = data.draw(places), data.draw(places)
    num_bytes = data.draw(st.sampled_from([0, 1, 10**4, 10**9, 10**14]))
    if source != target:
        times = all_times(cluster, source, target, num_bytes)
        path = cluster.path(source, target, num_bytes=num_bytes)
        assert path.time(num_bytes) == pytest.approx(min(times), rel=1e-9, abs=1e-15)
        ways = cluster.ways(source, target)
        assert ways.time(num_bytes) == pytest.approx(min(times), rel=1e-9, abs=1e-15)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_path_back_is_as_good(data):
    cluster = data.draw(clusters())
    places = st.sampled_from(list(cluster.places()))
    source, target = data.draw(places), data.draw(places)
    there, back = cluster.path(source, target), cluster.path(target, source)
    assert there.bandwidth == back.bandwidth
    assert there.latency == pytest.approx(back.latency, rel=1e-9, abs=1e-15)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_more_bandwidth_of_a_link_never_makes_a_path_worse(data):
    cluster = data.draw(clusters())
    places = st.sampled_from(list(cluster.places()))
    source, target = data.draw(places), data.draw(places)
    num_bytes = data.draw(st.sampled_from([0, 1000, 10**9]))
    i = data.draw(st.integers(0, len(cluster.links) - 1))
    wider = replace(cluster.links[i], bandwidth=cluster.links[i].bandwidth * 3)
    links = (*cluster.links[:i], wider, *cluster.links[i + 1 :])
    better = replace(cluster, links=links)
    assert better.path(source, target).bandwidth >= cluster.path(source, target).bandwidth
    before = cluster.path(source, target, num_bytes=num_bytes).time(num_bytes)
    after = better.path(source, target, num_bytes=num_bytes).time(num_bytes)
    assert after <= before * (1 + 1e-9)


# ------------------------------------------------------------------ rates


def test_rates_are_found_by_what_they_were_measured_at():
    cluster = known()
    rates = [
        Rate("pull", "server", Spread.of([s]), optimizer="adagrad", dim=16, size=size)
        for s, size in ((2e-7, 1000), (1e-7, 10))
    ]
    cluster = cluster.with_rates([*rates, Rate("grpc_call", "server", Spread.of([1e-4]))])
    found = cluster.rates_of("pull", host="server", dim=16)
    assert [rate.size for rate in found] == [10, 1000]
    assert cluster.rates_of("pull", dim=8) == ()
    again = cluster.with_rates([replace(rates[0], value=Spread.of([9.0]))])
    assert len(again.rates) == 3
    assert again.rates_of("pull", size=1000)[0].value.median == 9.0


# ------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cluster(()), "a cluster needs a host"),
        (lambda: Cluster((HOST, HOST)), "names each host or switch once, got 'a' twice"),
        (
            lambda: Cluster((Host("a", (CPU,), count=2), Host("a-1", (CPU,)))),
            "names each machine and switch once, got 'a-1' twice",
        ),
        (
            lambda: Cluster((HOST, Host("b", (CPU,)))),
            "no way from 'a' to 'b'; add \\[\\[link\\]\\]",
        ),
        (lambda: Cluster((replace(HOST, count=2),)), "no way from 'a-0' to 'a-1'"),
        (
            lambda: Cluster((HOST,), (NIC,)),
            "one between 'a' and 'b'; there is no 'b'",
        ),
        (
            lambda: Cluster(
                (Host("a", (CPU,), count=3),),
                (Link(("a", "s"), "NIC", 1.0, 0.0),),
                (Switch("s", 2),),
            ),
            "got 3 to 2 between 'a' and 's'",
        ),
        (
            lambda: known().with_rates([Rate("grpc_call", "servr", Spread.of([1.0]))]),
            "got host='servr'; did you mean 'server'",
        ),
        (
            lambda: known().with_rates(
                [Rate("upload", "server", Spread.of([1.0]), device="gpu", size=1)]
            ),
            "one of its devices cpu, got device='gpu'",
        ),
        (
            lambda: replace(known(), rates=(Rate("grpc_call", "server", Spread.of([1.0])),) * 2),
            "got two of grpc_call server",
        ),
        (lambda: known().host("trainr"), "got 'trainr'; did you mean 'trainer'"),
        (lambda: known().device("trainer/cpu"), "got 'trainer/cpu'; did you mean 'trainer-"),
        (lambda: known().device("trainer-0/gpu:2"), "has cpu, gpu:0, gpu:1, got 'trainer-0/gpu:2'"),
        (lambda: known().path("server", "nowhere"), "got 'nowhere/cpu'"),
        (lambda: Place.parse("a/b/c"), "a place is HOST/DEVICE or HOST, got 'a/b/c'"),
        (lambda: Place.parse("a/"), "got 'a/'"),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
