"""What one worker's share of a device computes and moves: measured, else by its data sheet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetero_pipe.cluster import Cluster, Rate
from hetero_pipe.cost.constants import Constants
from hetero_pipe.cost.curve import Curve

__all__ = ["ComputeRates", "compute_rates"]

LINEAR_WIDTH = 400
"""Inputs and outputs of the layer whose rate is `linear`, as `hetero_pipe.nn` measures it."""


@dataclass(frozen=True)
class ComputeRates:
    """How long kernels take on a device.

    Attributes:
        matmul: Seconds over FLOPs of one matmul.
        elementwise: Seconds over bytes, read and written, of any other op.
        launch: Of one kernel: what the thread takes to start it.
        kernel: Least time of one on a device that is no CPU.
        step: Of one step, whatever the model: of the thread that trains, on a core.
        step_wait: Likewise, on none.
        step_aside: Of a core of other threads meanwhile.
        row_byte: Of a byte of the rows that a step gets, beside what its ops do with them.
        row_aside: Likewise, of a core of other threads meanwhile.
        linear: Seconds over FLOPs of one matmul of a batch with a layer's weights, in the
            mean of forward and both gradients; None is as any other matmul.
        ops: By kind, seconds over bytes of an op's forward and backward together,
            their launches included.
        is_cpu: Whether the thread that starts a kernel computes it.
        assumed: What was not measured, for people.
    """

    matmul: Curve
    elementwise: Curve
    launch: float
    kernel: float
    step: float
    ops: Mapping[str, Curve]
    is_cpu: bool
    assumed: tuple[str, ...] = ()
    step_wait: float = 0.0
    step_aside: float = 0.0
    row_byte: float = 0.0
    row_aside: float = 0.0
    linear: Curve | None = None


def compute_rates(
    cluster: Cluster, host: str, device: str, *, dtype: str = "float32", constants: Constants
) -> ComputeRates:
    """Returns the rates of one worker on a device of a host: of one core on a CPU.

    A measured rate is taken first, then the peak of the data sheet times an
    efficiency, then what is assumed of any core.

    Args:
        cluster: Has the host.
        host: Its name, or that of a machine of it.
        device: The name of one of its devices, without a number.
        dtype: In which a matmul computes.
        constants: Stand in for what is not known.

    Raises:
        ConfigError: There is no such host, or no such device.
    """
    found = cluster.host(host)
    sheet = cluster.device(f"{found.names[0]}/{device if device == 'cpu' else f'{device}:0'}")
    at = {"host": found.name, "device": device, "dtype": dtype}
    is_cpu = sheet.kind == "cpu"
    share = 1 / (sheet.cores or 1) if is_cpu else 1.0
    assumed = []
    matmuls = cluster.rates_of("matmul", **at)
    elementwise = cluster.rates_of("elementwise", **at)
    if matmuls:
        matmul = Curve.of([_matmul_point(rate) for rate in matmuls])
    else:
        peak = sheet.peak(dtype)
        rate = peak * share * constants.matmul_efficiency if peak else constants.core_flops
        assumed.append(f"the rate of a matmul on {found.name}/{device}")
        matmul = Curve.of([(rate * 1e-3, 1e-3)])
    if elementwise:
        moved = Curve.of([_byte_point(rate) for rate in elementwise])
    else:
        width = sheet.memory_bandwidth
        bandwidth = width * constants.memory_efficiency if width else constants.core_bandwidth
        if is_cpu:  # one core does not fill the memory's bandwidth
            bandwidth = min(bandwidth, constants.core_bandwidth)
        assumed.append(f"the rate of other ops on {found.name}/{device}")
        moved = Curve.of([(bandwidth * 1e-3, 1e-3)])
    on_device = {"host": found.name, "device": device}
    launches = cluster.rates_of("launch", **on_device)
    steps = {
        side: cluster.rates_of("dense_step", side=side, **on_device)
        for side in ("worker", "wait", "aside")
    }
    linears = cluster.rates_of("linear", **on_device)
    ops: dict[str, list[tuple[float, float]]] = {}
    for measured in cluster.rates_of("op", **on_device):
        ops.setdefault(measured.kind or "", []).append(_byte_point(measured))
    return ComputeRates(
        matmul,
        moved,
        launch=launches[0].value.median if launches else constants.launch,
        kernel=constants.kernel,
        step=_least(steps["worker"]) if steps["worker"] else constants.step,
        step_wait=_least(steps["wait"]),
        step_aside=_least(steps["aside"]),
        ops={kind: Curve.of(points) for kind, points in ops.items()},
        is_cpu=is_cpu,
        assumed=tuple(assumed),
        row_byte=_slope(steps["worker"]) + _slope(steps["wait"]),
        row_aside=_slope(steps["aside"]),
        linear=Curve.of([_linear_point(rate) for rate in linears]) if linears else None,
    )


def _least(rates: Sequence[Rate]) -> float:
    """Returns the seconds of the smallest size; 0 if nobody measured any."""
    return rates[0].value.median if rates else 0.0


def _slope(rates: Sequence[Rate]) -> float:
    """Returns what a byte takes between the smallest and the largest size."""
    if len(rates) < 2:
        return 0.0
    few, many = rates[0], rates[-1]
    sizes = (many.size or 0) - (few.size or 0)
    return max(many.value.median - few.value.median, 0.0) / sizes


def _linear_point(rate: Rate) -> tuple[float, float]:
    assert rate.size is not None, "the rate of a linear layer has a size"
    flops = 2.0 * rate.size * LINEAR_WIDTH**2
    return flops, flops / rate.value.median


def _matmul_point(rate: Rate) -> tuple[float, float]:
    assert rate.size is not None, "a matmul's rate has a size"
    flops = 2.0 * rate.size**3
    return flops, flops / rate.value.median


def _byte_point(rate: Rate) -> tuple[float, float]:
    assert rate.size is not None, "an elementwise rate has a size"
    return float(rate.size), rate.size / rate.value.median
