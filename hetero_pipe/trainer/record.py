"""Record: what has been trained, added up."""

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.metrics import StreamingAuc

__all__ = ["Record"]


class Record:
    """Counts steps and samples, and averages loss and AUC over them.

    Attributes:
        num_steps: Counted.
        num_samples: Counted.
        seconds: They took; set by whoever measures.
        max_staleness: The most pushes that a pull missed; set likewise.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_samples = 0
        self.seconds = 0.0
        self.max_staleness = 0
        self._loss_sum = 0.0
        self._auc: StreamingAuc | None = StreamingAuc()

    def count(
        self, loss: float, labels: NDArray[np.float32], probabilities: NDArray[np.float32]
    ) -> None:
        """Counts one step: its mean loss, labels `[batch]` and probabilities `[batch]`."""
        self.num_steps += 1
        self.num_samples += len(labels)
        self._loss_sum += loss * len(labels)
        if self._auc is not None:
            if np.all((labels == 0) | (labels == 1)):
                self._auc.add(labels, probabilities)
            else:  # a regression has no AUC
                self._auc = None

    def add(self, other: "Record") -> None:
        """Adds the totals of another record; loss and AUC stay each record's own."""
        self.num_steps += other.num_steps
        self.num_samples += other.num_samples
        self.seconds += other.seconds
        self.max_staleness = max(self.max_staleness, other.max_staleness)

    def loss(self) -> float | None:
        """Returns the mean over samples, None before the first."""
        return self._loss_sum / self.num_samples if self.num_samples else None

    def auc(self) -> float | None:
        """Returns the AUC, None where it is undefined."""
        return None if self._auc is None else self._auc.value()

    def speed(self) -> float:
        """Returns samples per second."""
        return self.num_samples / self.seconds if self.seconds else 0.0
