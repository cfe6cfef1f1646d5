"""Synthetic clicks have the published shape, and a best prediction that is known."""

import itertools
from collections import Counter

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from hetero_pipe.data import Reader, synthetic_criteo
from hetero_pipe.data.criteo import categories, counts
from hetero_pipe.errors import ConfigError
from hetero_pipe.metrics import auc, log_loss

SMALL = {"num_samples": 20_000, "batch_size": 3000, "scale": 1e-3}


def bits(batches):
    return [
        (
            batch.dense.tobytes(),
            batch.label.tobytes(),
            [bags.keys.tobytes() for bags in batch.bags.values()],
        )
        for batch in batches
    ]


def labels_of(reader):
    return np.concatenate([batch.label for batch in reader.batches(0)])


def num_distinct(batch):
    return sum(len(np.unique(bags.keys)) for bags in batch.bags.values())


@pytest.fixture(scope="module")
def full():
    """200,000 samples at full size, in one batch each 4,096."""
    return list(synthetic_criteo(num_samples=200_000).batches(0))


def test_columns_are_criteos():
    reader: Reader = synthetic_criteo(num_samples=10)
    (batch,) = reader.batches(0)
    assert reader.slots == tuple(f"C{i}" for i in range(1, 27)) == tuple(batch.bags)
    assert reader.dense == tuple(f"I{i}" for i in range(1, 14)) == batch.dense_names
    assert batch.size == 10
    assert all(bags.offsets is None for bags in batch.bags.values())


def test_a_batch_holds_as_many_distinct_keys_as_one_of_criteo(full):
    # 22,813 of 106,496 in the rows to which the exponents were fitted.
    found = [num_distinct(batch) for batch in full[:-1]]
    assert abs(np.mean(found) / 22_813 - 1) < 0.02


def test_terabyte_has_its_own_cardinalities():
    (batch,) = synthetic_criteo(num_samples=4096, dataset="terabyte").batches(0)
    assert num_distinct(batch) != pytest.approx(22_813, rel=0.02)
    for dataset, total in (("kaggle", 33_762_577), ("terabyte", 187_767_399)):
        assert sum(each.cardinality for each in categories(dataset, 1.0)) == total


def test_labels_have_criteos_rate(full):
    rate = np.concatenate([batch.label for batch in full]).mean()
    assert abs(rate - 0.256) < 0.004


def test_integers_are_missing_as_often_as_criteos_and_have_their_size():
    reader = synthetic_criteo(num_samples=100_000, log_dense=False, batch_size=100_000)
    rows = next(reader.table.source.chunks()).rows
    (batch,) = reader.batches(0)
    for i, count in enumerate(counts()):
        column = rows.column(count.name)
        assert abs(column.null_count / rows.num_rows - count.missing) < 0.015
        present = batch.dense[:, i].sum() / (1 - count.missing) / batch.size
        assert present == pytest.approx(count.mean, rel=0.15)
        # Heavy tails: the largest of 100,000 lies far out.
        assert batch.dense[:, i].max() > count.mean + 5 * count.deviation


def test_cardinalities_scale_down_to_three():
    reader = synthetic_criteo(num_samples=50_000, batch_size=50_000, scale=1e-9)
    (batch,) = reader.batches(0)
    assert all(len(np.unique(bags.keys)) <= 3 for bags in batch.bags.values())
    assert len(np.unique(batch.bags["C3"].keys)) == 3


def test_hot_values_are_scattered_and_the_same_for_every_seed():
    def hottest(seed):
        source = synthetic_criteo(num_samples=10_000, seed=seed).table.source
        texts = next(source.chunks()).rows.column("C3").to_pylist()
        return [int(text, 16) for text, _ in Counter(texts).most_common(4)]

    first = hottest(0)
    assert hottest(1) == first
    assert np.abs(np.diff(first)).min() > 2**20


def test_equal_arguments_give_equal_batches_and_every_epoch_is_alike():
    reader = synthetic_criteo(**SMALL)
    expected = bits(reader.batches(0))
    assert bits(synthetic_criteo(**SMALL).batches(0)) == expected
    assert bits(reader.batches(3)) == expected
    assert bits(reader.in_order()) == expected
    assert bits(synthetic_criteo(**SMALL, seed=1).batches(0)) != expected


def test_a_resumed_reader_goes_on_where_it_stood():
    reader = synthetic_criteo(**SMALL)
    expected = bits(reader.batches(0))
    for skip in (1, 5, 6, 7, 100):
        assert bits(reader.batches(1, skip=skip)) == expected[skip:]


def test_a_smaller_reader_reads_the_first_samples():
    large, small = synthetic_criteo(**SMALL), synthetic_criteo(**{**SMALL, "num_samples": 9000})
    assert bits(small.batches(0)) == bits(itertools.islice(large.batches(0), 3))


def test_a_split_shares_out_the_samples():
    reader = synthetic_criteo(**SMALL)
    train, evaluation = reader.split(0.2)
    sizes = [len(labels_of(each)) for each in (train, evaluation)]
    assert sum(sizes) == 20_000
    assert abs(sizes[1] / 20_000 - 0.2) < 0.02
    inner = evaluation.split(0.5)
    assert sum(len(labels_of(each)) for each in inner) == sizes[1]


# ------------------------------------------------------------------ what is planted


@pytest.mark.parametrize("part", [0, 1])
def test_probabilities_are_those_of_the_samples_of_either_side(part):
    side = synthetic_criteo(**SMALL).split(0.3)[part]
    labels, probabilities = labels_of(side), list(side.probabilities())
    assert [len(each) for each in probabilities] == [batch.size for batch in side.batches(0)]
    probabilities = np.concatenate(probabilities)
    best = side.best()
    assert best.num_samples == len(labels)
    assert best.label_rate == pytest.approx(labels.mean())
    assert best.auc == pytest.approx(auc(labels, probabilities), abs=1e-4)
    assert best.log_loss == pytest.approx(log_loss(labels, probabilities), abs=1e-6)
    resumed = np.concatenate(list(side.probabilities(skip=1)))
    assert resumed.tobytes() == probabilities[3000:].tobytes()


def test_probabilities_are_calibrated():
    reader = synthetic_criteo(num_samples=200_000, scale=1e-3, batch_size=200_000)
    labels, (probabilities,) = labels_of(reader), reader.probabilities()
    order = np.argsort(probabilities)
    for rows in np.array_split(order, 10):
        expected = probabilities[rows].mean()
        error = (expected * (1 - expected) / len(rows)) ** 0.5
        assert abs(labels[rows].mean() - expected) < 4 * error


def test_signal_sets_how_good_the_best_prediction_is():
    found = [synthetic_criteo(**SMALL, signal=signal).best().auc for signal in (0, 0.7, 1.4, 4)]
    assert abs(found[0] - 0.5) < 0.02
    assert 0.65 < found[1] < 0.73
    assert 0.79 < found[2] < 0.83
    assert found[3] > 0.93


def test_a_linear_model_finds_much_of_what_is_planted_and_not_more():
    reader = synthetic_criteo(num_samples=30_000, scale=1e-9, batch_size=30_000)
    (batch,) = reader.batches(0)
    columns = [batch.dense, batch.dense == 0]
    for bags in batch.bags.values():
        columns += [bags.keys[:, None] == np.unique(bags.keys)[None, :]]
    x, train, held = (
        np.concatenate(columns, axis=1, dtype=np.float64),
        slice(0, 20_000),
        slice(20_000, None),
    )
    model = LogisticRegression(solver="newton-cholesky", C=0.1).fit(x[train], batch.label[train])
    (probabilities,) = reader.probabilities()
    best = auc(batch.label[held], probabilities[held])
    found = auc(batch.label[held], model.decision_function(x[held]))
    assert best - 0.08 < found < best


@pytest.mark.parametrize(
    "options",
    [
        {"num_samples": 0},
        {"dataset": "avazu"},
        {"scale": 0},
        {"scale": float("inf")},
        {"signal": -1},
        {"signal": float("nan")},
        {"seed": -1},
        {"batch_size": 0},
    ],
    ids=str,
)
def test_arguments_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        synthetic_criteo(**{"num_samples": 10, **options})
