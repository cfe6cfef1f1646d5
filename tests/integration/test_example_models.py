"""The models of examples/ctr: each learns what its parts are for."""

import sys
from pathlib import Path

import numpy as np
import paddle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hetero_pipe as hp

EXAMPLE = Path(__file__).parents[2] / "examples" / "ctr"


@pytest.fixture(scope="module")
def example():
    """The example's modules, as train.py sees them."""
    added = [str(EXAMPLE), str(EXAMPLE / "data")]
    sys.path[:0] = added
    try:
        import history
        import models

        yield models.MODELS, history.earlier_values
    finally:
        sys.path[:] = [path for path in sys.path if path not in added]
        for name in [n for n in sys.modules if n.partition(".")[0] in ("models", "history")]:
            del sys.modules[name]


def write(folder, columns):
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def fit(model, path, *, slots, dense=(), shared_keys=None, epochs=4):
    """Trains; returns the AUC on held-out rows."""
    reader = hp.read_parquet(
        path, slots=slots, dense=dense, batch_size=128, shuffle=10_000, shared_keys=shared_keys
    )
    train, evaluation = reader.split(0.2)
    optimizer = paddle.optimizer.Adam(2e-3, parameters=model.parameters())
    with hp.Trainer(model, optimizer=optimizer) as trainer:
        trainer.fit(train, epochs=epochs, callbacks=[])
        return trainer.evaluate(evaluation).auc


@pytest.mark.parametrize("name", ["dcn", "dlrm"])
@pytest.mark.parametrize("num_dense", [0, 2])
def test_products_of_slots_and_of_dense_columns_are_learned(name, num_dense, example, tmp_path):
    """The label is a product of signs: neither slot says anything alone."""
    rng = np.random.default_rng(0)
    size = 6_000
    user, item, color = rng.integers(0, 30, (3, size))
    signs = np.sign(np.random.default_rng(1).normal(size=(2, 30)))
    dense = rng.normal(size=(2, size))
    label = signs[0, user] * signs[1, item] > (0 if num_dense == 0 else dense[0])
    columns = {"user": user, "item": item, "color": color, "x": dense[0], "y": dense[1]}
    path = write(tmp_path, {**columns, "label": label})
    slots, names = ["user", "item", "color"], ["x", "y"][:num_dense]
    paddle.seed(0)
    model = example[0][name](slots, num_dense, dim=8, hidden=(32,))
    assert fit(model, path, slots=slots, dense=names) > 0.9


def test_dcn_is_parallel_or_stacked(example, tmp_path):
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 10, (2, 3_000))
    path = write(tmp_path, {"a": a, "b": b, "label": (a % 2) ^ (b % 2)})
    paddle.seed(0)
    model = example[0]["dcn"](["a", "b"], dim=8, hidden=(32,), is_stacked=True)
    # Two crosses of 16 to 16 and a deep network of 16 to 32 to 1: no logit beside it.
    sizes = [16 * 16 + 16, 16 * 16 + 16, 16 * 32 + 32, 32 + 1]
    assert sum(p.size for p in model.parameters()) == sum(sizes)
    assert fit(model, path, slots=["a", "b"], epochs=12) > 0.9


def histories(size):
    """The label is whether the item's color is that of most earlier items."""
    rng = np.random.default_rng(0)
    item = rng.integers(0, 40, size)
    taste = rng.integers(0, 2, size)
    lengths = rng.integers(0, 8, size)
    lengths[:200] = 0  # batches without any history, where the reader does not shuffle
    history = [
        (2 * rng.integers(0, 20, n) + (t ^ (rng.random(n) < 0.1))).tolist()
        for n, t in zip(lengths, taste, strict=True)
    ]
    label = np.where(lengths == 0, rng.random(size) < 0.5, item % 2 == taste)
    return {"item": item, "day": rng.integers(0, 7, size), "history": history, "label": label}


def test_din_learns_from_the_history_what_no_other_slot_says(example, tmp_path):
    path = write(tmp_path, histories(8_000))
    shared = {"history": "item"}
    scores = {}
    for name, slots, extra in (
        ("din", ["item", "day", "history"], {"target": "item"}),
        ("deepfm", ["item", "day"], {}),
    ):
        paddle.seed(0)
        model = example[0][name](["item", "day"], dim=8, hidden=(32,), **extra)
        keys = shared if name == "din" else None
        scores[name] = fit(model, path, slots=slots, shared_keys=keys)
    assert scores["din"] > 0.85
    assert scores["deepfm"] < 0.6  # chance


def test_din_takes_a_history_in_any_order_and_batches_without_any(example, tmp_path):
    columns = histories(600)
    paddle.seed(0)
    model = example[0]["din"](["item", "day"], target="item", dim=4, hidden=(8,))
    options = {"slots": ["item", "day", "history"], "shared_keys": {"history": "item"}}
    forward = hp.read_parquet(write(tmp_path, columns), batch_size=100, **options)
    backward = {**columns, "history": [keys[::-1] for keys in columns["history"]]}
    (tmp_path / "b").mkdir()
    reverse = hp.read_parquet(write(tmp_path / "b", backward), batch_size=100, **options)
    optimizer = paddle.optimizer.Adam(parameters=model.parameters())
    with hp.Trainer(model, optimizer=optimizer) as trainer:
        result = trainer.fit(forward, callbacks=[])
        assert np.isfinite(result.loss)
        # Items and histories share the 40 rows of the items; 7 are of days.
        assert trainer.num_rows() == {"embedding": 47}
        found, expected = trainer.predict(reverse), trainer.predict(forward)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_earlier_values_are_a_loops(example):
    rng = np.random.default_rng(3)
    groups, times, values = rng.integers(0, 5, 300), rng.integers(0, 60, 300), np.arange(300)
    found = example[1](*map(pa.array, (groups.astype(str), times, values)), last=4).to_pylist()
    for i in range(300):
        before = [j for j in range(300) if groups[j] == groups[i] and times[j] < times[i]]
        before.sort(key=lambda j: (times[j], j))
        assert found[i] == before[-4:]


@pytest.mark.parametrize("size", [0, 1])
def test_earlier_values_of_few_rows_are_none(size, example):
    column = pa.array([7] * size, pa.int64())
    found = example[1](column, column, column, last=4)
    assert found.to_pylist() == [[]] * size
