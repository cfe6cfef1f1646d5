"""Measures how fast Paddle computes on a device, in one process as a worker has it."""

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import paddle

from hetero_pipe import cluster
from hetero_pipe.cluster import Rate, Sampling, Spread, sample_times
from hetero_pipe.nn.device import Device
from hetero_pipe.units import MiB

__all__ = ["describe_devices", "profile_copies", "profile_device"]


def describe_devices() -> tuple[cluster.Device, ...]:
    """Returns the GPUs that Paddle sees, equal ones together; none without CUDA.

    What it does not tell of them, a preset or a file has.
    """
    if not paddle.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        return ()
    found = paddle.device.cuda.get_device_properties(0)
    return (
        cluster.Device(
            "gpu",
            memory=found.total_memory,
            model=found.name,
            count=paddle.device.cuda.device_count(),
        ),
    )


def profile_device(host: str, device: Device, sampling: Sampling) -> Iterator[Rate]:
    """Yields `matmul` and `elementwise`, and of no CPU `upload`, `upload_core` and `download`.

    A matmul is of two square matrices, `2 * size**3` FLOP. An elementwise op is
    a sum: `size` counts the bytes that it reads and writes. `upload_core` is what an
    upload takes the thread that starts it; the rest is the device's.

    Args:
        host: Name of this one.
        device: A CPU computes with the threads that Paddle has: one, by default.
        sampling: The effort.
    """
    group = device.name.partition(":")[0]
    dtypes = ("float32",) if group != "gpu" else ("float32", "float16", "bfloat16")
    for dtype in dtypes:
        for size in (128, 512) if sampling.is_quick else (64, 128, 256, 512, 1024, 2048):
            x = _full(device, (size, size), dtype)
            times = _times(device, partial(paddle.matmul, x, x), sampling)
            value = Spread.of([2 * size**3 / seconds for seconds in times])
            yield Rate("matmul", host, value, device=group, dtype=dtype, size=size)
        for num_bytes in (MiB,) if sampling.is_quick else (MiB // 4, 4 * MiB, 64 * MiB):
            width = 4 if dtype == "float32" else 2
            x = _full(device, (num_bytes // width // 3,), dtype)
            size = 3 * width * x.shape[0]
            times = _times(device, partial(paddle.add, x, x), sampling)
            value = Spread.of([size / seconds for seconds in times])
            yield Rate("elementwise", host, value, device=group, dtype=dtype, size=size)
    if group != "cpu":
        yield from profile_copies(host, device, sampling)


def profile_copies(host: str, device: Device, sampling: Sampling) -> Iterator[Rate]:
    """Yields `upload`, `upload_core` and `download` of a device that is no CPU.

    Args:
        host: Name of this one.
        device: To and from which.
        sampling: The effort.
    """
    for size in (MiB,) if sampling.is_quick else (MiB // 4, MiB, 4 * MiB, 16 * MiB):
        yield from _profile_copies(host, device, size, sampling)


def _profile_copies(host: str, device: Device, size: int, sampling: Sampling) -> Iterator[Rate]:
    array = np.ones(size // 4, np.float32)
    tensor = _full(device, (size // 4,), "float32")

    on_core: list[float] = []  # of the thread that starts an upload

    def upload() -> None:
        begin = time.thread_time()
        copies = device.upload([array])
        on_core.append(max(time.thread_time() - begin, 1e-9))
        with device.launching():
            copies.join()
        paddle.device.synchronize(device.name)
        copies.give_back()

    def download() -> None:
        with device.launching():
            copies = device.download([tensor])
        copies.wait()

    for what, work in (("upload", upload), ("download", download)):
        value = Spread.of([size / seconds for seconds in sample_times(work, sampling)])
        yield Rate(what, host, value, device=device.name.partition(":")[0], size=size)
    value = Spread.of([size / seconds for seconds in on_core[1:]])  # the first takes memory
    yield Rate("upload_core", host, value, device=device.name.partition(":")[0], size=size)


def _full(device: Device, shape: tuple[int, ...], dtype: str) -> paddle.Tensor:
    with device.launching():
        return paddle.full(shape, 0.5, dtype)


def _times(device: Device, work: Callable[[], object], sampling: Sampling) -> list[float]:
    """Returns the times of an op, of which a device that is not the CPU has ended each sample."""

    def run() -> None:
        with device.launching():
            work()
        if device.name != "cpu":
            paddle.device.synchronize(device.name)

    clock = time.process_time if device.name == "cpu" else time.perf_counter
    with paddle.no_grad():
        return sample_times(run, sampling, clock=clock)
