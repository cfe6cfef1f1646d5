"""The deep part of a model."""

from collections.abc import Sequence

from paddle import nn


def mlp(num_inputs: int, hidden: Sequence[int], num_outputs: int = 1) -> nn.Sequential:
    """Returns layers of ReLU units and a linear one: `[batch, num_inputs]` to `[batch, outputs]`.

    One output, the default, is a logit.
    """
    layers: list[nn.Layer] = []
    for width in hidden:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, num_outputs))
