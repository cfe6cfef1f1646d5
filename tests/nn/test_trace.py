"""trace: a model becomes a Graph. Costs against arithmetic, Paddle's own counts and its memory."""

import gc
import importlib
import inspect

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it
import pytest
from paddle import nn
from paddle.static import InputSpec

import hetero_pipe as hp
from hetero_pipe.graph import BATCH, Graph, Size
from hetero_pipe.nn import BatchSpec, random_state, trace
from hetero_pipe.nn.static import list_ops


@pytest.fixture(autouse=True)
def _dynamic_mode():
    yield
    assert paddle.in_dynamic_mode()


class DeepFM(nn.Layer):
    """As in examples/ctr."""

    def __init__(self, slots, num_dense, dim, hidden, history=None):
        super().__init__()
        self.first_order = hp.Embedding(slots, dim=1, optimizer=hp.SGD(0.1))
        self.embedding = hp.Embedding(slots, dim=dim, optimizer=hp.Adagrad(0.1), pooling="mean")
        self.dense = nn.Linear(num_dense, 1)
        self.deep = nn.Sequential(
            nn.Linear(len(slots) * dim + num_dense, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, batch):
        rows = self.embedding(batch)
        pairs = 0.5 * (rows.sum(axis=1).square() - rows.square().sum(axis=1))
        logits = self.first_order(batch).sum(axis=1) + pairs.sum(axis=1, keepdim=True)
        logits = logits + self.dense(batch["dense"])
        inputs = paddle.concat([rows.flatten(1), batch["dense"]], axis=1)
        return logits + self.deep(inputs)


class Attentive(nn.Layer):
    """Reads a history row by row, with a softmax over each bag."""

    def __init__(self):
        super().__init__()
        self.rows = hp.Embedding(["item", "history"], dim=4, pooling={"history": None})
        self.out = nn.Linear(8, 1)

    def forward(self, batch):
        item, earlier = self.rows(batch)[:, 0], self.rows.unpooled(batch, "history")
        scores = (earlier.spread(item) * earlier.rows).sum(axis=1, keepdim=True)
        interest = earlier.sum(earlier.softmax(scores) * earlier.rows)
        return self.out(paddle.concat([item, interest], axis=1))


class Recommender(nn.Layer):
    """As PaddleRec writes them: lists of slots in, `paddle.nn.Embedding`, reshape and concat."""

    def __init__(self, num_slots=3, num_dense=2, dim=4):
        super().__init__()
        self.embedding = nn.Embedding(100, dim, sparse=True)
        self.sizes = [num_slots * dim + num_dense, 8, 1]
        self.fcs = []
        for i in range(2):
            linear = nn.Linear(self.sizes[i], self.sizes[i + 1])
            self.add_sublayer(f"linear_{i}", linear)
            self.fcs.append(linear)

    def forward(self, sparse, dense):
        rows = [paddle.reshape(self.embedding(slot), [-1, 4]) for slot in sparse]
        wide = paddle.concat([r.sum(axis=1, keepdim=True) for r in rows], axis=1).sum(axis=1)
        x = paddle.concat([*rows, dense], axis=1)
        for fc in self.fcs:
            x = F.relu(fc(x))
        return F.sigmoid(x + wide.reshape([-1, 1]))


def mlp():
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 1))


def flops(cost, batch):
    return cost.flops.at({"batch": batch})


# ------------------------------------------------------------------ arithmetic


def test_an_mlp_costs_what_arithmetic_says():
    graph = trace(mlp(), [InputSpec([None, 20])])
    b = 64
    forward = b * (2 * 20 * 30 + 30 + 30 + 2 * 30 * 1 + 1)
    # Of the first matmul, the weight's gradient alone; a bias's is a sum over the batch.
    backward = b * (2 * 20 * 30 + 30 + 30 + 2 * (2 * 30 * 1) + 1)
    assert flops(graph.forward(), b) == forward
    assert flops(graph.backward(), b) == backward
    assert graph.flops(b) == forward + backward
    assert graph.parameter_bytes() == 4 * (20 * 30 + 30 + 30 * 1 + 1)
    assert graph.forward().bytes_written.at({"batch": b}) == 4 * b * (30 + 30 + 30 + 1 + 1)
    assert graph.forward().bytes_read.at({"batch": b}) == 4 * (
        b * 20 + 20 * 30 + b * 30 + 30 + b * 30 + b * 30 + 30 + b + 1
    )
    assert graph.activation_bytes(b) == 4 * b * (20 + 30)  # the input, and the relu's output
    assert [layer.name for layer in graph.layers] == ["0", "2"]
    assert not graph.warnings


def test_deepfm_costs_what_arithmetic_says():
    s, n, d, h, b = 5, 13, 16, 40, 32
    model = DeepFM(["a", "b", "c", "d", "e"], n, d, h)
    graph = trace(model, BatchSpec(dense=n))
    at = graph.values(b)
    assert at == {"batch": b, "rows.first_order": s * b, "rows.embedding": s * b}
    pairs = s * d + d + s * d + s * d + d + d + d  # sum, square, square, sum, -, 0.5, sum
    linear = s + 1 + (2 * n + 1) + 1  # sum of first order, + pairs, dense's, +
    wide = s * d + n
    deep = (2 * wide * h + h) + h + (2 * h + 1) + 1
    loss = 9 + 1
    assert graph.forward().flops.at(at) == b * (pairs + linear + deep + loss)
    assert graph.parameter_bytes() == 4 * (n + 1 + wide * h + h + h + 1)
    first, embedding = graph.tables
    assert (first.dim, first.bytes_per_row) == (1, 4)
    assert (embedding.dim, embedding.bytes_per_row) == (d, 4 * 2 * d)
    pulled = [op for op in graph.ops if op.kind == "pull"]
    assert [op.forward.bytes_written.at(at) for op in pulled] == [4 * s * b, 4 * s * b * d]
    pushed = [op for op in graph.ops if op.kind == "push"]
    assert [op.backward.flops.at(at) for op in pushed] == [2 * s * b, 7 * s * b * d]
    # Gradients of the matmuls: of both operands but where one is data alone.
    products = [op for op in graph.ops if op.kind == "matmul"]
    assert sum(op.backward.flops.at(at) for op in products) == b * (
        2 * n + 2 * (2 * wide * h) + 2 * (2 * h)
    )


def test_a_transformer_block_costs_what_arithmetic_says():
    t, d, f, heads = 6, 8, 16, 2
    block = nn.TransformerEncoderLayer(d, heads, f, dropout=0.0)
    graph = trace(block, [InputSpec([None, t, d])])
    b = 3
    rows, scores = b * t, b * heads * t * t
    forward = (
        4 * rows * (2 * d * d + d)  # q, k, v, out
        + rows * d  # scaling
        + 2 * (2 * rows * t * d)  # scores, and their product with v
        + 5 * scores  # softmax
        + 2 * (rows * d + 7 * rows * d)  # residual and layer norm
        + rows * (2 * d * f + f)
        + rows * f  # relu
        + rows * (2 * f * d + d)
    )
    assert flops(graph.forward(), b) == forward
    products = 4 * (2 * rows * d * d) + 2 * (2 * rows * t * d) + 2 * (2 * rows * d * f)
    # The block's input is data: no gradient of it from q, k and v.
    assert sum(op.backward.flops.at({"batch": b}) for op in graph.ops if op.kind == "matmul") == (
        2 * products - 3 * (2 * rows * d * d)
    )
    assert graph.parameter_bytes() == 4 * (4 * (d * d + d) + d * f + f + f * d + d + 4 * d)
    assert {"self_attn", "norm1", "linear1", "linear2", "norm2"} <= {
        layer.name.partition(":")[0] for layer in graph.layers
    }


# ------------------------------------------------------------------ Paddle's own counts


def backward_products(model, specs, batch):
    """Returns the FLOPs of Paddle's own backward's matmuls, from its static program."""

    def run(feeds):
        fed = [
            feeds.tensor(f"x{i}", [batch, *spec.shape[1:]], "float32")
            for i, spec in enumerate(specs)
        ]
        loss = model(*fed).mean()
        paddle.static.append_backward(loss)
        return loss

    program = list_ops(model, run)
    counted = 0
    for op in program.ops:
        if op.kind == "matmul_grad":
            x, _, out = (program.tensors[number].shape for number in op.inputs)
            inner = x[-2] if op.attributes["transpose_x"] else x[-1]
            counted += len(op.outputs) * 2 * int(np.prod(out)) * inner
    return counted


MODELS = {
    "mlp": (mlp, [InputSpec([None, 20])]),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
        [InputSpec([None, 6, 8])],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_backward_by_rules_is_that_of_paddles_program(name):
    make, specs = MODELS[name]
    model = make()
    graph = trace(model, specs, loss=lambda output: output.mean())
    ours = sum(flops(op.backward, 5) for op in graph.ops if op.kind == "matmul")
    theirs = backward_products(model, specs, 5)
    assert ours == theirs > 0


def test_flops_are_twice_what_paddle_counts():
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 10))
    graph = trace(model, [InputSpec([None, 20])])
    products = sum(flops(op.forward, 4) for op in graph.ops if op.kind == "matmul")
    assert products == 2 * 4 * (20 * 30 + 30 * 10)
    found = paddle.utils.flops.flops(
        "matmul", {"X": [[4, 20]], "Y": [[20, 30]]}, {"transpose_X": False, "transpose_Y": False}
    )
    assert flops(graph.ops[0].forward, 4) == found


class Mixed(nn.Layer):
    """Ops of many kinds, some of which keep what they read and some what they made."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.gelu = nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        y = self.a(self.norm(x))
        z = x * self.dropout(self.gelu(y)) + F.softmax(y)
        w = paddle.where(y > 0, y, y * 2)
        return paddle.concat([z, (y - y.mean(1, keepdim=True)).square(), F.silu(w)], axis=1)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)), [1024, 64]),
        (lambda: nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1), [16, 32, 64]),
        (Mixed, [1024, 64]),
    ],
)
def test_activations_are_the_memory_that_a_forward_leaves(make, shape):
    def allocated():
        gc.collect()
        return paddle.base.core.host_memory_stat_current_value("Allocated", 0)

    model, inputs = make(), paddle.rand(shape)
    model(inputs).mean()  # whatever is made once
    before = allocated()
    loss = model(inputs).mean()
    held = allocated() - before
    graph = trace(model, [InputSpec([None, *shape[1:]])], loss=lambda output: output.mean())
    data = inputs.numel().item() * 4  # was there before; each of these keeps it
    assert held == pytest.approx(graph.activation_bytes(shape[0]) - data, abs=64)
    del loss


# ------------------------------------------------------------------ the batch, symbolic


@pytest.mark.parametrize("batch", [2, 7, 4096])
@pytest.mark.parametrize("name", MODELS)
def test_a_size_at_a_batch_is_that_of_a_trace_at_that_batch(name, batch):
    make, specs = MODELS[name]
    model = make()
    graph = trace(model, specs)
    there = trace(model, [InputSpec([batch, *spec.shape[1:]]) for spec in specs])
    assert there.forward().flops.is_constant
    at = {"batch": batch}
    for op, other in zip(graph.ops, there.ops, strict=True):
        for cost, fixed in ((op.forward, other.forward), (op.backward, other.backward)):
            assert cost.flops.at(at) == fixed.flops.at({})
            assert cost.bytes_read.at(at) == fixed.bytes_read.at({})
            assert cost.bytes_written.at(at) == fixed.bytes_written.at({})
    assert graph.activation_bytes(batch) == there.activation_bytes(1)


def test_a_batch_joined_with_another_dim_and_with_itself_is_a_polynomial():
    class Model(nn.Layer):
        def forward(self, x):
            joined = x.reshape([-1, 4])  # [batch * 6, 4]
            y = x.flatten(1)
            return joined, paddle.matmul(y, y, transpose_y=True).flatten()

    graph = trace(Model(), [InputSpec([None, 6, 4])])
    joined, pairs = (graph.tensor(name) for name in graph.outputs)
    assert joined.shape == (BATCH * 6, Size.of(4))
    assert pairs.shape == (BATCH * BATCH,)


# ------------------------------------------------------------------ models that read slots


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend("examples/ctr")
    return importlib.import_module("models").MODELS


@pytest.mark.parametrize("name", ["dcn", "deepfm", "din", "dlrm", "wide_deep"])
@pytest.mark.parametrize("num_dense", [0, 13])
def test_a_shipped_model_is_traced_and_knows_each_op(name, num_dense, examples):
    model = examples[name](num_dense=num_dense) if num_dense else examples[name]()
    graph = trace(model, BatchSpec(dense=num_dense) if num_dense else None)
    assert not graph.warnings
    assert {op.kind for op in graph.ops} >= {"pull", "pool", "push", "matmul"}
    assert graph.flops(1024) > 0
    assert "deep.0" in {layer.name for layer in graph.layers} or name == "dlrm"
    assert ("dense" in graph.inputs) == bool(num_dense)
    deep = [op for op in graph.ops if op.path.startswith(("deep", "top"))]
    assert deep
    assert all(f"models/{name}.py:" in op.source for op in deep)
    assert Graph.from_json(graph.to_json()) == graph


def test_a_history_is_rows_one_by_one():
    graph = trace(Attentive(), BatchSpec({"history": 6.0}))
    assert not graph.warnings
    assert graph.values(10) == {"batch": 10, "keys.history": 60, "rows.rows": 70}
    rows = graph.tensor("rows.unpooled(history)")
    assert rows.shape == (Size.symbol("keys.history"), Size.of(4))
    shapes = {tuple(map(str, tensor.shape)) for tensor in graph.tensors}
    assert ("keys.history", "1") in shapes  # scores
    assert ("batch", "8") in shapes  # item and interest
    assert graph.layers[0].name == "rows"
    assert graph.with_data(keys={"history": 12.0}).flops(10) > graph.flops(10)


def test_an_example_batch_tells_the_mean_number_of_keys(hand):
    batch = hand.batch_of({"item": [[1], [2]], "history": [[1, 2, 3], []]}, label=[0, 1])
    graph = trace(Attentive(), batch)
    assert graph.table("rows").slots == {"item": 1.0, "history": 1.5}
    with pytest.raises(hp.ConfigError, match="history in one of the two alone"):
        trace(Attentive(), hand.batch_of({"item": [[1], [2]]}))
    with pytest.raises(hp.ConfigError, match="stray in one of the two alone"):
        trace(Attentive(), BatchSpec({"stray": 2.0}))


def test_without_labels_the_graph_ends_with_the_logits():
    graph = trace(Attentive(), BatchSpec(has_label=False))
    assert graph.tensor(graph.outputs[0]).shape == (BATCH, Size.of(1))
    assert "label" not in graph.inputs


def test_code_in_the_manner_of_paddlerec_is_traced():
    keys = [InputSpec([None, 1], "int64", f"slot{i}") for i in range(3)]
    graph = trace(Recommender(), [keys, InputSpec([None, 2], "float32", "dense")])
    assert not graph.warnings
    assert not graph.tables  # its rows are a parameter
    assert graph.tensor("embedding.weight").is_parameter
    looked_up = [op for op in graph.ops if op.kind == "embedding"]
    assert len(looked_up) == 3
    # Each reads one row a sample, and gives as sparse a gradient.
    assert looked_up[0].forward.bytes_read.at({"batch": 10}) == 10 * (8 + 4 * 4)
    assert looked_up[0].backward.bytes_written.at({"batch": 10}) == 10 * 4 * 4
    assert set(graph.inputs) == {"slot0", "slot1", "slot2", "dense"}


# ------------------------------------------------------------------ nothing changes


class Stateful(nn.Layer):
    """Has buffers, statistics and dropout, and keeps what it saw."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.dropout = nn.Linear(4, 4), nn.BatchNorm1D(4), nn.Dropout(0.5)
        self.register_buffer("mask", paddle.ones([4]))
        self.seen = None

    def forward(self, x):
        self.mask = self.mask * 1.0
        self.seen = self.dropout(self.norm(self.a(x))) * self.mask
        return self.seen


@pytest.mark.filterwarnings("ignore:When training, we now always track")  # Paddle, of any BatchNorm
@pytest.mark.parametrize("is_training", [True, False])
def test_the_model_is_as_before(is_training):
    paddle.seed(3)
    model = Stateful()
    model.train() if is_training else model.eval()
    state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
    held = {name: id(tensor) for name, tensor in model.state_dict().items()}
    drawn = random_state()
    graph = trace(model, [InputSpec([None, 4])])
    assert model.training is is_training
    assert model.seen is None
    assert {name: id(tensor) for name, tensor in model.state_dict().items()} == held
    for name, tensor in model.state_dict().items():
        np.testing.assert_array_equal(tensor.numpy(), state[name])
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, before in drawn.items():
        np.testing.assert_array_equal(random_state()[name], before)
    assert not any(layer._forward_pre_hooks for layer in model.sublayers(include_self=True))
    assert not graph.warnings
    assert model(paddle.ones([2, 4])).shape == [2, 4]  # and it still runs


def test_names_of_later_parameters_are_as_if_nothing_was_traced():
    def number(layer):
        return int(layer.weight.name.partition("_")[2].partition(".")[0])

    first = nn.Linear(2, 2)
    trace(first, [InputSpec([None, 2])])
    assert number(nn.Linear(2, 2)) == number(first) + 1


def test_an_embedding_without_a_name_has_none_afterwards():
    tower = Attentive()
    assert trace(tower).tables[0].name == "rows"
    assert tower.rows.table_name is None  # in a larger model it gets another
    assert trace(nn.Sequential(tower)).tables[0].name == "0.rows"


# ------------------------------------------------------------------ what cannot be traced


class Asks(nn.Layer):
    """Does one thing that needs a value."""

    def __init__(self, ask):
        super().__init__()
        self.ask, self.linear = ask, nn.Linear(4, 4)

    def forward(self, x):
        return self.ask(self.linear(x))


def of_value(x):
    if x.sum() > 0:
        return x
    return -x


def of_numpy(x):
    return paddle.to_tensor(x.numpy())


def of_float(x):
    return x * float(x.mean())


def of_cond(x):
    return paddle.static.nn.cond(x.sum() > 0, lambda: x, lambda: x * 2)


def of_batch(x):
    return paddle.stack([row * 2 for row in x])


def of_shape(x):
    return x.reshape([7, 5])


@pytest.mark.parametrize(
    ("ask", "line", "said"),
    [
        (of_value, "if x.sum() > 0:", "without asking for a tensor's value"),
        (of_numpy, "return paddle.to_tensor(x.numpy())", "without asking for a tensor's value"),
        (of_float, "return x * float(x.mean())", "without asking for a tensor's value"),
        (of_cond, "return paddle.static.nn.cond", "which ops a model runs is the same"),
        (of_batch, "return paddle.stack", "a model does the same at each batch"),
        (of_shape, "return x.reshape([7, 5])", "a model runs on a batch of any size"),
    ],
)
def test_a_model_that_cannot_be_traced_is_told_by_file_and_line(ask, line, said):
    model = Asks(ask)
    before = model.linear.weight.numpy().copy()
    lines, start = inspect.getsourcelines(ask)
    number = start + next(i for i, text in enumerate(lines) if line in text)
    with pytest.raises(hp.TraceError, match=said) as failure:
        trace(model, [InputSpec([None, 4])])
    assert failure.value.source == f"{__file__}:{number}"
    assert failure.value.source in str(failure.value)
    assert paddle.in_dynamic_mode()
    np.testing.assert_array_equal(model.linear.weight.numpy(), before)
    assert trace(nn.Linear(4, 4), [InputSpec([None, 4])]).ops  # nothing is left over


def test_a_column_that_is_not_in_the_batch_is_told_where_it_is_read():
    with pytest.raises(hp.TraceError, match="got 'dense'") as failure:
        trace(DeepFM(["a"], 3, 2, 4))
    assert "self.dense(batch[" in str(failure.value)


def test_inputs_of_another_kind_are_refused():
    with pytest.raises(hp.ConfigError, match="is called with a batch"):
        trace(Attentive(), [InputSpec([None, 4])])
    with pytest.raises(hp.ConfigError, match=r"inputs are paddle.static.InputSpecs, got 4"):
        trace(mlp(), [4])
    with pytest.raises(hp.ConfigError, match="with a Batch, a BatchSpec or a list"):
        trace(mlp(), 4)


def test_what_a_run_alone_can_tell_is_warned_of():
    class Model(nn.Layer):
        def forward(self, x):
            return paddle.masked_select(x, x > 0) * 2

    graph = trace(Model(), [InputSpec([None, 4])])
    assert any("only a run tells the size of dim 0" in text for text in graph.warnings)
    assert any("no rule tells the FLOPs of masked_select" in text for text in graph.warnings)
    assert all(f"{__file__}:" in text for text in graph.warnings)
