"""Stacks: what they refuse, and that JSON keeps them."""

import math
import random
from dataclasses import replace

import pytest

from hetero_pipe.errors import ConfigError
from hetero_pipe.planner.layers import DeviceType, Goal, LayerStack, Objective, StackLayer
from tests.planner.layers.stacks import draw_stack, two_layers


def test_json_keeps_a_stack():
    rng = random.Random(8)
    for _ in range(20):
        stack = draw_stack(rng, num_layers=4, num_types=3, most_units=9)
        assert LayerStack.from_json(stack.to_json()) == stack


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"layers": [], "types": []}', '{"layers": [{}]}']
)
def test_json_of_anything_else_is_refused(text):
    with pytest.raises(ConfigError):
        LayerStack.from_json(text)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "wide"}, "kind of sparse, dense, got kind='wide'"),
        ({"compute": (1.0, -1.0)}, "compute of at least 0"),
        ({"compute": (math.nan, 1.0)}, "compute of at least 0"),
        ({"compute": (math.inf, math.inf)}, "a type that it can run on"),
        ({"comm": (0.0, math.inf)}, "comm of at least 0"),
        ({"compute_fraction": 1.1}, "compute_fraction from 0 to 1"),
        ({"comm_fraction": -0.1}, "comm_fraction from 0 to 1"),
        ({"cut_bytes": -1.0}, "cut_bytes of at least 0"),
        ({"shared_bytes": (0.0, -1.0)}, "shared_bytes of at least 0"),
        ({"own_bytes": -1.0}, "own_bytes of at least 0"),
    ],
)
def test_a_layer_refuses_what_cannot_be(change, reason):
    with pytest.raises(ConfigError, match=f"layer 'dense' needs {reason}"):
        replace(two_layers().layers[1], **change)


@pytest.mark.parametrize(
    "change",
    [
        {"price_per_hour": -1.0},
        {"count": 0},
        {"count": 1.5},
        {"bandwidth": 0.0},
        {"memory": 0.0},
        {"step": -1.0},
        {"call": -1.0},
        {"message_byte": math.inf},
    ],
)
def test_a_type_refuses_what_cannot_be(change):
    with pytest.raises(ConfigError, match=f"'gpu' needs {next(iter(change))}"):
        replace(DeviceType("gpu", "gpu", 1.0, 1), **change)


def test_a_stack_refuses_names_that_are_taken_and_times_that_are_missing():
    stack = two_layers()
    with pytest.raises(ConfigError, match="layer once, got 'dense' twice"):
        replace(stack, layers=(stack.layers[1], stack.layers[1]))
    with pytest.raises(ConfigError, match="needs a device type, got none"):
        replace(stack, types=())
    short = StackLayer("short", "dense", (1.0,), (0.0, 0.0))
    with pytest.raises(ConfigError, match="2 device types, got layer 'short' with 1 times"):
        replace(stack, layers=(short,))
    with pytest.raises(ConfigError, match="got layer 'dense' with 1 of shared_bytes"):
        replace(stack, layers=(replace(stack.layers[1], shared_bytes=(1.0,)),))


def test_an_objective_needs_a_throughput_that_can_be():
    for throughput in (-1.0, math.inf, math.nan):
        with pytest.raises(ConfigError, match="throughput of at least 0"):
            Objective(Goal.PRICE_PER_SAMPLE, throughput)
    with pytest.raises(ConfigError, match="unless a throughput is required"):
        Objective(Goal.PRICE_PER_HOUR)
