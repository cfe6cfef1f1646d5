"""What every metric asks of its arguments."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hetero_pipe.errors import ConfigError

__all__ = ["check_probabilities", "check_samples"]


def check_samples(
    labels: ArrayLike, scores: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Returns which samples are positive, bool `[n]`, and their scores, float64 `[n]`.

    Raises:
        ConfigError: The shapes are not both `[n]`, a label is neither 0 nor 1,
            or a score is NaN.
    """
    values, outputs = np.asarray(labels), np.asarray(scores, np.float64)
    if values.ndim != 1 or values.shape != outputs.shape:
        raise ConfigError(
            f"labels and scores are [n], one of each a sample, got {values.shape} "
            f"and {outputs.shape}; flatten them"
        )
    is_positive = values == 1
    _refuse(~(is_positive | (values == 0)), values, "a label is 0 or 1")
    _refuse(np.isnan(outputs), outputs, "a score is a number")
    return is_positive, outputs


def check_probabilities(scores: NDArray[np.float64]) -> None:
    """Checks that scores are probabilities.

    Raises:
        ConfigError: One is below 0 or above 1.
    """
    _refuse((scores < 0) | (scores > 1), scores, "a probability is in [0, 1]; apply the sigmoid")


# Generic over the element type: labels come as whatever numpy made of them.
def _refuse(is_wrong: NDArray[np.bool_], values: NDArray[np.generic], claim: str) -> None:
    if is_wrong.any():
        first = int(np.argmax(is_wrong))
        need, _, remedy = claim.partition("; ")
        raise ConfigError(
            f"{need}, got {values[first]} at sample {first}" + (f"; {remedy}" if remedy else "")
        )
