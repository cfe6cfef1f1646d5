"""Rates of a device: measured, else its data sheet, else what is assumed of any."""

import pytest

from hetero_pipe.cluster import Cluster, Device, Host, Link, Rate, Spread, preset
from hetero_pipe.cost import Constants, compute_rates
from hetero_pipe.errors import ConfigError

CONSTANTS = Constants()
CPU = Device("cpu", memory=1, cores=4, flops=(("float32", 400e9),), memory_bandwidth=100e9)
GPU = Device("gpu", memory=1, count=2, flops=(("float32", 10e12),), memory_bandwidth=1e12)
LINK = Link(("gpu", "cpu"), "PCIe", 1e9, 0.0)


def rates(device, *measured, devices=(CPU, GPU), **more):
    links = (LINK,) if len(devices) > 1 else ()
    cluster = Cluster((Host("a", devices, links=links),), rates=measured)
    return compute_rates(cluster, "a", device, constants=CONSTANTS, **more)


def test_a_worker_has_one_core_of_a_data_sheets_peak():
    found = rates("cpu")
    assert found.is_cpu
    assert found.matmul.at(65e9) == pytest.approx(1.0)  # 400e9 / 4 cores x 0.65
    assert found.elementwise.at(CONSTANTS.core_bandwidth) == pytest.approx(1.0)
    assert len(found.assumed) == 2


def test_a_worker_has_all_of_a_gpu():
    found = rates("gpu")
    assert not found.is_cpu
    assert found.matmul.at(6.5e12) == pytest.approx(1.0)
    assert found.elementwise.at(0.7e12) == pytest.approx(1.0)


def test_what_was_measured_comes_first():
    at = {"device": "gpu", "dtype": "float32"}
    found = rates(
        "gpu",
        Rate("matmul", "a", Spread.of([1e9]), size=10, **at),
        Rate("matmul", "a", Spread.of([4e9]), size=100, **at),
        Rate("elementwise", "a", Spread.of([2e9]), size=1000, **at),
    )
    assert found.matmul.at(2 * 10**3) == pytest.approx(2e-6)
    assert found.matmul.at(2 * 100**3) == pytest.approx(0.5e-3)
    assert found.matmul.at(2 * 1000**3) == pytest.approx(0.5)  # as the largest size
    assert found.elementwise.at(1e6) == pytest.approx(0.5e-3)
    assert found.assumed == ()


def test_a_rate_of_another_dtype_is_not_this_ones():
    rate = Rate("matmul", "a", Spread.of([1.0]), device="gpu", dtype="float16", size=10)
    assert rates("gpu", rate).matmul == rates("gpu").matmul
    assert rates("gpu", rate, dtype="float16").matmul.at(2000) == pytest.approx(2000)


def test_nothing_known_is_a_core_of_any_kind():
    found = rates("cpu", devices=(Device("cpu", memory=1, cores=4),))
    assert found.matmul.at(CONSTANTS.core_flops) == pytest.approx(1.0)


def test_presets_are_known_by_their_sheets():
    host = preset("8xA100-80-NVLink")
    found = compute_rates(Cluster((host,)), host.name, "gpu", constants=CONSTANTS)
    assert found.matmul.at(19.5e12 * 0.65) == pytest.approx(1.0)


@pytest.mark.parametrize(("host", "device"), [("b", "cpu"), ("a", "gpu")])
def test_no_such_host_or_device_is_told(host, device):
    cluster = Cluster((Host("a", (CPU,)),))
    with pytest.raises(ConfigError):
        compute_rates(cluster, host, device, constants=CONSTANTS)
