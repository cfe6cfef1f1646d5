"""Cuts: no routing brings more out of some machines than the links around them carry."""

from itertools import product

from hypothesis import given

from hetero_pipe.cluster import Border, Cluster, Device, Host, Link, Switch, load_cluster
from tests.cluster.clusters import clusters, known


def least_border(cluster, inside):
    """Returns the least bandwidth around machines, over all sides that switches may be on."""
    edges = [edge for leaving in cluster._network.values() for edge in leaving]
    machines = {name for host in cluster.hosts for name in host.names}
    between = sorted({edge.target for edge in edges} - machines)
    widths = []
    for sides in product((True, False), repeat=len(between)):
        near = set(inside) | {name for name, side in zip(between, sides, strict=True) if side}
        widths.append(
            sum(edge.bandwidth for edge in edges if edge.source in near and edge.target not in near)
        )
    return min(widths)


@given(clusters())
def test_a_border_has_at_least_what_can_leave_its_machines(cluster):
    machines = {name for host in cluster.hosts for name in host.names}
    for border in cluster.borders:
        assert 0 < len(border.machines) < len(machines)
        assert border.bandwidth >= least_border(cluster, border.machines) * (1 - 1e-9)


def test_a_tree_of_switches_has_a_border_at_each_tier():
    cluster = load_cluster("examples/ctr/cluster.toml")
    assert [(border.machines, border.bandwidth * 8) for border in cluster.borders] == [
        *(((f"server-{i}",), 25e9) for i in range(4)),
        *(((f"trainer-{i}",), 400e9) for i in range(2)),
        (("server-0", "server-1", "trainer-0"), 800e9),
        (("server-2", "server-3", "trainer-1"), 800e9),
    ]
    # The first leaf's machines have less than its uplink: their own borders say so.
    alone = (25e9 + 25e9 + 400e9) / 8
    assert least_border(cluster, cluster.borders[6].machines) == alone


def test_one_switch_adds_no_border_to_those_of_single_machines():
    assert known().borders == (
        Border(("trainer-0",), 12.5e9),
        Border(("trainer-1",), 12.5e9),
        Border(("server",), 3.125e9),
    )


def test_a_leaf_with_two_uplinks_has_both():
    cpu = Device("cpu", memory=1, cores=1)
    links = [Link(("a", "leaf"), "NIC", 10e9, 0.0)]
    links += [Link(("leaf", spine), "switch", 4e9, 0.0) for spine in ("left", "right")]
    cluster = Cluster(
        (Host("a", (cpu,), count=4),),
        tuple(links),
        (Switch("leaf", count=2), Switch("left"), Switch("right")),
    )
    assert cluster.borders == (
        *(Border((f"a-{i}",), 10e9) for i in range(4)),
        Border(("a-0", "a-1"), 8e9),
        Border(("a-2", "a-3"), 8e9),
    )


def test_one_machine_has_nobody_to_send_to():
    assert Cluster((Host("a", (Device("cpu", memory=1, cores=1),)),)).borders == ()


def test_two_machines_may_be_joined_by_a_link_alone():
    cpu = Device("cpu", memory=1, cores=1)
    cluster = Cluster((Host("a", (cpu,)), Host("b", (cpu,))), (Link(("a", "b"), "NIC", 2e9, 0.0),))
    assert set(cluster.borders) == {Border(("a",), 2e9), Border(("b",), 2e9)}


def test_what_can_leave_a_machine_is_its_border_alone():
    cluster = load_cluster("examples/ctr/cluster.toml")
    alone = {each.machines[0]: each for each in cluster.borders if len(each.machines) == 1}
    assert cluster.uplinks == {name: each.bandwidth for name, each in alone.items()}
    assert len(cluster.borders) > len(alone) == sum(host.count for host in cluster.hosts)
