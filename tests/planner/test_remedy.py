"""What does not fit is told with the changes after which it does, and these are true."""

import re
from dataclasses import replace

import pytest

from hetero_pipe.cluster import Cluster, Device, Host, Link, Switch
from hetero_pipe.cost import CostModel, Workload
from hetero_pipe.errors import PlanError
from hetero_pipe.planner import Aim, Space, propose
from tests.planner.problems import GB, graph_of

GRAPH = graph_of([16, 1])
SPACE = Space((256, 1024), splits=("whole",))


def model_of(rows, *, servers=2, gpu=8 * GB, link=1.25e10):
    server = Host(
        "ps", (Device("cpu", memory=16 * GB, cores=4),), count=servers, price_per_hour=2.0
    )
    trainer = Host(
        "gpu",
        (
            Device("cpu", memory=4 * GB, cores=8),
            Device("gpu", memory=gpu, count=2, flops=(("float32", 1e13),), memory_bandwidth=5e11),
        ),
        (Link(("gpu", "cpu"), "PCIe", 1e10, 5e-6),),
        price_per_hour=8.0,
    )
    links = (Link(("ps", "s"), "NIC", link, 1e-5), Link(("gpu", "s"), "NIC", link, 1e-5))
    cluster = Cluster((server, trainer), links, (Switch("s"),))
    return CostModel(cluster, Workload(GRAPH, {"t0": rows, "t1": rows / 10}))


def said(model, space, aim=None):
    with pytest.raises(PlanError) as raised:
        propose(model, space, aim)
    return str(raised.value)


def test_tables_that_are_too_large_for_servers():
    text = said(model_of(3e8), SPACE)
    assert re.match(
        r"no plan fits: table t0 \(23\.\d+ GiB\) does not fit: ps/cpu needs 2\d\.\d+ GiB and has "
        r"13\.41 GiB, 1\d\.\d+ GiB too little; what would do, the cheapest first: 1\) dim=",
        text,
    )
    # Each is true, and the last one that is not, is not.
    count = int(re.search(r"more of host ps \((\d+) in all", text)[1])
    propose(model_of(3e8, servers=count), SPACE)
    said(model_of(3e8, servers=count - 1), SPACE)
    money = re.search(r"in all, ([\d.]+) an hour more", text)[1]
    assert float(money) == (count - 2) * 2.0
    dim = int(re.search(r"dim=(\d+) instead of 16 of table t0", text)[1])
    workload = Workload(graph_of([dim, 1]), {"t0": 3e8, "t1": 3e7})
    propose(CostModel(model_of(1).cluster, workload), SPACE)
    assert dim == 8 or said(
        CostModel(model_of(1).cluster, replace(workload, graph=graph_of([2 * dim, 1]))), SPACE
    )


def test_tables_that_are_too_large_for_devices_go_to_servers():
    text = said(model_of(1e8, gpu=2 * GB), replace(SPACE, modes=("gpu_only",)))
    assert "no plan fits: table t0" in text
    assert "gpu/gpu needs" in text
    assert "1) let the tables live on servers (mode bounded)" in text
    assert "of memory of each gpu/gpu" in text
    propose(model_of(1e8, gpu=2 * GB), SPACE)


def test_batches_that_are_too_large_are_made_smaller():
    large = replace(SPACE, batch_sizes=(2**24,), modes=("gpu_only",))
    text = said(model_of(1e5, gpu=2 * GB), large)
    assert "no plan fits: activations" in text or "no plan fits: rows of a batch" in text
    batch = int(re.search(r"batch_size=(\d+)", text)[1])
    propose(model_of(1e5, gpu=2 * GB), replace(large, batch_sizes=(batch,)))
    said(model_of(1e5, gpu=2 * GB), replace(large, batch_sizes=(2 * batch,)))


def test_what_is_too_slow_says_what_is_reached_and_what_is_enough():
    model, space = model_of(1e6), replace(SPACE, batch_sizes=(256,))
    most = propose(model, space).plan.predicted.samples_per_second
    text = said(model, space, Aim("money", 1.5 * most))
    assert "no plan is fast enough" in text
    assert "bounds it" in text
    reached = float(re.search(r"([\d,]+) samples/s of the required", text)[1].replace(",", ""))
    assert 0.98 * most <= reached <= 1.001 * most
    batch = int(re.search(r"batch_size=(\d+)", text)[1])
    propose(model, replace(space, batch_sizes=(batch,)), Aim("money", 1.5 * most))


def test_a_mode_without_its_device_says_which_there_are():
    known = model_of(1).cluster
    cluster = replace(known, hosts=known.hosts[:1], links=known.links[:1])
    model = CostModel(cluster, Workload(GRAPH, {"t0": 1e3, "t1": 1e3}))
    text = said(model, replace(SPACE, modes=("gpu_only",)))
    assert text.startswith("a plan needs a device that its mode may use, got modes gpu_only on ")
