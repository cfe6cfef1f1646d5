"""Rows one by one: what Embedding.unpooled gives; sums and softmax over bags are numpy's."""

import numpy as np
import paddle
import pytest
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.nn import BagRows

MANY = np.random.default_rng(7).integers(0, 900, 10_000).tolist()

BATCHES = {
    "one key each": [[1], [2], [1]],
    "a key twice in a bag and in two bags": [[1, 2, 1], [3], [2, 2, 2]],
    "empty bag first": [[], [3], [1, 2]],
    "empty bags in the middle": [[3], [], [], [1, 2]],
    "empty bags last": [[3, 1], [], []],
    "one empty bag": [[]],
    "only empty bags": [[], [], []],
    "a bag of 10,000 keys": [[5], MANY, [], [7, 5]],
}
DIM = 3


def layer_and_bag(hand, bags, **options):
    layer = hp.Embedding(["a"], dim=DIM, pooling=None, **options)
    inputs = hand.inputs(layer, hand.batch_of({"a": bags}))
    return inputs.pulled, layer.unpooled(inputs, "a")


def padded(values, bags):
    """`[batch, longest, k]` of `[n, k]`, and which of it are real, `[batch, longest, 1]`."""
    lengths = np.array([len(bag) for bag in bags])
    is_real = np.arange(max(1, lengths.max())) < lengths[:, None]
    out = np.zeros((*is_real.shape, values.shape[1]), np.float32)
    out[is_real] = values
    return out, is_real[:, :, None]


@pytest.mark.parametrize("name", BATCHES)
def test_rows_are_those_of_the_keys_in_order_with_their_samples(name, hand):
    bags = BATCHES[name]
    _, bag = layer_and_bag(hand, bags)
    keys = [key for keys in bags for key in keys]
    assert bag.rows.shape == [len(keys), DIM]
    expected = np.array([hand.row(key, DIM) for key in keys]).reshape(-1, DIM)
    np.testing.assert_array_equal(bag.rows.numpy(), expected)
    assert bag.samples.tolist() == [i for i, keys in enumerate(bags) for _ in keys]
    assert bag.offsets.tolist() == np.cumsum([0, *map(len, bags)]).tolist()
    assert bag.size == len(bags)
    assert len(bag) == len(keys)


@pytest.mark.parametrize("name", BATCHES)
def test_gradients_are_those_of_paddles_embedding_and_of_float64(name, hand):
    bags = BATCHES[name]
    pulled, bag = layer_and_bag(hand, bags)
    keys = np.array([key for keys in bags for key in keys])
    upstream = np.random.default_rng(0).normal(size=(len(keys), DIM)).astype(np.float32)
    loss = (bag.rows * paddle.to_tensor(upstream)).sum()
    if len(keys) == 0:
        assert loss.item() == 0
        assert pulled["embedding"].rows.shape[0] == 0
        return
    loss.backward()
    found = pulled["embedding"].rows.grad.numpy()

    distinct, ids = np.unique(keys, return_inverse=True)
    theirs = nn.Embedding(len(distinct), DIM)
    (theirs(paddle.to_tensor(ids)) * paddle.to_tensor(upstream)).sum().backward()
    np.testing.assert_array_equal(found, theirs.weight.grad.numpy())

    exact = np.zeros((len(distinct), DIM))
    np.add.at(exact, ids, upstream.astype(np.float64))
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4 if len(keys) > 100 else 1e-6)


@pytest.mark.parametrize("name", BATCHES)
def test_sum_and_spread_are_numpys_and_each_others_gradient(name, hand):
    bags = BATCHES[name]
    _, bag = layer_and_bag(hand, bags)
    rng = np.random.default_rng(1)
    values = paddle.to_tensor(rng.normal(size=(sum(map(len, bags)), 2)).astype(np.float32))
    samples = paddle.to_tensor(rng.normal(size=(len(bags), 2)).astype(np.float32))
    values.stop_gradient = samples.stop_gradient = False
    sums, spread = bag.sum(values), bag.spread(samples)
    arrays, is_real = padded(values.numpy(), bags)
    np.testing.assert_allclose(sums.numpy(), arrays.sum(axis=1), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(spread.numpy(), samples.numpy()[bag.samples.numpy()])
    # <sum(v), s> = <v, spread(s)>: the gradients are each other's forward.
    (sums * samples.detach()).sum().backward()
    (spread * values.detach()).sum().backward()
    if is_real.any():
        np.testing.assert_allclose(values.grad.numpy(), spread.numpy())
        np.testing.assert_allclose(samples.grad.numpy(), sums.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("scale", [1, 1000])
def test_softmax_is_paddles_over_each_bag_with_its_gradient(name, scale, hand):
    bags = BATCHES[name]
    _, bag = layer_and_bag(hand, bags)
    rng = np.random.default_rng(2)
    array = scale * rng.normal(size=(sum(map(len, bags)), 2)).astype(np.float32)
    upstream = rng.normal(size=array.shape).astype(np.float32)
    scores = paddle.to_tensor(array, stop_gradient=False)
    weights = bag.softmax(scores)
    assert weights.shape == list(array.shape)
    if not len(array):
        return
    (weights * paddle.to_tensor(upstream)).sum().backward()

    arrays, is_real = padded(array, bags)
    theirs = paddle.to_tensor(arrays, stop_gradient=False)
    expected = nn.functional.softmax(
        theirs + paddle.to_tensor(np.where(is_real, 0, -np.inf).astype(np.float32)), axis=1
    )
    where = np.broadcast_to(is_real, arrays.shape)
    np.testing.assert_allclose(
        weights.numpy().reshape(-1), expected.numpy()[where], rtol=1e-4, atol=1e-7
    )
    # One sample after the other: those without keys have no softmax.
    for i, keys in enumerate(bags):
        if keys:
            total = (expected[i] * paddle.to_tensor(padded(upstream, bags)[0])[i])[: len(keys)]
            total.sum().backward(retain_graph=True)
    np.testing.assert_allclose(
        scores.grad.numpy().reshape(-1), theirs.grad.numpy()[where], rtol=1e-3, atol=1e-6
    )


def test_a_slot_is_pooled_unpooled_or_both_and_shares_its_rows(hand):
    layer = hp.Embedding(["a", "h", "b"], dim=2, pooling={"h": None, "a": "mean"})
    bags = {"a": [[1], [2]], "h": [[2, 1, 2], []], "b": [[4, 5], [4]]}
    inputs = hand.inputs(layer, hand.batch_of(bags))
    pooled = layer(inputs)
    assert pooled.shape == [2, 2, 2]
    for j, slot in enumerate("ab"):
        expected = [sum(hand.row(key, 2) for key in bag) for bag in bags[slot]]
        np.testing.assert_allclose(pooled[:, j].numpy(), expected, rtol=1e-6)
    history, twice = layer.unpooled(inputs, "h"), layer.unpooled(inputs, "b")
    np.testing.assert_array_equal(history.rows.numpy(), [hand.row(key, 2) for key in (2, 1, 2)])
    (pooled.sum() + 10 * history.rows.sum() + 100 * twice.rows.sum()).backward()
    grad = inputs.pulled["embedding"].rows.grad.numpy()[:, 0]
    assert grad.tolist() == [1 + 10, 1 + 20, 2 + 200, 1 + 100]  # of keys 1, 2, 4, 5


@pytest.mark.parametrize("history", [[[2], [3]], [[], []], [[2, 3], []]])
def test_an_unpooled_slot_is_left_out_whatever_the_batch_has(history, hand):
    layer = hp.Embedding(["h", "a"], dim=2, pooling={"h": None})
    inputs = hand.inputs(layer, hand.batch_of({"h": history, "a": [[1], [2]]}))
    expected = [[hand.row(1, 2)], [hand.row(2, 2)]]
    np.testing.assert_array_equal(layer(inputs).numpy(), expected)


def test_a_layer_that_pools_nothing_says_how_its_rows_are_read(hand):
    layer = hp.Embedding(["a"], dim=2, pooling=None)
    inputs = hand.inputs(layer, hand.batch_of({"a": [[1]]}))
    with pytest.raises(hp.ConfigError, match=r"pooling=None for all of \['a'\]; .*unpooled\("):
        layer(inputs)
    with pytest.raises(hp.ConfigError, match=r"an Embedding of \['a'\] has no rows of slot 'b'"):
        layer.unpooled(inputs, "b")
    with pytest.raises(hp.ConfigError, match=r"use hp.Trainer"):
        layer.unpooled({"a": 1}, "a")


def test_a_bag_is_of_any_rows():
    bag = BagRows(paddle.zeros([0, 1]), paddle.zeros([0], "int64"), paddle.zeros([3]), 2, 0)
    assert bag.sum(paddle.zeros([0, 5])).shape == [2, 5]
    assert bag.spread(paddle.ones([2, 5])).shape == [0, 5]
