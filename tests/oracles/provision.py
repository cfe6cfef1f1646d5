"""Every number of units of every stage, tried: what provisioning must find."""

import math
from itertools import groupby, product

from hetero_pipe.planner.layers import Goal


def stages_of(stack, types):
    """Yields of each stage its layers, the number of its type, and the bytes of each cut."""
    first = 0
    for number, run in groupby(types):
        end = first + len(list(run))
        cuts = [stack.layers[i - 1].cut_bytes for i in (first, end) if 0 < i < len(stack.layers)]
        yield stack.layers[first:end], number, cuts
        first = end


def time_of(stack, stage, num_units):
    """Returns the seconds a sample of a stage, layer by layer, as docs/planner.md has it."""
    layers, number, cuts = stage
    type_ = stack.types[number]
    compute = (type_.step + sum(type_.call + c * type_.message_byte for c in cuts)) / num_units
    comm = sum(cuts) / type_.bandwidth / num_units
    for layer in layers:
        a, b = layer.compute_fraction, layer.comm_fraction
        if math.isinf(layer.compute[number]):
            return math.inf
        compute += layer.compute[number] * (1 - a + a / num_units)
        comm += layer.comm[number] * (1 - b + b / num_units)
    return max(compute, comm) if stack.is_overlapped else compute + comm


def fits(stack, stage, num_units):
    """Returns whether each unit has memory for what it holds, and for its share."""
    layers, number, _ = stage
    own = sum(layer.own_bytes for layer in layers)
    shared = sum(layer.shared_bytes[number] for layer in layers if layer.shared_bytes)
    return own + shared / num_units <= stack.types[number].memory


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
        if not all(fits(stack, s, k) for s, k in zip(stages, units, strict=True)):
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
