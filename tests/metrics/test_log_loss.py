import numpy as np
import pytest
import sklearn.metrics

from hetero_pipe.errors import ConfigError
from hetero_pipe.metrics import log_loss


def test_loss_is_that_of_sklearn():
    rng = np.random.default_rng(0)
    labels = (rng.random(5000) < 0.3).astype(np.float32)
    probabilities = rng.random(5000)
    expected = sklearn.metrics.log_loss(labels, probabilities)
    assert log_loss(labels, probabilities) == pytest.approx(expected, rel=1e-12)


def test_loss_of_saturated_float32_answers_is_that_of_sklearn():
    labels = np.array([1, 0, 1, 0], np.float32)
    probabilities = np.array([0, 1, 1, 0], np.float32)
    expected = sklearn.metrics.log_loss(labels, probabilities)
    assert log_loss(labels, probabilities) == pytest.approx(expected, rel=1e-6)


def test_loss_does_not_depend_on_how_answers_are_stored():
    answers = np.array([0.25, 1.0, 0.0], np.float32)
    assert log_loss([1, 0, 1], answers) == log_loss([1, 0, 1], answers.astype(np.float64))


def test_wrong_samples_are_refused():
    with pytest.raises(ConfigError, match="a mean loss needs a sample, got none"):
        log_loss([], [])
    with pytest.raises(ConfigError, match=r"got -0\.5 at sample 0; apply the sigmoid"):
        log_loss([1, 0], [-0.5, 0.5])
    with pytest.raises(ConfigError, match=r"a label is 0 or 1, got 0\.5 at sample 0"):
        log_loss([0.5], [0.5])
