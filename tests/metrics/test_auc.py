import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from hetero_pipe.errors import ConfigError
from hetero_pipe.metrics import StreamingAuc, auc


def samples(seed, n=5000):
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.25).astype(np.float32)
    probabilities = np.clip(rng.beta(2, 5, n) + 0.1 * labels, 0, 1).astype(np.float32)
    return labels, probabilities


def both_classes(pairs):
    return len({label for label, _ in pairs}) == 2


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(-3, 3)), min_size=2).filter(both_classes),
    st.sampled_from([np.float32, np.float64, np.int64]),
)
def test_auc_is_that_of_sklearn_with_ties(pairs, dtype):
    labels, scores = np.array(pairs).T
    labels, scores = labels.astype(np.float32), scores.astype(dtype)
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_auc_of_float32_probabilities_is_that_of_sklearn():
    labels, probabilities = samples(0)
    expected = roc_auc_score(labels, probabilities)
    assert auc(labels, probabilities) == pytest.approx(expected, abs=1e-12)


def test_auc_accepts_infinite_scores_and_boolean_labels():
    assert auc([False, True, True], [-np.inf, 0.0, np.inf]) == 1.0


@pytest.mark.parametrize("labels", [[], [0, 0], [1.0, 1.0]])
def test_auc_of_one_class_is_none(labels):
    scores = np.linspace(0, 1, len(labels))
    metric = StreamingAuc()
    metric.add(labels, scores)
    assert auc(labels, scores) is None
    assert metric.value() is None
    assert metric.error_bound() is None


@pytest.mark.parametrize("num_bins", [2, 10, 1000, 2**16])
def test_streaming_auc_is_within_its_bound(num_bins):
    labels, probabilities = samples(1)
    metric = StreamingAuc(num_bins)
    for start in range(0, len(labels), 700):
        metric.add(labels[start : start + 700], probabilities[start : start + 700])
    bound = metric.error_bound()
    assert abs(metric.value() - auc(labels, probabilities)) <= bound + 1e-12
    assert bound <= 2 / num_bins  # a beta's density is at most about 2.5


def test_streaming_auc_is_exact_where_no_bin_holds_two_scores():
    labels, _ = samples(2, n=512)
    probabilities = np.random.default_rng(2).permutation(512) / 512
    metric = StreamingAuc(512)
    metric.add(labels, probabilities)
    assert metric.error_bound() == 0
    assert metric.value() == pytest.approx(auc(labels, probabilities), abs=1e-15)


def test_merged_histograms_are_that_of_all_samples():
    labels, probabilities = samples(3)
    whole, left, right = StreamingAuc(), StreamingAuc(), StreamingAuc()
    whole.add(labels, probabilities)
    left.add(labels[:1234], probabilities[:1234])
    right.add(labels[1234:], probabilities[1234:])
    right.merge(left)
    assert right.value() == whole.value()


def test_histograms_of_different_bins_do_not_merge():
    with pytest.raises(ConfigError, match="equal bins, got num_bins=8 and 16"):
        StreamingAuc(8).merge(StreamingAuc(16))


def test_ends_of_the_range_are_counted():
    metric = StreamingAuc(4)
    metric.add([0, 1], [0.0, 1.0])
    assert metric.value() == 1.0


@pytest.mark.parametrize("measure", [auc, StreamingAuc().add])
def test_wrong_samples_are_refused(measure):
    with pytest.raises(ConfigError, match="a label is 0 or 1, got 2 at sample 1"):
        measure([0, 2], [0.1, 0.2])
    with pytest.raises(ConfigError, match="a score is a number, got nan at sample 1"):
        measure([0, 1], [0.1, np.nan])
    with pytest.raises(ConfigError, match=r"are \[n\], .* got \(2,\) and \(2, 1\); flatten them"):
        measure([0, 1], [[0.1], [0.2]])


def test_refused_samples_are_not_counted():
    metric = StreamingAuc()
    metric.add([0, 1], [0.2, 0.8])
    with pytest.raises(ConfigError, match=r"a probability is in \[0, 1\], got 1.5 at sample 1"):
        metric.add([1, 0], [0.1, 1.5])
    assert metric.value() == 1.0
    with pytest.raises(ConfigError, match="at least 2 bins, got num_bins=1"):
        StreamingAuc(1)
