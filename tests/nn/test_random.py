"""Paddle's random generators: what is drawn after a load is what was drawn after the save."""

import logging

import numpy as np
import paddle
import pytest
from paddle.nn import functional as F  # noqa: N812

from hetero_pipe.nn import load_random_state, random_state
from hetero_pipe.nn.random import Generators


def draw():
    return F.dropout(paddle.ones([50]), 0.5).numpy().tolist() + paddle.rand([9]).numpy().tolist()


@pytest.mark.parametrize("num_drawn", [0, 1, 700])
def test_the_same_is_drawn_after_a_load(num_drawn):
    paddle.seed(4)
    for _ in range(num_drawn):
        paddle.rand([1])
    state = random_state()
    assert list(state) == ["cpu"]
    assert not state["cpu"].dtype.hasobject
    expected = [draw() for _ in range(3)]
    paddle.seed(5)
    load_random_state(state)
    assert [draw() for _ in range(3)] == expected
    assert paddle.framework.core.default_cpu_generator().initial_seed() == 4


def test_saving_draws_nothing_and_equal_states_are_equal():
    paddle.seed(4)
    expected = draw()
    paddle.seed(4)
    states = [str(random_state()["cpu"]) for _ in range(2)]
    assert draw() == expected
    assert states[0] == states[1] != str(random_state()["cpu"])


def test_a_device_that_was_not_saved_keeps_its_generator(caplog):
    paddle.seed(4)
    expected = draw()
    paddle.seed(4)
    with caplog.at_level(logging.WARNING):
        load_random_state({"gpu:0": np.array("[]")})
    assert "saved without device cpu" in caplog.text
    assert draw() == expected


def test_generators_are_set_back():
    paddle.seed(6)
    draw()
    before = Generators()
    expected = draw()
    before.restore()
    assert draw() == expected
