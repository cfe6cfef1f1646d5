"""The costs of single ops, against arithmetic written out."""

import pytest

from hetero_pipe.graph import BATCH, RULES, ZERO, Call, Size, Tensor, build_graph
from hetero_pipe.graph.rule import cost_of

AT = {"batch": 7}


def shape(*sizes):
    return tuple(Size.of(size) for size in sizes)


def activation(name, *sizes, dtype="float32", needs_gradient=True):
    return Tensor(name, shape(*sizes), dtype, needs_gradient=needs_gradient)


def parameter(name, *sizes, needs_gradient=True):
    return Tensor(name, shape(*sizes), is_parameter=True, needs_gradient=needs_gradient)


def costs(kind, inputs, outputs, **attributes):
    return cost_of(Call(kind, tuple(inputs), tuple(outputs), attributes, layer="l"))


def numbers(cost):
    return tuple(size.at(AT) for size in (cost.flops, cost.bytes_read, cost.bytes_written))


X, W, Y = activation("x", BATCH, 5), parameter("w", 5, 3), activation("y", BATCH, 3)


def test_a_matmul_is_two_operations_a_product_and_its_backward_twice_that():
    found = costs("matmul", [X, W], [Y])
    assert numbers(found.forward) == (2 * 7 * 5 * 3, 4 * (7 * 5 + 5 * 3), 4 * 7 * 3)
    assert numbers(found.backward) == (
        2 * (2 * 7 * 5 * 3),
        4 * (2 * 7 * 3 + 7 * 5 + 5 * 3),  # y's gradient for each product
        4 * (7 * 5 + 5 * 3),
    )
    assert found.saved == ("x", "w")


def test_a_matmul_of_data_has_no_gradient_of_the_data():
    data = activation("x", BATCH, 5, needs_gradient=False)
    found = costs("matmul", [data, W], [Y])
    assert found.backward.flops == BATCH * (2 * 5 * 3)
    assert found.backward.bytes_written == Size.of(4 * 5 * 3)


def test_a_matmul_of_which_nothing_learns_has_no_backward():
    data = activation("x", BATCH, 5, needs_gradient=False)
    fixed = parameter("w", 5, 3, needs_gradient=False)
    made = activation("y", BATCH, 3, needs_gradient=False)
    found = costs("matmul", [data, fixed], [made])
    assert found.backward.flops == found.backward.bytes == ZERO
    assert found.saved == ()


@pytest.mark.parametrize(
    ("x", "y", "attributes"),
    [
        ((BATCH, 4, 5), (5, 3), {}),
        ((BATCH, 5, 4), (5, 3), {"transpose_x": True}),
        ((BATCH, 4, 5), (3, 5), {"transpose_y": True}),
        ((BATCH, 4, 5), (BATCH, 5, 3), {}),
    ],
)
def test_a_matmul_of_batches_and_transposed(x, y, attributes):
    found = costs(
        "matmul",
        [activation("x", *x), activation("y", *y)],
        [activation("z", BATCH, 4, 3)],
        **attributes,
    )
    assert found.forward.flops == BATCH * (2 * 4 * 5 * 3)


def test_a_bias_is_added_and_its_gradient_summed():
    found = costs("add", [Y, parameter("b", 3)], [activation("z", BATCH, 3)])
    assert numbers(found.forward) == (7 * 3, 4 * (7 * 3 + 3), 4 * 7 * 3)
    assert numbers(found.backward) == (7 * 3, 4 * 7 * 3, 4 * (7 * 3 + 3))
    assert found.saved == ()


def test_a_product_of_elements_keeps_both():
    other = activation("other", BATCH, 3)
    found = costs("multiply", [Y, other], [activation("z", BATCH, 3)])
    assert found.backward.flops == BATCH * (2 * 3)
    assert found.saved == ("y", "other")


def test_a_relu_keeps_what_it_made():
    assert costs("relu", [Y], [activation("z", BATCH, 3)]).saved == ("z",)


def test_a_view_costs_nothing():
    found = costs("reshape", [activation("x", BATCH, 2, 3)], [activation("y", BATCH, 6)])
    assert found.is_view
    assert found.forward.bytes == found.backward.bytes == ZERO


def test_a_transpose_moves_bytes_alone():
    found = costs("transpose", [activation("x", BATCH, 3)], [activation("y", 3, BATCH)])
    assert numbers(found.forward) == (0, 4 * 7 * 3, 4 * 7 * 3)
    assert numbers(found.backward) == (0, 4 * 7 * 3, 4 * 7 * 3)


def test_an_embedding_reads_the_rows_it_takes_and_writes_a_whole_gradient():
    index = activation("i", BATCH, 2, dtype="int64", needs_gradient=False)
    weight, made = parameter("w", 1000, 4), activation("y", BATCH, 2, 4)
    dense = costs("embedding", [index, weight], [made])
    assert numbers(dense.forward) == (0, 8 * 7 * 2 + 4 * 7 * 2 * 4, 4 * 7 * 2 * 4)
    assert numbers(dense.backward) == (
        7 * 2 * 4,
        4 * 7 * 2 * 4 + 8 * 7 * 2,
        4 * 1000 * 4,
    )
    sparse = costs("embedding", [index, weight], [made], sparse=True)
    assert sparse.backward.bytes_written.at(AT) == 4 * 7 * 2 * 4


@pytest.mark.parametrize(
    ("equation", "shapes", "result", "flops"),
    [
        ("bi,ij->bj", [(BATCH, 5), (5, 3)], (BATCH, 3), 2 * 7 * 5 * 3),
        ("bi,bj->bij", [(BATCH, 5), (BATCH, 3)], (BATCH, 5, 3), 7 * 5 * 3),
        ("bij->b", [(BATCH, 5, 3)], (BATCH,), 7 * 5 * 3),
    ],
)
def test_an_einsum_is_what_its_letters_say(equation, shapes, result, flops):
    operands = [activation(f"x{i}", *sizes) for i, sizes in enumerate(shapes)]
    found = costs("einsum", operands, [activation("y", *result)], equation=equation)
    assert found.forward.flops.at(AT) == flops


def test_a_convolution_is_a_matmul_of_its_patches():
    found = costs(
        "conv2d",
        [activation("x", BATCH, 2, 8, 8), parameter("w", 6, 2, 3, 3)],
        [activation("y", BATCH, 6, 6, 6)],
    )
    assert found.forward.flops.at(AT) == 2 * (7 * 6 * 6) * (2 * 3 * 3) * 6


@pytest.mark.parametrize("kind", ["no_such_op", "relu"])
def test_an_op_of_which_nothing_is_known_costs_its_bytes(kind):
    inputs = [X] if kind == "no_such_op" else []  # nor can a rule tell without what it reads
    found = costs(kind, inputs, [activation("y", BATCH, 3)])
    assert not found.is_known
    assert found.forward.flops == ZERO
    assert found.forward.bytes_written == BATCH * 12


def test_an_op_of_which_nothing_is_known_is_named_on_the_graph():
    made = activation("y", BATCH, 3)
    calls = [
        Call("no_such_op", (X,), (made,), {}, layer="l", source="model.py:12"),
        Call("no_such_op", (made,), (activation("z", BATCH, 3),), {}, layer="l"),
    ]
    graph = build_graph("m", calls, inputs=[X], outputs=[calls[1].outputs[0]])
    assert [op.kind for op in graph.unknown_ops] == ["no_such_op"] * 2
    assert graph.warnings == (
        "no rule tells the FLOPs of no_such_op, so 2 of them cost their bytes alone, the first at "
        "model.py:12",
    )
    assert graph.backward().bytes.at(AT) > 0


@pytest.mark.parametrize("kind", RULES)
def test_every_rule_gives_costs_that_are_not_negative(kind):
    x = activation("x", BATCH, 4, 6, 8)
    y = activation("y", BATCH, 4, 6, 8)
    equation = {"equation": "bijk,bijk,k->b"} if kind == "einsum" else {}
    rest = (activation("mask", BATCH, 4), activation("mean", BATCH))
    found = costs(
        kind, [x, y, activation("z", 8)], [activation("out", BATCH, 4, 6, 8), *rest], **equation
    )
    for cost in (found.forward, found.backward):
        assert all(value >= 0 for value in numbers(cost))
    assert found.is_known
    assert found.is_view == (found.forward.bytes == ZERO)
