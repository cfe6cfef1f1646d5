"""hp.Embedding: pooled rows and their gradients, as numpy has them."""

import itertools

import numpy as np
import paddle
import pytest
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.nn import find_embeddings

A, B, C = [[1], [2], [1]], [[7], [7], [7]], [[4], [5], [4]]

BATCHES = {
    "single": {"a": A, "b": B},
    "one slot": {"a": A},
    "one sample": {"a": [[1]], "b": [[2, 2, 3]]},
    "multi-hot": {"a": [[1, 2], [3], [2, 2, 2]], "b": B},
    "multi-hot alone": {"a": [[1, 2], [3], [2, 2, 2]]},
    "empty bag first": {"a": [[], [3], [1, 2]], "b": B},
    "empty bag in the middle": {"a": [[3], [], [1, 2]], "b": B},
    "empty bags last": {"a": [[3, 1], [], []], "b": B},
    "a slot of empty bags": {"a": [[], [], []], "b": B},
    "a slot of empty bags beside bags": {"a": [[], [], []], "b": [[1, 2], [], [3]]},
    "only empty bags": {"a": [[], [], []], "b": [[], [], []]},
    "only empty bags, one slot": {"a": [[]]},
    "one key in all slots": {"a": B, "b": [[7, 7], [], [7]], "c": B},
    "single between bags": {"a": [[1, 2], [], [3]], "b": A, "c": [[4], [5, 5], []]},
    "bags between single": {"a": A, "b": [[4], [5, 5], []], "c": C},
}
CASES = list(itertools.product(BATCHES, ["sum", "mean"]))


def expected_output(hand, bags, slots, dim, pooling):
    """`[batch, slots, dim]`, one sample, slot and key at a time."""
    size = len(bags[slots[0]])
    out = np.zeros((size, len(slots), dim))
    for sample, (j, slot) in itertools.product(range(size), enumerate(slots)):
        for key in bags[slot][sample]:
            out[sample, j] += hand.row(key, dim)
        if pooling[slot] == "mean" and bags[slot][sample]:
            out[sample, j] /= len(bags[slot][sample])
    return out


def expected_gradients(bags, slots, dim, pooling, upstream):
    """By key, summed over its occurrences."""
    gradients = {}
    for j, slot in enumerate(slots):
        for sample, bag in enumerate(bags[slot]):
            share = len(bag) if pooling[slot] == "mean" else 1
            for key in bag:
                gradients.setdefault(key, np.zeros(dim))
                gradients[key] += upstream[sample, j] / share
    return gradients


def check(hand, layer, bags, pooling):
    batch = hand.batch_of(bags)
    inputs = hand.inputs(layer, batch)
    out = layer(inputs)
    slots, dim = layer.slots, layer.dim
    assert out.shape == [batch.size, len(slots), dim]
    assert out.dtype == paddle.float32
    expected = expected_output(hand, bags, slots, dim, pooling)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-6)

    upstream = np.random.default_rng(0).normal(size=out.shape).astype(np.float32)
    rows = inputs.pulled[layer.table_name].rows
    gradients = expected_gradients(bags, slots, dim, pooling, upstream)
    if not gradients:
        assert rows.shape == [0, dim]
        return
    (out * paddle.to_tensor(upstream)).sum().backward()
    for i, key in enumerate(sorted(gradients)):
        np.testing.assert_allclose(rows.grad[i].numpy(), gradients[key], rtol=1e-5, atol=1e-5)
    assert len(gradients) == len(rows)


@pytest.mark.parametrize(("name", "pooling"), CASES)
def test_output_and_gradients_are_numpys(name, pooling, hand):
    bags = BATCHES[name]
    layer = hp.Embedding(list(bags), dim=3, pooling=pooling)
    check(hand, layer, bags, dict.fromkeys(bags, pooling))


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_output_has_the_order_of_the_layers_slots_not_of_the_readers(order, hand):
    bags = BATCHES["single between bags"]
    layer = hp.Embedding(order, dim=2)
    check(hand, layer, bags, dict.fromkeys(bags, "sum"))


def test_each_slot_has_its_own_pooling(hand):
    pooling = {"a": "mean", "c": "sum", "b": "sum"}
    layer = hp.Embedding(["a", "b", "c"], dim=2, pooling={"a": "mean", "c": "sum"})
    check(hand, layer, BATCHES["single between bags"], pooling)


def test_a_slot_may_have_one_key_a_sample_in_one_batch_and_many_in_the_next(hand):
    layer = hp.Embedding(["a", "b"], dim=2, pooling="mean")
    for name in ("single", "multi-hot", "single", "only empty bags", "empty bags last"):
        check(hand, layer, BATCHES[name], {"a": "mean", "b": "mean"})


@pytest.mark.parametrize("seed", range(20))
def test_random_batches(seed, hand):
    rng = np.random.default_rng(seed)
    size, slots = int(rng.integers(1, 9)), list("abcd")[: rng.integers(1, 5)]
    bags = {
        slot: [rng.integers(0, 6, n).tolist() for n in rng.integers(lo, lo + 1 + span, size)]
        for slot, lo, span in zip(
            slots, rng.integers(0, 2, 4).tolist(), rng.integers(0, 4, 4).tolist(), strict=False
        )
    }
    pooling = {slot: ["sum", "mean"][rng.integers(2)] for slot in slots}
    check(hand, hp.Embedding(slots, dim=int(rng.integers(1, 5)), pooling=pooling), bags, pooling)


def test_a_batch_of_empty_bags_trains_the_dense_part_and_leaves_no_gradient(hand):
    class Model(nn.Layer):
        def __init__(self):
            super().__init__()
            self.rows, self.linear = hp.Embedding(["a"], dim=2), nn.Linear(2, 1)

        def forward(self, batch):
            return self.linear(self.rows(batch).flatten(1))

    model = Model()
    inputs = hand.inputs(model, hand.batch_of({"a": [[], []]}))
    model(inputs).sum().backward()
    assert model.linear.bias.grad.item() == 2
    assert inputs.pulled["rows"].rows.grad is None


def test_one_layer_called_twice_sums_its_gradients(hand):
    layer = hp.Embedding(["a"], dim=2)
    inputs = hand.inputs(layer, hand.batch_of({"a": [[1], [1], [2]]}))
    (layer(inputs).sum() + 2 * layer(inputs).sum()).backward()
    rows = inputs.pulled["embedding"].rows
    np.testing.assert_array_equal(rows.grad.numpy(), [[6, 6], [3, 3]])


def test_two_layers_of_the_same_slots_have_rows_of_their_own(hand):
    class Two(nn.Layer):
        def __init__(self):
            super().__init__()
            self.wide, self.deep = hp.Embedding(["a"], dim=1), hp.Embedding(["a"], dim=3)

        def forward(self, batch):
            return self.wide(batch).sum() + self.deep(batch).sum(axis=[1, 2]).square().sum()

    model = Two()
    inputs = hand.inputs(model, hand.batch_of({"a": [[1], [1]]}))
    model(inputs).backward()
    pulled = inputs.pulled
    assert pulled["wide"].rows.grad.tolist() == [[2]]
    total = hand.row(1, 3).sum()
    np.testing.assert_allclose(pulled["deep"].rows.grad.numpy(), [[4 * total] * 3], rtol=1e-5)


# ------------------------------------------------------------------ names


def holding(**layers):
    model = nn.Layer()
    for name, layer in layers.items():
        model.add_sublayer(name, layer)
    return model


def test_a_table_is_named_by_its_path():
    inner = holding(rows=hp.Embedding(["a"], dim=2))
    model = holding(
        towers=nn.LayerList([inner, hp.Embedding(["b"], dim=2)]),
        top=nn.Sequential(hp.Embedding(["c"], dim=2)),
        named=hp.Embedding(["d"], dim=2, name="mine"),
    )
    assert list(find_embeddings(model)) == ["towers.0.rows", "towers.1", "top.0", "mine"]


def test_a_model_that_is_an_embedding_has_a_name():
    assert list(find_embeddings(hp.Embedding(["a"], dim=2))) == ["embedding"]


def test_a_layer_reached_by_two_paths_is_one_table():
    layer = hp.Embedding(["a"], dim=2)
    assert list(find_embeddings(holding(x=layer, y=holding(z=layer)))) == ["x"]


def test_names_do_not_change_once_given():
    layer = hp.Embedding(["a"], dim=2)
    find_embeddings(holding(first=layer))
    assert list(find_embeddings(holding(second=layer))) == ["first"]


@pytest.mark.parametrize(
    "model",
    [
        holding(x=hp.Embedding(["a"], 2, name="t"), y=hp.Embedding(["b"], 2, name="t")),
        holding(x=hp.Embedding(["a"], 2, name="y"), y=hp.Embedding(["b"], 2)),
        holding(x=hp.Embedding(["a"], 2), y=hp.Embedding(["b"], 2, name="x")),
    ],
)
def test_two_tables_of_one_name_are_refused(model):
    with pytest.raises(hp.ConfigError, match=r"a name of its own, got two named .*; pass name="):
        find_embeddings(model)


def test_a_path_that_is_no_table_name_is_refused_with_the_layer():
    layer = hp.Embedding(["a"], dim=2)
    with pytest.raises(hp.ConfigError, match=r"Embedding\(\['a'\]\).*name='my rows'"):
        layer.spec(next(iter(find_embeddings(holding(**{"my rows": layer})))))


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"slots": "user"}, r"slots is a list of names, got 'user'; write \['user'\]"),
        ({"slots": []}, "needs slots, each once"),
        ({"slots": ["a", "b", "a"]}, "each once"),
        ({"dim": 0}, "dim=0"),
        ({"dim": -4}, "dim=-4"),
        ({"dim": 5000}, "dim from 1 to 4096, got dim=5000"),
        ({"dim": 2.5}, "dim is a whole number, got 2.5"),
        ({"dim": "16"}, "dim is a whole number, got '16'"),
        ({"dim": None}, "dim is a whole number"),
        ({"pooling": "max"}, "sum, mean or None, got 'max' for slot 'a'"),
        ({"pooling": {"a": "max"}}, "'max' for slot 'a'"),
        ({"pooling": {"z": "sum"}}, "pooling names slots of .*got z"),
        ({"pooling": ["mean"]}, "pooling is sum, mean or None"),
        ({"optimizer": "adagrad"}, "optimizer is hp.SGD, hp.Adagrad or hp.Adam, got 'adagrad'"),
        ({"optimizer": hp.Adagrad}, "optimizer is hp.SGD"),
        ({"initializer": 0.0, "dim": 2}, "initializer is hp.Constant"),
        ({"initializer": hp.Adagrad(0.1)}, "initializer is hp.Constant"),
        ({"name": ""}, "a table's name is"),
        ({"name": "a b"}, "a table's name is .*'a b'"),
        ({"name": "../x"}, "a table's name is"),
        ({"name": ".x"}, "a table's name is"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 0.5}, "seed is a whole number"),
    ],
)
def test_a_wrong_argument_is_named_where_the_layer_is_made(arguments, said):
    with pytest.raises(hp.ConfigError, match=said):
        hp.Embedding(**{"slots": ["a"], "dim": 4, **arguments})


def test_paddles_optimizer_is_refused_for_rows():
    weight = paddle.create_parameter([1], "float32")
    with pytest.raises(hp.ConfigError, match=r"optimizer is hp.SGD, hp.Adagrad or hp.Adam"):
        hp.Embedding(["a"], 4, optimizer=paddle.optimizer.Adam(parameters=[weight]))


@pytest.mark.parametrize("batch", [{"a": 1}, paddle.ones([2]), None])
def test_outside_a_trainer_it_names_the_remedy(batch):
    with pytest.raises(hp.ConfigError, match=r"use hp.Trainer\(model, ...\).fit, .evaluate"):
        hp.Embedding(["a"], 4)(batch)


def test_a_layer_that_the_trainer_does_not_see_names_the_remedy(hand):
    inputs = hand.inputs(hp.Embedding(["a"], 4), hand.batch_of({"a": [[1]], "b": [[1]]}))
    with pytest.raises(hp.ConfigError, match=r"\['b'\] outside it; keep it in an attribute"):
        hp.Embedding(["b"], 4)(inputs)


def test_rows_are_no_parameters_and_no_state():
    layer = hp.Embedding(["a"], 4)
    assert layer.parameters() == []
    assert layer.state_dict() == {}


def test_printing_shows_what_it_is():
    layer = hp.Embedding(["a", "b"], 4, optimizer=hp.SGD(0.1))
    assert repr(layer) == ("Embedding(slots=['a', 'b'], dim=4, optimizer=SGD(learning_rate=0.1))")
