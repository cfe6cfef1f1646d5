"""How good predictions are: numbers from labels and scores, and nothing else.

A metric knows neither models nor readers, and computes in float64 whatever it is
given. One that the data leave undefined is None, never NaN.
"""

from hetero_pipe.metrics.auc import StreamingAuc, auc
from hetero_pipe.metrics.log_loss import log_loss

__all__ = ["StreamingAuc", "auc", "log_loss"]
