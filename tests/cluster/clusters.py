"""Random clusters for hypothesis, and one that is small and known."""

from hypothesis import strategies as st

from hetero_pipe.cluster import (
    DTYPES,
    Cluster,
    Device,
    Disk,
    Host,
    Link,
    Rate,
    Spread,
    Switch,
)

positive = st.floats(1e-9, 1e18, allow_nan=False, allow_infinity=False)
bandwidths = st.sampled_from([1e9, 3.125e9, 32e9, 300e9, 1.234567891e10]) | positive
latencies = st.sampled_from([0.0, 1e-6, 5e-6]) | st.floats(0, 1)
names = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
sizes = st.integers(1, 2**50) | st.sampled_from([80 * 10**9, 2**36])
maybe = st.none() | positive

cpus = st.builds(
    Device,
    kind=st.just("cpu"),
    memory=sizes,
    model=texts,
    cores=st.integers(1, 512),
    memory_bandwidth=maybe,
)
gpus = st.builds(
    Device,
    kind=st.just("gpu"),
    memory=sizes,
    model=texts,
    count=st.integers(1, 4),
    flops=st.dictionaries(st.sampled_from(DTYPES), positive).map(
        lambda found: tuple(found.items())
    ),
    memory_bandwidth=maybe,
)
disks = st.none() | st.builds(Disk, capacity=sizes, read_bandwidth=maybe, write_bandwidth=maybe)


def link(*ends, kind):
    return st.builds(
        Link, ends=st.just(ends), kind=st.just(kind), bandwidth=bandwidths, latency=latencies
    )


@st.composite
def hosts(draw, name):
    has_gpus = draw(st.booleans())
    links = [draw(link("gpu", "cpu", kind="PCIe"))] if has_gpus else []
    if has_gpus and draw(st.booleans()):
        links.append(draw(link("gpu", "gpu", kind="NVLink")))
    count = draw(st.integers(1, 3))
    return Host(
        name,
        devices=(draw(cpus), *([draw(gpus)] if has_gpus else [])),
        links=tuple(links),
        count=count,
        addresses=tuple(draw(st.lists(texts, min_size=count, max_size=count))),
        price_per_hour=draw(st.none() | st.floats(0, 100)),
        disk=draw(disks),
    )


spreads = st.lists(positive, min_size=1, max_size=4).map(Spread.of)


@st.composite
def clusters(draw):
    """One to three kinds of hosts, at one or two tiers of switches, in one or two ways."""
    found = [
        draw(hosts(name)) for name in draw(st.lists(names, min_size=1, max_size=3, unique=True))
    ]
    links = [draw(link(host.name, "LEAF", kind="NIC")) for host in found]
    links += [draw(link(host.name, "SPINE", kind="NIC")) for host in found if draw(st.booleans())]
    links.append(draw(link("LEAF", "SPINE", kind="switch")))
    rates = [
        Rate(what, host.name, draw(spreads), size=size)
        for host in found
        for what in ("copy", "disk_read")
        for size in draw(st.sets(st.integers(1, 2**40), max_size=2))
    ]
    return Cluster(tuple(found), tuple(links), (Switch("LEAF"), Switch("SPINE")), tuple(rates))


def known():
    """Two hosts with two GPUs each at a PCIe switch, and a server, at one switch."""
    trainer = Host(
        "trainer",
        devices=(
            Device("cpu", memory=10**12, cores=32),
            Device("gpu", memory=80 * 10**9, count=2),
        ),
        switches=(Switch("bridge"),),
        links=(
            Link(("gpu", "bridge"), "PCIe", 30e9, 1e-6),
            Link(("bridge", "cpu"), "PCIe", 20e9, 2e-6),
            Link(("gpu", "gpu"), "NVLink", 300e9, 3e-6),
        ),
        count=2,
        price_per_hour=10.0,
    )
    server = Host(
        "server",
        devices=(Device("cpu", memory=10**11, cores=8),),
        links=(Link(("cpu", "cpu"), "loopback", 5e9, 1e-5),),
        price_per_hour=1.5,
    )
    links = (
        Link(("trainer", "leaf"), "NIC", 12.5e9, 4e-6),
        Link(("server", "leaf"), "NIC", 3.125e9, 5e-6),
    )
    return Cluster((trainer, server), links, (Switch("leaf"),))
