"""EpochMetrics of several workers are those of all their samples."""

import numpy as np
import pytest

from hetero_pipe.trainer.epoch import EpochMetrics


def counted(*batches):
    metrics = EpochMetrics()
    for loss, labels, probabilities in batches:
        metrics.count(loss, np.float32(labels), np.float32(probabilities))
    return metrics


BATCHES = [
    (0.5, [0, 1], [0.25, 0.75]),
    (0.25, [1, 1, 0, 0], [0.5, 0.125, 0.25, 0.75]),
    (1.0, [0], [0.5]),
]


@pytest.mark.parametrize("cut", range(4))
def test_metrics_of_two_shares_add_up(cut):
    whole = counted(*BATCHES)
    mine, theirs = counted(*BATCHES[:cut]), counted(*BATCHES[cut:])
    both = mine.plus(theirs)
    assert (both.loss(), both.auc()) == (whole.loss(), whole.auc())
    for name, array in whole.state().items():
        np.testing.assert_array_equal(both.state()[name], array)
    assert mine.loss() == counted(*BATCHES[:cut]).loss()  # as it was


def test_an_auc_that_one_has_not_nobody_has():
    regression = counted((1.0, [2.5], [0.5]))
    assert counted(*BATCHES).plus(regression).auc() is None
    assert regression.plus(counted(*BATCHES)).auc() is None
