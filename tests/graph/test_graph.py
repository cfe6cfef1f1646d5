"""Graph: order, layers, cuts, totals and JSON, on a model written down by hand."""

from dataclasses import replace

import pytest

from hetero_pipe.errors import ConfigError
from hetero_pipe.graph import BATCH, Call, Graph, Layer, Size, Table, Tensor, build_graph


def activation(name, *sizes, dtype="float32", needs_gradient=True):
    return Tensor(name, tuple(map(Size.of, sizes)), dtype, needs_gradient=needs_gradient)


def parameter(name, *sizes):
    return Tensor(name, tuple(map(Size.of, sizes)), is_parameter=True, needs_gradient=True)


TABLE = Table("items", 4, {"user": 1.0, "history": 5.0}, state_per_weight=1, single=("user",))
USER = activation("keys.user", TABLE.keys("user"), dtype="uint64", needs_gradient=False)
HISTORY = activation("keys.history", TABLE.keys("history"), dtype="uint64", needs_gradient=False)
ROWS = activation("items.rows", TABLE.rows, 4)
POOLED = activation("items", BATCH, 2, 4)
FLAT = activation("flat", BATCH, 8)
HIDDEN = activation("hidden", BATCH, 3)
RELU = activation("relu", BATCH, 3)
SUM = activation("sum", BATCH, 3)
WEIGHT = parameter("weight", 8, 3)
CALLS = [
    Call("pull", (USER, HISTORY), (ROWS,), {}, "items", "items", "m.py:1", "items"),
    Call(
        "pool", (ROWS, USER, HISTORY), (POOLED,), {"slots": "user,history"}, "items", "items",
        "m.py:1", "items",
    ),
    Call("flatten", (POOLED,), (FLAT,), {}, "model", "", "m.py:2"),
    Call("matmul", (FLAT, WEIGHT), (HIDDEN,), {"transpose_x": False}, "deep", "deep", "m.py:3"),
    Call("relu", (HIDDEN,), (RELU,), {}, "deep", "deep", "m.py:3"),
    Call("add", (RELU, RELU), (SUM,), {}, "model", "", "m.py:4"),
]  # fmt: skip


@pytest.fixture
def graph():
    return build_graph(
        "Model",
        CALLS,
        inputs=[USER, HISTORY],
        outputs=[SUM],
        tables=[TABLE],
        parameters=[WEIGHT, parameter("unused", 10)],
    )


def test_it_says_how_large_it_is(graph):
    assert repr(graph) == f"Graph('Model', {len(graph.ops)} ops in {len(graph.layers)} layers)"


def test_calls_of_one_part_that_follow_each_other_are_a_layer(graph):
    assert {layer.name: layer.ops for layer in graph.layers} == {
        "items": ("items.pull", "items.pool", "items.push"),
        "model": ("flatten",),
        "deep": ("deep.matmul", "deep.relu"),
        "model:2": ("add",),
    }


def test_pull_and_push_are_ops_with_the_bytes_of_their_rows(graph):
    pull, pool = graph.ops[:2]
    push = graph.ops[-1]
    at = graph.values(10)
    assert at == {"batch": 10, "keys.history": 50, "rows.items": 60}
    row = 4 * 4
    assert pull.forward.bytes_read.at(at) == 60 * 8 + 60 * row  # keys, and rows
    assert pull.forward.bytes_written.at(at) == 60 * row
    assert pool.forward.flops.at(at) == 50 * 4  # a single slot is copied
    assert pool.forward.bytes.at(at) == 60 * (8 + row) + 10 * 2 * row
    assert pool.backward.flops.at(at) == 60 * 4
    assert push.backward.flops.at(at) == 60 * 4 * 7  # Adagrad
    assert push.backward.bytes_read.at(at) == 60 * (8 + row + 2 * row)
    assert push.backward.bytes_written.at(at) == 60 * 2 * row
    assert push.inputs == ("items.rows",)


def test_totals_are_sums_of_layers(graph):
    layers = [layer.name for layer in graph.layers]
    assert graph.flops(10) == sum(graph.flops(10, layer) for layer in layers)
    assert graph.forward().flops.at(graph.values(10)) == (
        50 * 4  # pooling
        + 10 * 2 * 8 * 3  # matmul
        + 10 * 3  # relu
        + 10 * 3  # add
    )
    # Of a tensor that is added to itself, the two gradients are added up.
    assert graph.backward("model:2").flops == BATCH * 3


def test_parameters_are_counted_once_and_those_nobody_reads_too(graph):
    assert graph.parameter_bytes() == 4 * (8 * 3 + 10)
    assert graph.parameter_bytes("deep") == 4 * 8 * 3
    assert graph.parameter_bytes("model") == 0


def test_activations_are_what_the_backward_reads_and_a_view_is_what_it_views(graph):
    # The matmul keeps `flat`, which is the memory of `items`; the relu what it made.
    assert graph.activation_bytes(10) == 4 * (10 * 8 + 10 * 3)
    assert graph.activation_bytes(10, "deep") == 4 * (10 * 8 + 10 * 3)
    assert graph.activation_bytes(10, "model:2") == 0


@pytest.mark.parametrize(
    ("layer", "crossing"),
    [
        ("items", ["items"]),
        ("model", ["items"]),  # flat is a view of it
        ("deep", ["relu"]),
        ("model:2", []),
    ],
)
def test_a_cut_is_what_was_made_before_and_is_read_later(graph, layer, crossing):
    assert [tensor.name for tensor in graph.cut(layer)] == crossing


def test_an_input_that_is_read_later_crosses(graph):
    label = activation("label", BATCH, 3, needs_gradient=False)
    calls = [*CALLS, Call("add", (SUM, label), (activation("loss", BATCH, 3),), {}, "loss")]
    longer = build_graph(
        "m", calls, inputs=[USER, HISTORY, label], outputs=[calls[-1].outputs[0]], tables=[TABLE]
    )
    assert [tensor.name for tensor in longer.cut("deep")] == ["relu", "label"]


def test_other_data_change_what_the_symbols_are(graph):
    other = graph.with_data(keys={"history": 2.5}, distinct={"items": 0.5})
    assert other.values(10) == {"batch": 10, "keys.history": 25, "rows.items": 17.5}
    with pytest.raises(ConfigError, match="got stray"):
        graph.with_data(keys={"stray": 1.0})
    with pytest.raises(ConfigError, match="a single one exactly 1"):
        graph.with_data(keys={"user": 2.0})
    with pytest.raises(ConfigError, match="distinct is above 0 and at most 1"):
        graph.with_data(distinct={"items": 2.0})


def test_json_is_read_back(graph):
    assert Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"deep.matmul"', '"deep.relu"'),
        ('"batch"', '"batch +"'),
        ('"kind": "relu"', '"knid": "relu"'),
        ('"name": "Model"', '"name": 3'),
        ("[", "{"),
        ('"dtype": "uint64"', '"dtype": "uint65"'),
        ('"layer": "deep"', '"layer": "model"'),
    ],
)
def test_json_of_no_graph_is_refused(graph, old, new):
    text = graph.to_json()
    assert old in text
    with pytest.raises(ConfigError):
        Graph.from_json(text.replace(old, new, 1))


def test_an_op_reads_what_was_made_before_it(graph):
    with pytest.raises(ConfigError, match=r"got deep\.matmul that reads flat"):
        replace(graph, ops=tuple(op for op in graph.ops if op.kind != "flatten"))


def test_each_op_is_in_one_layer(graph):
    with pytest.raises(ConfigError, match="each op is in the one layer that it names"):
        replace(graph, layers=(*graph.layers, Layer("more", ("add",))))
    with pytest.raises(ConfigError, match="each op is in the one layer that it names"):
        replace(graph, layers=graph.layers[1:])


def test_names_are_unique(graph):
    with pytest.raises(ConfigError, match="names each tensor once, got weight twice"):
        replace(graph, tensors=(*graph.tensors, parameter("weight", 1)))


@pytest.mark.parametrize("ask", ["tensor", "table", "ops_of", "cut", "forward"])
def test_what_is_not_there_is_named(graph, ask):
    with pytest.raises(ConfigError, match="'nothing'"):
        getattr(graph, ask)("nothing")


def test_a_call_to_a_table_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"got 'items' at m\.py:1"):
        build_graph("m", CALLS, inputs=[USER, HISTORY], outputs=[SUM])


def test_activations_that_go_with_the_keys_of_a_slot_vary_from_batch_to_batch(graph):
    assert graph.varying_bytes(10) == 0  # pooled to one of a sample
    made = activation("made", TABLE.keys("history"), 3)
    given = activation("each", TABLE.keys("history"), 3)
    each = Call("relu", (given,), (made,), {}, "deep", "deep", "m.py:5")
    found = build_graph(
        "Model", [*CALLS, each], inputs=[USER, HISTORY, given], outputs=[SUM, made],
        tables=(TABLE,),
    )  # fmt: skip
    assert found.varying_bytes(10) == 4 * 50 * 3
