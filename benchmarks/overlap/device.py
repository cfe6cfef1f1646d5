"""Devices that a machine without a GPU can stand in for.

A thread that sleeps holds no core, as one that waits for a GPU holds none. What
a GPU would compute is then not computed, so nothing is learned: this is for time
alone.
"""

import time
from collections.abc import Mapping

import paddle
from paddle import nn

import hetero_pipe as hp

DIM = 16


class _Asleep(paddle.autograd.PyLayer):
    """Rows `[u, dim]` to logits `[batch]` of zero, after a sleep; gradients are a constant."""

    @staticmethod
    def forward(ctx, rows, batch, seconds, gradients):
        ctx.gradients = gradients[: rows.shape[0]]
        time.sleep(seconds)
        return paddle.zeros([batch])

    @staticmethod
    def backward(ctx, _):
        return ctx.gradients


class SleepingDevice(nn.Layer):
    """Takes the rows of a batch and gives back gradients `seconds` later. Computes nothing.

    Args:
        slots: Categorical columns.
        num_keys: Keys of a batch, at most.
        seconds: Of sleep a batch.
    """

    def __init__(self, slots: tuple[str, ...], num_keys: int, seconds: float) -> None:
        super().__init__()
        self.embedding = hp.Embedding(slots, dim=DIM, name="embedding")
        # Not as an attribute: a layer takes it for a buffer, which each step would save.
        self._gradients = (paddle.full([num_keys, DIM], 1e-4),)
        self._seconds = seconds

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        """Returns logits `[batch]`."""
        rows = batch.pulled["embedding"].rows  # not what a model does: hp.Embedding pools them
        return _Asleep.apply(rows, len(batch["label"]), self._seconds, *self._gradients)


class SmallModel(nn.Layer):
    """Logistic regression on the embeddings, computed on the CPU, beside a sleep.

    Args:
        slots: Categorical columns.
        seconds: Of sleep a batch.
    """

    def __init__(self, slots: tuple[str, ...], seconds: float) -> None:
        super().__init__()
        self.embedding = hp.Embedding(slots, dim=DIM, name="embedding")
        self.linear = nn.Linear(len(slots) * DIM, 1)
        self._seconds = seconds

    def forward(self, batch: Mapping[str, paddle.Tensor]) -> paddle.Tensor:
        """Returns logits `[batch, 1]`."""
        time.sleep(self._seconds)
        return self.linear(self.embedding(batch).flatten(1))
