"""EpochMetrics: loss and AUC of the epoch in progress, which a checkpoint takes along."""

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.metrics import StreamingAuc

__all__ = ["EpochMetrics"]


class EpochMetrics:
    """Averages loss and AUC over the samples of an epoch. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_samples = 0
        self._loss_sum = 0.0
        self._auc: StreamingAuc | None = StreamingAuc()

    def count(
        self, loss: float, labels: NDArray[np.float32], probabilities: NDArray[np.float32]
    ) -> float:
        """Counts one step: its mean loss, labels `[batch]` and probabilities `[batch]`.

        Returns:
            The mean loss over all samples so far.
        """
        with self._lock:
            self._num_samples += len(labels)
            self._loss_sum += loss * len(labels)
            if self._auc is not None:
                if np.all((labels == 0) | (labels == 1)):
                    self._auc.add(labels, probabilities)
                else:  # a regression has no AUC
                    self._auc = None
            return self._loss_sum / self._num_samples

    def loss(self) -> float | None:
        """Returns the mean over samples, None before the first."""
        with self._lock:
            return self._loss_sum / self._num_samples if self._num_samples else None

    def auc(self) -> float | None:
        """Returns the AUC, None where it is undefined."""
        with self._lock:
            return None if self._auc is None else self._auc.value()

    def plus(self, other: "EpochMetrics") -> "EpochMetrics":
        """Returns metrics of the samples of both."""
        both, theirs = EpochMetrics.of_state(self.state()), EpochMetrics.of_state(other.state())
        both._num_samples += theirs._num_samples
        both._loss_sum += theirs._loss_sum
        if both._auc is None or theirs._auc is None:
            both._auc = None
        else:
            both._auc.merge(theirs._auc)
        return both

    def state(self) -> dict[str, NDArray[Any]]:
        """Returns what was counted as arrays, by name; the histogram's empty bins are left out."""
        with self._lock:
            state: dict[str, NDArray[Any]] = {
                "num_samples": np.array(self._num_samples, np.int64),
                "loss_sum": np.array(self._loss_sum, np.float64),
            }
            if self._auc is not None:
                counts = self._auc.counts()
                bins = np.flatnonzero(counts.any(axis=0))
                state["num_bins"] = np.array(counts.shape[1], np.int64)
                state["bins"], state["counts"] = bins, counts[:, bins]
            return state

    @staticmethod
    def of_state(state: Mapping[str, NDArray[Any]]) -> "EpochMetrics":
        """Returns metrics that go on where `state()` was taken."""
        metrics = EpochMetrics()
        metrics._num_samples = int(state["num_samples"])
        metrics._loss_sum = float(state["loss_sum"])
        metrics._auc = None
        if "bins" in state:
            counts = np.zeros((2, int(state["num_bins"])), np.int64)
            counts[:, state["bins"]] = state["counts"]
            metrics._auc = StreamingAuc.of_counts(counts)
        return metrics
