"""A model that is cut at its Embeddings does what the whole model does, bit for bit."""

import threading

import numpy as np
import paddle
import pytest
from paddle import nn

import hetero_pipe as hp
from hetero_pipe.data import Cut
from hetero_pipe.nn import DenseStep, Device, SparseStep, find_embeddings
from hetero_pipe.nn.finite import not_finite
from tests.nn.conftest import batch_of

CPU = Device("cpu")


class Everything(nn.Layer):
    """Pooled and unpooled slots, single and multi-hot, of two tables; one of them is read twice."""

    def __init__(self):
        super().__init__()
        self.wide = hp.Embedding(["user", "tags"], dim=1)
        self.rows = hp.Embedding(
            ["user", "tags", "seen"], dim=3, pooling={"tags": "mean", "seen": None}
        )
        self.deep = nn.Linear(9, 1)

    def forward(self, batch):
        rows = self.rows(batch)
        seen = self.rows.unpooled(batch, "seen")
        weights = seen.softmax((seen.rows * seen.spread(rows[:, 0])).sum(axis=1, keepdim=True))
        deep = self.deep(paddle.concat([rows.flatten(1), seen.sum(weights * seen.rows)], axis=1))
        return deep + self.wide(batch).sum(axis=1)


def samples(*, label=(1, 0, 1, 0)):
    bags = {
        "user": [[1], [2], [1], [3]],
        "tags": [[5, 6], [], [6, 6, 5], [7]],
        "seen": [[], [1, 2, 2], [3], []],
    }
    return batch_of(bags, label=label)


def build(model_class=Everything):
    paddle.seed(0)
    model = model_class()
    optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
    return model, DenseStep(model, loss=None, optimizer=optimizer, device=CPU)


def train_whole(hand, batch, steps, model_class=Everything):
    model, dense = build(model_class)
    outputs = [dense.train(step, batch, hand.pull(model, batch)) for step in range(steps)]
    return model, outputs


def train_cut(hand, batch, steps, model_class=Everything):
    """The sparse and the dense part of two models that are built alike, as in two processes."""
    (there, dense), (here, _) = build(model_class), build(model_class)
    find_embeddings(there)
    sparse = SparseStep(find_embeddings(here))
    outputs = []
    for step in range(steps):
        forward = sparse.forward(batch, hand.pull(here, batch), with_gradient=True)
        output = dense.train(step, without_keys(batch), forward.cuts)
        outputs.append((output, sparse.backward(forward, output.gradients)))
    return there, outputs


def without_keys(batch):
    return type(batch)({}, batch.dense, batch.label, batch.dense_names)


def assert_alike(hand, batch, model_class=Everything):
    whole_model, whole = train_whole(hand, batch, 3, model_class)
    cut_model, cut = train_cut(hand, batch, 3, model_class)
    for one, (other, gradients) in zip(whole, cut, strict=True):
        assert one.loss == other.loss
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
        assert one.gradients.keys() == gradients.keys()
        for table, gradient in one.gradients.items():
            np.testing.assert_array_equal(gradient, gradients[table], err_msg=table)
    for one, other in zip(whole_model.parameters(), cut_model.parameters(), strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_the_two_parts_do_what_the_whole_does(hand):
    assert_alike(hand, samples())


def test_nothing_crosses_but_what_the_embeddings_give(hand):
    here, _ = build()
    batch = samples()
    forward = SparseStep(find_embeddings(here)).forward(
        batch, hand.pull(here, batch), with_gradient=True
    )
    shapes = {name: cut.values.shape for name, cut in forward.cuts.items()}
    assert shapes == {"wide": (4, 2, 1), "rows": (4, 2, 3), "rows.unpooled(seen)": (4, 3)}
    assert forward.cuts["rows.unpooled(seen)"].offsets.tolist() == [0, 0, 3, 4, 4]


def test_a_batch_without_keys_in_an_unpooled_slot(hand):
    bags = {"user": [[1], [2]], "tags": [[], [4]], "seen": [[], []]}
    assert_alike(hand, batch_of(bags, label=[1, 0]))


class Halves(nn.Layer):
    """A table that the loss does not depend on, and one without any key."""

    def __init__(self):
        super().__init__()
        self.used = hp.Embedding(["user"], dim=2)
        self.unused = hp.Embedding(["user"], dim=2)
        self.empty = hp.Embedding(["tags"], dim=2)
        self.deep = nn.Linear(4, 1)

    def forward(self, batch):
        self.unused(batch)
        return self.deep(paddle.concat([self.used(batch), self.empty(batch)], axis=2).flatten(1))


def test_a_table_that_no_gradient_reaches_is_absent(hand):
    batch = batch_of({"user": [[1], [2]], "tags": [[], []]}, label=[1, 0])
    assert_alike(hand, batch, Halves)
    _, [(_, gradients)] = train_cut(hand, batch, 1, Halves)
    assert gradients.keys() == {"used"}


def test_predictions_are_the_whole_models_and_keep_no_way_back(hand):
    batch = samples()
    (model, dense), (here, _) = build(), build()
    find_embeddings(model)
    forward = SparseStep(find_embeddings(here)).forward(
        batch, hand.pull(here, batch), with_gradient=False
    )
    assert all(output.stop_gradient for output in forward.outputs.values())
    np.testing.assert_array_equal(
        dense.predict(without_keys(batch), forward.cuts),
        dense.predict(batch, hand.pull(model, batch)),
    )


def test_forward_and_backward_may_be_of_two_threads(hand):
    batch = samples()
    here, _ = build()
    sparse = SparseStep(find_embeddings(here))
    forward = sparse.forward(batch, hand.pull(here, batch), with_gradient=True)
    ones = {name: np.ones_like(cut.values) for name, cut in forward.cuts.items()}
    found = {}
    thread = threading.Thread(target=lambda: found.update(sparse.backward(forward, ones)))
    thread.start()
    thread.join()
    # How often each key occurs: users 1 to 3, tags 5 to 7.
    assert found["wide"].ravel().tolist() == [2, 1, 1, 2, 3, 1]


def test_a_read_that_no_sparse_worker_sends_says_what_to_do(hand):
    class Both(nn.Layer):
        def __init__(self):
            super().__init__()
            self.rows = hp.Embedding(["user", "tags"], dim=2)

        def forward(self, batch):
            return self.rows.unpooled(batch, "tags").rows.sum() + self.rows(batch).sum(axis=[1, 2])

    with pytest.raises(hp.ConfigError, match=r"read of rows.unpooled\(tags\); give the slot"):
        train_cut(hand, samples(), 1, Both)


@pytest.mark.parametrize(
    ("name", "place", "where"),
    [
        ("rows", (2, 1, 0), "pooled slot 1 in sample 2"),
        ("rows.unpooled(seen)", (3, 0), "sample 2"),
        ("rows.unpooled(seen)", (0, 2), "sample 1"),
    ],
)
def test_a_gradient_that_is_not_finite_names_the_sample(name, place, where, hand):
    batch = samples()
    here, _ = build()
    forward = SparseStep(find_embeddings(here)).forward(
        batch, hand.pull(here, batch), with_gradient=True
    )
    gradient = np.zeros_like(forward.cuts[name].values)
    gradient[place] = np.nan
    error = not_finite(7, name, gradient, forward.cuts[name])
    assert f"for the key of {where} of step 7" in str(error)


def test_a_cut_of_nothing_has_no_gradient(hand):
    cuts = {
        "wide": Cut(np.zeros((2, 2, 1), np.float32)),
        "rows": Cut(np.zeros((2, 2, 3), np.float32)),
        "rows.unpooled(seen)": Cut(np.zeros((0, 3), np.float32), np.zeros(3, np.int64)),
    }
    model, dense = build()
    find_embeddings(model)
    batch = without_keys(batch_of({"user": [[1], [2]]}, label=[1, 0]))
    assert dense.train(0, batch, cuts).gradients.keys() == {"wide", "rows"}
