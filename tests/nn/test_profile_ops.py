"""Rates of ops: of the very bytes that a graph of the same op counts."""

import paddle
import pytest

from hetero_pipe.cluster import Sampling
from hetero_pipe.nn import OP_KINDS, BatchSpec, Device, Embedding, profile_ops, trace

SAMPLING = Sampling(num_samples=2, min_seconds=1e-4, is_quick=True)
BATCH = 1024  # the larger one of a quick profile


class Pooled(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.embedding = Embedding([f"s{i}" for i in range(26)], dim=16)
        self.head = paddle.nn.Linear(26 * 16, 400)

    def forward(self, batch):
        hidden = paddle.nn.functional.relu(self.head(self.embedding(batch).flatten(1)))
        return hidden.sum(axis=1)


@pytest.fixture(scope="module")
def rates():
    return list(profile_ops("here", Device("cpu"), SAMPLING))


def test_each_kind_and_what_a_step_adds_is_measured(rates):
    assert {rate.kind for rate in rates if rate.what == "op"} == set(OP_KINDS)
    assert {rate.side for rate in rates if rate.what == "dense_step"} == {"worker"}
    others = [(rate.what, rate.size) for rate in rates if rate.what != "op"]
    assert others == [
        ("linear", 64),
        ("linear", BATCH),
        ("launch", None),
        ("dense_step", 16 * 16 * 4),
        ("dense_step", 16384 * 16 * 4),
    ]


@pytest.mark.parametrize("kind", ["pool", "relu", "add"])
def test_a_size_is_the_bytes_that_a_graph_counts(rates, kind):
    """Of a model with such an op; the pool's gradient aside, rows are a third of the keys."""
    graph = trace(Pooled(), BatchSpec())
    graph = graph.with_data(distinct={"embedding": (BATCH * 26 // 3) / (BATCH * 26)})
    op = next(op for op in graph.ops if op.kind == kind)
    rate = max((rate for rate in rates if rate.kind == kind), key=lambda rate: rate.size)
    counted = (op.forward.bytes + op.backward.bytes).at(graph.values(BATCH))
    assert rate.size == pytest.approx(counted, rel=1e-6)
