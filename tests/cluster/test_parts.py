"""Devices, links, hosts and rates: what there is, and what is refused."""

import math

import pytest

from hetero_pipe.cluster import (
    DEVICE_PRESETS,
    HOST_PRESETS,
    Cluster,
    Device,
    Disk,
    Host,
    Link,
    Rate,
    Spread,
    Switch,
    device_preset,
    preset,
)
from hetero_pipe.errors import ConfigError

CPU = Device("cpu", memory=1, cores=1)
GPU = Device("gpu", memory=1, count=2)
PCIE = Link(("gpu", "cpu"), "PCIe", 1.0, 0.0)
ONE = Spread.of([1.0])


def test_devices_are_called_as_paddle_calls_them():
    assert CPU.names == ("cpu",)
    assert GPU.names == ("gpu:0", "gpu:1")
    assert Device("custom", name="npu", memory=1).names == ("npu:0",)


def test_peaks_are_found_by_dtype_and_kept_in_order():
    device = Device("gpu", memory=1, flops=(("float16", 2e12), ("float32", 1e12)))
    assert (device.peak("float32"), device.peak("int8")) == (1e12, None)
    assert device == Device("gpu", memory=1, flops=(("float32", 1e12), ("float16", 2e12)))


@pytest.mark.parametrize("name", HOST_PRESETS)
def test_a_preset_is_a_cluster_whose_devices_are_all_reached(name):
    host = preset(name)
    cluster = Cluster((host,))
    for place in cluster.places("gpu"):
        assert cluster.path(place, f"{name}/cpu").bandwidth >= 16e9
    assert host.memory >= sum(d.memory * d.count for d in host.devices if d.kind == "gpu")


@pytest.mark.parametrize("name", DEVICE_PRESETS)
def test_a_preset_has_the_figures_of_its_data_sheet(name):
    device = device_preset(name)
    assert device.model
    assert device.peak("float32") > 1e12
    assert device.memory_bandwidth > 1e11


def test_peers_in_a_host_speak_over_nvlink():
    cluster = Cluster((preset("8xA100-80-NVLink"),))
    path = cluster.path("8xA100-80-NVLink/gpu:0", "8xA100-80-NVLink/gpu:7")
    assert (path.bandwidth, path.latency) == (300e9, pytest.approx(3.4e-6))


def test_an_unknown_preset_names_the_nearest_and_all():
    with pytest.raises(
        ConfigError, match=r"8xH100-NVLink, .*got '8xA100-NVlink'; did you mean '8x"
    ):
        preset("8xA100-NVlink")
    with pytest.raises(
        ConfigError, match=r"A100-40, A100-80, .*got 'a100-80'; did you mean 'A100-"
    ):
        device_preset("a100-80")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Device("gpuu", memory=1), "got kind='gpuu'; did you mean 'gpu'"),
        (lambda: Device("gpu", memory=0), "device 'gpu' needs memory of at least 1, got memory=0"),
        (lambda: Device("gpu", memory=1.5), "got memory=1.5"),
        (lambda: Device("gpu", memory=1, count=0), "needs count of at least 1"),
        (lambda: Device("gpu", memory=1, name="a/b"), "the name of a device is of letters"),
        (lambda: Device("gpu", memory=1, name="cpu"), "named cpu if it is of kind cpu"),
        (lambda: Device("gpu", memory=1, cores=4), "only a cpu has cores"),
        (lambda: Device("custom", memory=1), "needs the name by which Paddle knows it"),
        (lambda: Device("cpu", memory=1), "needs cores of at least 1, got cores=None"),
        (lambda: Device("cpu", memory=1, cores=1, count=2), "stands for all sockets"),
        (lambda: Device("gpu", memory=1, flops=(("fp32", 1.0),)), "got flops='fp32'"),
        (lambda: Device("gpu", memory=1, flops=(("float32", -1.0),)), "flops of float32 above 0"),
        (lambda: Device("gpu", memory=1, flops=(("int8", 1.0),) * 2), "each dtype once"),
        (lambda: Device("gpu", memory=1, memory_bandwidth=math.nan), "memory_bandwidth above 0"),
        (lambda: Link(("a", "b"), "nvlink", 1.0, 0.0), "kind='nvlink'; did you mean 'NVLink'"),
        (lambda: Link(("a", "b"), "NIC", -1.0, 0.0), "between 'a' and 'b' needs bandwidth above 0"),
        (lambda: Link(("a", "b"), "NIC", math.inf, 0.0), "bandwidth=inf"),
        (lambda: Link(("a", "b"), "NIC", True, 0.0), "bandwidth=True"),
        (lambda: Link(("a", "b"), "NIC", 1.0, -1.0), "latency of at least 0, got latency=-1.0"),
        (lambda: Link(("a b", "c"), "NIC", 1.0, 0.0), "the name of a link's end"),
        (lambda: Switch("leaf", 0), "switch 'leaf' needs count of at least 1"),
        (lambda: Disk(0), "a disk needs capacity"),
        (lambda: Disk(1, read_bandwidth=-2.0), "a disk needs read_bandwidth above 0"),
        (lambda: Host("", (CPU,)), "the name of a host"),
        (lambda: Host("a", (GPU,)), "host 'a' needs a device of kind cpu"),
        (lambda: Host("a", (CPU, GPU)), "none that leads to gpu:0; add a link between 'gpu' and"),
        (lambda: Host("a", (CPU, GPU, GPU), (PCIE,)), "each device or switch once, got 'gpu'"),
        (lambda: Host("a", (CPU, GPU), (PCIE,), (Switch("gpu"),)), "once, got 'gpu' twice"),
        (lambda: Host("a", (CPU,), (PCIE,)), "a link of host 'a' .* there is no 'gpu'; did you"),
        (lambda: Host("a", (CPU,), count=-1), "host 'a' needs count of at least 1"),
        (lambda: Host("a", (CPU,), price_per_hour=-1.0), "price_per_hour of at least 0"),
        (lambda: Host("a", (CPU,), count=2, addresses=("x",)), "got 1 for 2"),
        (
            lambda: Host(
                "a", (CPU, GPU), (PCIE, Link(("gpu", "s"), "PCIe", 1.0, 0.0)), (Switch("s", 3),)
            ),
            "got 3 to 2 between 'gpu' and 's'",
        ),
        (lambda: Spread(1.0, 2.0, 3.0, 1), "median between min and max, got median=1.0"),
        (lambda: Spread(1.0, 1.0, 1.0, 0), "samples of at least 1"),
        (lambda: Spread(-1.0, -1.0, -1.0, 1), "median above 0"),
        (lambda: Rate("mtmul", "a", ONE), "got what='mtmul'; did you mean 'matmul'"),
        (lambda: Rate("copy", "a", ONE), "'copy' of host 'a' is measured at size, got no size"),
        (lambda: Rate("grpc_call", "a", ONE, dim=1), "is measured at nothing, got dim"),
        (lambda: Rate("copy", "a", ONE, size=0), "needs size of at least 1"),
        (
            lambda: Rate("matmul", "a", ONE, device="cpu", dtype="float", size=1),
            "got dtype='float'; did you mean 'float",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
