"""Every number of units of every stage, tried: what provisioning must find."""

import math
from itertools import groupby, product

from hetero_pipe.planner.layers import Goal


def stages_of(stack, types):
    """Yields of each stage its layers, the number of its type, and the bytes that cross at ends."""
    first = 0
    for number, run in groupby(types):
        end = first + len(list(run))
        before = stack.layers[first - 1].cut_bytes if first else 0.0
        after = stack.layers[end - 1].cut_bytes if end < len(stack.layers) else 0.0
        yield stack.layers[first:end], number, before + after
        first = end


def time_of(stack, stage, num_units):
    """Returns the seconds a sample of a stage, layer by layer, as docs/planner.md has it."""
    layers, number, crossing = stage
    compute = comm = 0.0
    for layer in layers:
        a, b = layer.compute_fraction, layer.comm_fraction
        if math.isinf(layer.compute[number]):
            return math.inf
        compute += layer.compute[number] * (1 - a + a / num_units)
        comm += layer.comm[number] * (1 - b + b / num_units)
    comm += crossing / stack.types[number].bandwidth / num_units
    return max(compute, comm) if stack.is_overlapped else compute + comm


def least_loss(stack, types, objective):
    """Returns the least loss over all numbers of units within the limits; infinite if none fits."""
    stages = list(stages_of(stack, types))
    counts = [range(1, stack.types[number].count + 1) for _, number, _ in stages]
    best = math.inf
    for units in product(*counts):
        used = [0] * len(stack.types)
        for (_, number, _), num_units in zip(stages, units, strict=True):
            used[number] += num_units
        if any(num > each.count for num, each in zip(used, stack.types, strict=True)):
            continue
        time = max(time_of(stack, s, k) for s, k in zip(stages, units, strict=True))
        is_late = objective.throughput and time > (1 + 1e-9) / objective.throughput
        if math.isinf(time) or (is_late and objective.goal is not Goal.TIME_PER_SAMPLE):
            continue
        price = sum(each.price_per_hour * num for each, num in zip(stack.types, used, strict=True))
        losses = {
            Goal.PRICE_PER_HOUR: price,
            Goal.PRICE_PER_SAMPLE: price * time / 3600,
            Goal.TIME_PER_SAMPLE: time,
        }
        best = min(best, losses[objective.goal])
    return best
