"""Presets: machines that many have, as data sheets and price lists have them.

What is not published is not here. No price was found for `8xA100-80-NVLink`,
`8xV100-32-NVLink`, `4xT4-PCIe`, `4xL4-PCIe`, `2xXeon-8480` and `2xEPYC-9654`; none of
the CPUs in GPU hosts has a peak; PCIe switches that GPUs share, disks' speeds and
NICs are left out, for a link between hosts is of the cluster. Give what you know
in your file, and let `hetero-pipe profile` measure the rest.

Where figures are from, and how they are read:

- GPUs: NVIDIA's data sheets; CPUs: Intel's and AMD's product pages. What cores, memory
  and disks a cloud's machine has: aws.amazon.com/ec2/instance-types.
  Those pages were not at hand for p4de, p3dn, g4dn and g6, nor NVIDIA's data sheets: check a
  figure there before much depends on it.
- A data sheet's GB of memory is 10**9 bytes: never more than there is.
- Peaks are dense: where a data sheet has them "with sparsity", half of that.
- A link's bandwidth is each way: half of a data sheet's sum of both ways.
- Latencies are those with which Paddle's own estimator counts a ring's step
  (PaddlePaddle/Paddle, auto_parallel/static/cost/base_cost.py): 3.4 us over
  NVLink, 5.7 us over PCIe.
- A CPU's float32 peak is cores x base clock x FLOP per cycle: 64 with two AVX-512
  units (Intel Xeon Scalable), 32 with two of 256 bits (AMD Zen 4).
- A cloud's vCPU is half a core.

Prices are US dollars per hour of one machine, and change; yours goes in your file:

- "Capacity Blocks": aws.amazon.com/ec2/capacityblocks/pricing, as it stood until
  1 January 2025.
- "On-demand": the example in AWS's documentation of EC2 Auto Scaling, "Spot price
  per unit hour", US East (N. Virginia).
"""

from dataclasses import replace

from hetero_pipe.cluster.device import Device
from hetero_pipe.cluster.host import Disk, Host
from hetero_pipe.cluster.link import Link
from hetero_pipe.errors import ConfigError
from hetero_pipe.section import nearest
from hetero_pipe.units import GiB

__all__ = ["DEVICE_PRESETS", "HOST_PRESETS", "device_preset", "preset"]

GB = 10**9
TFLOPS = 1e12

_HOPPER = (
    ("float64", 34 * TFLOPS),
    ("float32", 67 * TFLOPS),
    ("tfloat32", 494.5 * TFLOPS),
    ("bfloat16", 989.5 * TFLOPS),
    ("float16", 989.5 * TFLOPS),
    ("int8", 1979 * TFLOPS),
)
_AMPERE = (
    ("float64", 9.7 * TFLOPS),
    ("float32", 19.5 * TFLOPS),
    ("tfloat32", 156 * TFLOPS),
    ("bfloat16", 312 * TFLOPS),
    ("float16", 312 * TFLOPS),
    ("int8", 624 * TFLOPS),
)

DEVICE_PRESETS = {
    # NVIDIA A100 Tensor Core GPU data sheet: SXM4, 40 GB HBM2 and 80 GB HBM2e.
    "A100-40": Device(
        "gpu",
        memory=40 * GB,
        model="NVIDIA A100-SXM4-40GB",
        flops=_AMPERE,
        memory_bandwidth=1555e9,
    ),
    "A100-80": Device(
        "gpu",
        memory=80 * GB,
        model="NVIDIA A100-SXM4-80GB",
        flops=_AMPERE,
        memory_bandwidth=2039e9,
    ),
    # NVIDIA H100 Tensor Core GPU data sheet: SXM5.
    "H100": Device(
        "gpu",
        memory=80 * GB,
        model="NVIDIA H100 SXM5",
        flops=_HOPPER,
        memory_bandwidth=3350e9,
    ),
    # NVIDIA H200 Tensor Core GPU data sheet: SXM5; it computes as an H100.
    "H200": Device(
        "gpu",
        memory=141 * GB,
        model="NVIDIA H200 SXM5",
        flops=_HOPPER,
        memory_bandwidth=4800e9,
    ),
    # NVIDIA V100 data sheet: SXM2; "125 TFLOPS deep learning" is float16 on tensor cores.
    "V100-32": Device(
        "gpu",
        memory=32 * GB,
        model="NVIDIA V100-SXM2-32GB",
        flops=(("float64", 7.8 * TFLOPS), ("float32", 15.7 * TFLOPS), ("float16", 125 * TFLOPS)),
        memory_bandwidth=900e9,
    ),
    # NVIDIA T4 data sheet.
    "T4": Device(
        "gpu",
        memory=16 * GB,
        model="NVIDIA T4",
        flops=(("float32", 8.1 * TFLOPS), ("float16", 65 * TFLOPS), ("int8", 130 * TFLOPS)),
        memory_bandwidth=320e9,
    ),
    # NVIDIA L4 data sheet.
    "L4": Device(
        "gpu",
        memory=24 * GB,
        model="NVIDIA L4",
        flops=(
            ("float32", 30.3 * TFLOPS),
            ("tfloat32", 60 * TFLOPS),
            ("bfloat16", 121 * TFLOPS),
            ("float16", 121 * TFLOPS),
            ("int8", 242.5 * TFLOPS),
        ),
        memory_bandwidth=300e9,
    ),
    # Intel Xeon Platinum 8480+ : 56 cores at 2.0 GHz, 8 channels of DDR5-4800 (307.2 GB/s).
    # Memory is a choice, not a data sheet's: 32 GiB in each of 16 channels.
    "2xXeon-8480": Device(
        "cpu",
        memory=512 * GiB,
        model="2 x Intel Xeon Platinum 8480+",
        cores=112,
        flops=(("float32", 112 * 2.0e9 * 64),),
        memory_bandwidth=2 * 307.2e9,
    ),
    # AMD EPYC 9654: 96 cores at 2.4 GHz, 12 channels of DDR5-4800 (460.8 GB/s).
    # Memory is a choice: 32 GiB in each of 24 channels.
    "2xEPYC-9654": Device(
        "cpu",
        memory=768 * GiB,
        model="2 x AMD EPYC 9654",
        cores=192,
        flops=(("float32", 192 * 2.4e9 * 32),),
        memory_bandwidth=2 * 460.8e9,
    ),
}
"""By name. A GPU is one; a host has several by `count`."""

_NVLINK3, _NVLINK4, _NVLINK2 = 300e9, 450e9, 150e9  # the data sheets' 600, 900 and 300 GB/s
_PCIE3, _PCIE4, _PCIE5 = 16e9, 32e9, 64e9  # x16; the data sheets' 32, 64 and 128 GB/s


def _gpu_host(
    name: str,
    gpu: str,
    count: int,
    *,
    pcie: float,
    nvlink: float | None,
    cores: int,
    memory: int,
    disk: float,
    price: float | None = None,
) -> Host:
    """Returns a machine in which each GPU has PCIe to the CPU and NVLink to all others."""
    links = [Link(("gpu", "cpu"), "PCIe", pcie, 5.7e-6)]
    if nvlink is not None:
        links.append(Link(("gpu", "gpu"), "NVLink", nvlink, 3.4e-6))
    return Host(
        name,
        devices=(
            Device("cpu", memory=memory, cores=cores),
            replace(DEVICE_PRESETS[gpu], count=count),
        ),
        links=tuple(links),
        price_per_hour=price,
        disk=Disk(round(disk)),
    )


HOST_PRESETS = {
    host.name: host
    for host in (
        # AWS p4d.24xlarge. Capacity Blocks: 14.75.
        _gpu_host(
            "8xA100-40-NVLink",
            "A100-40",
            8,
            pcie=_PCIE4,
            nvlink=_NVLINK3,
            cores=48,
            memory=1152 * GiB,
            disk=8 * 1000 * GB,
            price=14.75,
        ),
        # AWS p4de.24xlarge: as p4d.24xlarge, with GPUs of 80 GB.
        _gpu_host(
            "8xA100-80-NVLink",
            "A100-80",
            8,
            pcie=_PCIE4,
            nvlink=_NVLINK3,
            cores=48,
            memory=1152 * GiB,
            disk=8 * 1000 * GB,
        ),
        # AWS p5.48xlarge. Capacity Blocks: 39.33.
        _gpu_host(
            "8xH100-NVLink",
            "H100",
            8,
            pcie=_PCIE5,
            nvlink=_NVLINK4,
            cores=96,
            memory=2048 * GiB,
            disk=8 * 3840 * GB,
            price=39.33,
        ),
        # AWS p5e.48xlarge. Capacity Blocks: 43.26.
        _gpu_host(
            "8xH200-NVLink",
            "H200",
            8,
            pcie=_PCIE5,
            nvlink=_NVLINK4,
            cores=96,
            memory=2048 * GiB,
            disk=8 * 3840 * GB,
            price=43.26,
        ),
        # AWS p3dn.24xlarge. Its V100s have six NVLinks each in a mesh of cubes, and not every pair
        # has one; a port of the sum of all six is the best that a ring gets.
        _gpu_host(
            "8xV100-32-NVLink",
            "V100-32",
            8,
            pcie=_PCIE3,
            nvlink=_NVLINK2,
            cores=48,
            memory=768 * GiB,
            disk=2 * 900 * GB,
        ),
        # AWS g4dn.12xlarge.
        _gpu_host(
            "4xT4-PCIe",
            "T4",
            4,
            pcie=_PCIE3,
            nvlink=None,
            cores=24,
            memory=192 * GiB,
            disk=900 * GB,
        ),
        # AWS g6.12xlarge.
        _gpu_host(
            "4xL4-PCIe",
            "L4",
            4,
            pcie=_PCIE4,
            nvlink=None,
            cores=24,
            memory=192 * GiB,
            disk=4 * 940 * GB,
        ),
        # AWS c5.24xlarge. On-demand: 4.08. Second-generation Xeon Scalable: six channels of
        # DDR4-2933 a socket (140.8 GB/s).
        Host(
            "2xXeon-8275CL",
            devices=(
                Device(
                    "cpu",
                    memory=192 * GiB,
                    model="2 x Intel Xeon Platinum 8275CL",
                    cores=48,
                    memory_bandwidth=2 * 140.8e9,
                ),
            ),
            price_per_hour=4.08,
        ),
        Host("2xXeon-8480", devices=(DEVICE_PRESETS["2xXeon-8480"],)),
        Host("2xEPYC-9654", devices=(DEVICE_PRESETS["2xEPYC-9654"],)),
    )
}
"""By name; `dataclasses.replace` gives one another name, count or price."""


def preset(name: str) -> Host:
    """Returns a machine by its name in `HOST_PRESETS`.

    Raises:
        ConfigError: There is none of that name; all are listed.

    >>> preset("8xA100-80-NVLink").devices[1].names[-1]
    'gpu:7'
    """
    if name not in HOST_PRESETS:
        raise ConfigError(
            f"a preset of a host is one of {', '.join(HOST_PRESETS)}, got {name!r}"
            f"{nearest(name, HOST_PRESETS)}"
        )
    return HOST_PRESETS[name]


def device_preset(name: str) -> Device:
    """Returns a device by its name in `DEVICE_PRESETS`.

    Raises:
        ConfigError: There is none of that name; all are listed.
    """
    if name not in DEVICE_PRESETS:
        raise ConfigError(
            f"a preset of a device is one of {', '.join(DEVICE_PRESETS)}, got {name!r}"
            f"{nearest(name, DEVICE_PRESETS)}"
        )
    return DEVICE_PRESETS[name]
