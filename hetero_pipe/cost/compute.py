"""What ops cost on a device: seconds of their forward, their backward, and of the optimizer."""

from collections.abc import Iterable, Mapping
from functools import partial

from hetero_pipe.cost.rates import ComputeRates
from hetero_pipe.graph import Cost, Op, Tensor
from hetero_pipe.plan import Breakdown

__all__ = ["MATMULS", "TABLE_OPS", "op_cost", "optimizer_cost"]

MATMULS = frozenset({"matmul", "bmm", "mm", "mv", "dot", "einsum", "conv2d", "linear", "addmm"})
"""Kinds of ops that compute at a matmul's rate."""

TABLE_OPS = frozenset({"pull", "push"})
"""Kinds that servers compute, or whoever holds the table."""


def op_cost(op: Op, rates: ComputeRates, values: Mapping[str, float]) -> Breakdown:
    """Returns the seconds of an op, forward and backward: the more of arithmetic and of memory.

    A backward is a kernel for each input that wants a gradient, as is said by its
    FLOPs; a view costs its launch alone.
    """
    kernels = partial(_kernels, op, rates=rates, values=values)
    has_forward, has_backward = (not _is_none(c, values) for c in (op.forward, op.backward))
    if op.kind in rates.ops and not op.is_view:
        return _measured(op, rates, values, num_kernels=has_forward + has_backward)
    parts = []
    if op.is_view or has_forward:
        parts.append(kernels(op.forward, 1))
    if has_backward:
        is_double = op.kind in MATMULS and _flops(op.backward, values) > (
            1.5 * _flops(op.forward, values)
        )
        parts.append(kernels(op.backward, 2 if is_double else 1))
    return Breakdown.sum(parts)


def _measured(
    op: Op, rates: ComputeRates, values: Mapping[str, float], *, num_kernels: int
) -> Breakdown:
    """Returns the seconds of an op whose kind was measured, forward and backward together."""
    launches = num_kernels * rates.launch
    num_bytes = (op.forward.bytes + op.backward.bytes).at(values)
    seconds = max(rates.ops[op.kind].at(num_bytes), launches)
    if rates.is_cpu:
        return Breakdown.of(op.kind, seconds, "worker")
    return Breakdown.of("launch", launches, "worker") + Breakdown.of(op.kind, seconds, "device")


def _kernels(
    op: Op,
    cost: Cost,
    count: int,
    *,
    rates: ComputeRates,
    values: Mapping[str, float],
) -> Breakdown:
    resource = "worker" if rates.is_cpu else "device"
    launch = Breakdown.of("launch", count * rates.launch, "worker")
    if op.is_view:
        return launch
    moved = rates.elementwise.at(cost.bytes.at(values) / count)
    is_matmul = op.kind in MATMULS
    computes = rates.linear or rates.matmul
    seconds = max(moved, computes.at(_flops(cost, values) / count)) if is_matmul else moved
    if not rates.is_cpu:
        seconds = max(seconds, rates.kernel)
    label = "matmul" if is_matmul else "other ops"
    return launch + Breakdown.of(label, count * seconds, resource)


def optimizer_cost(parameters: Iterable[Tensor], rates: ComputeRates, *, state: int) -> Breakdown:
    """Returns the seconds of the optimizer's step over dense parameters, a kernel each.

    It reads weight, gradient and state and writes weight and state.
    """
    resource = "worker" if rates.is_cpu else "device"
    found = []
    for parameter in parameters:
        size = float(parameter.bytes.at({}))
        seconds = rates.elementwise.at(size * (3 + 2 * state))
        if not rates.is_cpu:
            seconds = max(seconds, rates.kernel)
        found.append(Breakdown.of("optimizer", seconds, resource))
        found.append(Breakdown.of("launch", rates.launch, "worker"))
    return Breakdown.sum(found)


def _flops(cost: Cost, values: Mapping[str, float]) -> float:
    return float(cost.flops.at(values))


def _is_none(cost: Cost, values: Mapping[str, float]) -> bool:
    return not cost.flops.at(values) and not cost.bytes.at(values)
