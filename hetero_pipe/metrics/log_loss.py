"""How surprised the predictions are by the labels."""

import numpy as np
from numpy.typing import ArrayLike

from hetero_pipe.errors import ConfigError
from hetero_pipe.metrics.sample import check_probabilities, check_samples

__all__ = ["log_loss"]

# Models answer in float32, whose sigmoid is 1 from a logit of 17 on: the loss of
# such an answer is unknown, not infinite. One bound for every input dtype keeps
# the metric of a model the same however its answers were stored.
_EPSILON = float(np.finfo(np.float32).eps)


def log_loss(labels: ArrayLike, probabilities: ArrayLike) -> float:
    """Returns the mean negative log-likelihood of the labels, in nats.

    Probabilities are kept within 2**-23 of 0 and 1, so one sample costs at most
    15.94.

    Args:
        labels: 0 or 1, `[n]`.
        probabilities: That the label is 1, in [0, 1], `[n]`.

    Returns:
        The mean over samples, computed in float64.

    Raises:
        ConfigError: The shapes differ, there is no sample, a label is neither 0
            nor 1, or a probability is out of range.

    >>> round(log_loss([1, 0], [0.5, 0.25]), 6)
    0.490415
    """
    is_positive, values = check_samples(labels, probabilities)
    check_probabilities(values)
    if len(values) == 0:
        raise ConfigError("a mean loss needs a sample, got none; add labels")
    likelihoods = np.where(is_positive, values, 1 - values)
    return float(-np.log(np.clip(likelihoods, _EPSILON, 1 - _EPSILON)).mean())
