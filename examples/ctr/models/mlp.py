"""The deep part of a model."""

from collections.abc import Sequence

from paddle import nn


def mlp(num_inputs: int, hidden: Sequence[int]) -> nn.Sequential:
    """Returns layers of ReLU units and one logit: `[batch, num_inputs]` to `[batch, 1]`."""
    layers: list[nn.Layer] = []
    for width in hidden:
        layers += [nn.Linear(num_inputs, width), nn.ReLU()]
        num_inputs = width
    return nn.Sequential(*layers, nn.Linear(num_inputs, 1))
