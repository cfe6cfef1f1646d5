"""Collectives against ones that send every message: exact for links of alpha and beta."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero_pipe.cluster import (
    Cluster,
    Device,
    Edge,
    Host,
    Link,
    Path,
    Switch,
    Ways,
    load_cluster,
    preset,
)
from hetero_pipe.cost import (
    Constants,
    Members,
    all_gather_time,
    all_reduce_time,
    all_to_all_time,
    broadcast_time,
)
from hetero_pipe.plan import ProcessPlan
from tests.oracles import collectives as slow
from tests.oracles.collectives import Network

BANDWIDTHS = st.sampled_from([1e9, 3e9, 25e9, 300e9])
LATENCIES = st.sampled_from([0.0, 1e-6, 2e-5])
SIZES = st.sampled_from([1.0, 1e4, 1e6, 3e8])


def way(bandwidth, latency):
    return Ways((Path((Edge("a", "b", "NIC", bandwidth, latency),)),))


@st.composite
def networks(draw):
    uplink = draw(BANDWIDTHS)
    return Network(
        machines=draw(st.integers(1, 5)),
        per_machine=draw(st.integers(1, 4)),
        intra=(draw(BANDWIDTHS), draw(LATENCIES)),
        # One member alone has no more than its machine has.
        inter=(min(draw(BANDWIDTHS), uplink), draw(LATENCIES)),
        uplink=uplink,
    )


def members(network):
    return Members(
        network.machines,
        network.per_machine,
        way(*network.intra),
        way(*network.inter),
        ((1, network.uplink),) if network.machines > 1 else (),
    )


def took(network, run, size):
    network.now = 0.0
    run(network, size)
    return network.now


@given(networks(), SIZES)
def test_an_all_reduce_takes_the_best_of_three_ways(network, size):
    tree = 2 * took(network, slow.tree_broadcast, size)  # a reduce is a broadcast backwards
    ring = took(network, slow.ring_all_reduce, size)
    hierarchical = took(network, slow.hierarchical_all_reduce, size)
    assert all_reduce_time(size, members(network)) == pytest.approx(min(tree, ring, hierarchical))


@given(networks(), SIZES)
def test_an_all_gather_takes_the_better_of_two_ways(network, size):
    ring = took(network, slow.all_gather, size)
    hierarchical = took(network, slow.hierarchical_all_gather, size)
    assert all_gather_time(size, members(network)) == pytest.approx(min(ring, hierarchical))


@given(networks(), SIZES)
def test_an_all_to_all_takes_its_rounds(network, size):
    assert all_to_all_time(size, members(network)) == pytest.approx(
        took(network, slow.all_to_all, size)
    )


@given(networks(), SIZES)
def test_a_broadcast_takes_its_tree(network, size):
    assert broadcast_time(size, members(network)) == pytest.approx(
        took(network, slow.tree_broadcast, size)
    )


def test_a_ring_of_four_by_hand():
    # 2 (n - 1) = 6 messages of a quarter: 1 us and 250 kB at 1 GB/s each.
    alone = Members(4, 1, inter=way(1e9, 1e-6), uplinks=((1, 1e9),))
    assert all_reduce_time(1e6, alone) == pytest.approx(6 * (1e-6 + 250e-6))


def test_a_switch_between_two_halves_slows_what_crosses_it():
    # 4 machines, 2 behind each switch: 2 * 2 of 12 parts of 1 MB cross, each way, at 1 GB/s.
    free = Members(4, 1, inter=way(10e9, 0), uplinks=((1, 10e9),))
    tight = Members(4, 1, inter=way(10e9, 0), uplinks=((1, 10e9), (2, 1e9)))
    assert all_to_all_time(4e6, free) == pytest.approx(3e6 / 10e9)
    assert all_to_all_time(4e6, tight) == pytest.approx(4e6 / 1e9)


# ---------------------------------------------------------------- who takes part


def of(cluster, *where):
    return Members.of(cluster, ProcessPlan("whole", *where), constants=Constants())


def test_members_of_the_example_cluster():
    found = of(load_cluster("examples/ctr/cluster.toml"), "trainer", "gpu", 2, 8)
    assert found.count == 16
    (within,), (between,) = found.intra.paths, found.inter.paths
    assert {edge.kind for edge in within.edges} == {"NVLink"}
    kinds = [edge.kind for edge in between.edges]
    assert kinds == ["PCIe", "NIC", "switch", "switch", "NIC", "PCIe"]
    assert between.bandwidth == min(32e9, 400e9 / 8)
    # A machine's NIC, and what is behind one leaf.
    assert found.uplinks == ((1, 50e9), (1, 100e9))


def test_eight_gpus_share_the_nic_of_their_machine():
    found = of(load_cluster("examples/ctr/cluster.toml"), "trainer", "gpu", 2, 8)
    assert found.between_time(1e9) == pytest.approx(8e9 / 50e9, rel=1e-3)
    alone = of(load_cluster("examples/ctr/cluster.toml"), "trainer", "gpu", 2, 1)
    assert alone.between_time(1e9) == pytest.approx(1e9 / 32e9, rel=1e-3)  # its PCIe is slower


def test_gpus_without_nvlink_talk_over_pcie():
    host = preset("4xT4-PCIe")
    found = of(Cluster((host,)), host.name, "gpu", 1, 4)
    assert [edge.kind for edge in found.intra.paths[0].edges] == ["PCIe", "PCIe"]
    assert found.inter == Ways()


def test_members_on_one_cpu_have_its_loopback_or_what_is_assumed():
    cpu = Device("cpu", memory=1, cores=4)
    known = Host("a", (cpu,), links=(Link(("cpu", "cpu"), "loopback", 5e9, 1e-5),))
    assert of(Cluster((known,)), "a", "cpu", 1, 2).intra.time(5e9) == pytest.approx(1 + 1e-5)
    constants = Constants()
    assumed = of(Cluster((Host("a", (cpu,)),)), "a", "cpu", 1, 2).intra.time(1e6)
    assert assumed == pytest.approx(constants.call / 2 + 1e6 * constants.message_byte)


def test_one_member_waits_for_nobody():
    alone = Members()
    assert all_reduce_time(1e9, alone) == all_gather_time(1e9, alone) == 0
    assert all_to_all_time(1e9, alone) == broadcast_time(1e9, alone) == 0


def test_two_ways_between_machines_are_taken_by_size():
    cpu = Device("cpu", memory=1, cores=4)
    near, wide = Link(("a", "near"), "NIC", 1e9, 0.0), Link(("a", "wide"), "NIC", 10e9, 1e-3)
    cluster = Cluster((Host("a", (cpu,), count=2),), (near, wide), (Switch("near"), Switch("wide")))
    found = of(cluster, "a", "cpu", 2, 1)
    assert found.inter.time(1e3) == pytest.approx(1e-6)
    assert found.inter.time(1e9) == pytest.approx(0.1 + 2e-3)
    assert found.uplinks == ((1, 11e9),)


@given(networks(), SIZES, st.integers(2, 8))
def test_more_bytes_never_take_less(network, size, times):
    for run in (all_reduce_time, all_gather_time, all_to_all_time, broadcast_time):
        assert run(size * times, members(network)) >= run(size, members(network))
        assert math.isfinite(run(size, members(network)))
