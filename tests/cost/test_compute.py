"""Costs of ops against arithmetic by hand."""

from dataclasses import replace

import pytest

from hetero_pipe.cost import ComputeRates, Curve, op_cost, optimizer_cost
from hetero_pipe.graph import BATCH, Call, build_graph
from tests.cost.problems import activation, model, parameter

# 1 FLOP or 1 byte a second.
CPU = ComputeRates(
    Curve.of([(1, 1.0)]),
    Curve.of([(1, 1.0)]),
    launch=1.0,
    kernel=5.0,
    step=0.0,
    ops={"sigmoid": Curve.of([(100, 7.0), (1000, 70.0)])},
    is_cpu=True,
)
GPU = replace(CPU, matmul=Curve.of([(1, 1e-9)]), elementwise=Curve.of([(1, 1e-9)]), is_cpu=False)


def costs(kind, rates, *sizes, inputs=None, batch=2, **attributes):
    given = inputs or (activation("x", BATCH, 3),)
    call = Call(kind, given, (activation("y", *sizes),), attributes, "m", "m", "m.py:1")
    graph = build_graph(
        "m",
        [call],
        inputs=[t for t in given if not t.is_parameter],
        outputs=[call.outputs[0]],
        parameters=[t for t in given if t.is_parameter],
    )
    cost = op_cost(graph.ops[0], rates, graph.values(batch))
    return {(part.label, part.resource): part.amount for part in cost.parts}


def test_an_elementwise_op_takes_its_bytes():
    # Forward reads and writes 2 x 3 floats; backward reads y and its gradient, writes x's.
    assert costs("relu", CPU, BATCH, 3) == {
        ("launch", "worker"): 2.0,
        ("other ops", "worker"): (2 + 3) * 24.0,
    }


def test_a_matmul_takes_the_more_of_its_flops_and_bytes_three_times():
    inputs = (activation("x", BATCH, 30), parameter("w", 30, 40))
    found = costs("matmul", CPU, BATCH, 40, inputs=inputs, batch=20)
    # 2 x 20 x 30 x 40 = 48000 FLOPs forward, and for each of two gradients; bytes are fewer.
    assert found == {("launch", "worker"): 3.0, ("matmul", "worker"): 3 * 48000.0}
    # Of one sample it is the bytes: x, w and y; then both gradients of what was read.
    few = costs("matmul", CPU, BATCH, 40, inputs=inputs, batch=1)
    assert few["matmul", "worker"] > 3 * 2 * 30 * 40


def test_a_matmul_of_data_has_one_gradient():
    inputs = (activation("x", BATCH, 30, needs_gradient=False), parameter("w", 30, 40))
    found = costs("matmul", CPU, BATCH, 40, inputs=inputs, batch=20)
    assert found == {("launch", "worker"): 2.0, ("matmul", "worker"): 2 * 48000.0}


def test_a_view_is_its_launch():
    found = costs("reshape", CPU, BATCH, 3)
    assert set(found) == {("launch", "worker")}


def test_a_kernel_of_a_device_is_never_shorter_than_one():
    assert costs("relu", GPU, BATCH, 3) == {
        ("launch", "worker"): 2.0,
        ("other ops", "device"): 2 * 5.0,
    }


def test_an_op_that_was_measured_takes_what_it_took_launches_among_it():
    # 2 x 3 floats read and written forward; three times as many backward: 120 bytes.
    cpu = costs("sigmoid", CPU, BATCH, 3)
    assert cpu == {("sigmoid", "worker"): pytest.approx(7.0 * 120 / 100)}
    # On a device the thread starts two kernels, which take no less than that.
    gpu = costs("sigmoid", GPU, BATCH, 3, batch=1)
    assert gpu == {("launch", "worker"): 2.0, ("sigmoid", "device"): pytest.approx(7.0 * 0.6)}


def test_an_op_without_a_forward_is_launched_once():
    graph = model()
    push = next(op for op in graph.ops if op.kind == "push")
    cost = op_cost(push, CPU, graph.values(10))
    assert [part.amount for part in cost.parts if part.label == "launch"] == [1.0]


def test_an_optimizer_reads_weight_gradient_and_state_and_writes_weight_and_state():
    cost = optimizer_cost([parameter("w", 10), parameter("b", 5)], CPU, state=2)
    found = {part.label: part.amount for part in cost.parts}
    assert found == {"optimizer": 60 * (3 + 4.0), "launch": 2.0}


@pytest.mark.parametrize("state", [0, 1, 2])
def test_more_state_takes_longer(state):
    def seconds(state):
        return optimizer_cost([parameter("w", 10)], CPU, state=state).total

    assert seconds(state + 1) > seconds(state)
