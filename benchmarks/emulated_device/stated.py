"""A model whose kernels take a stated time and compute nothing: all but them is real."""

from collections.abc import Sequence

import emulated
import paddle
from paddle import nn

import hetero_pipe as hp

NAME, DIM, BATCH = "emulated:0", 16, 4096


class _Kernel(paddle.autograd.PyLayer):
    """What an Embedding gave to logits `[batch]` of zero; gradients are a constant, later."""

    @staticmethod
    def forward(ctx, found, model, batch_size):
        ctx.model, ctx.shape = model, tuple(found.shape)
        return paddle.zeros([batch_size])

    @staticmethod
    def backward(ctx, _):
        emulated.compute(paddle.device.current_stream(NAME), ctx.model.seconds)
        return ctx.model.gradients_of(ctx.shape)


class StatedTime(nn.Layer):
    """Takes what an Embedding gives and gives back gradients `seconds` later.

    Args:
        slots: Categorical columns.
        seconds: Of the device a batch.
        is_pooled: Whether it takes rows pooled, as a dense worker is sent them; else
            it takes each distinct row once, and nothing is gathered on the device.
    """

    def __init__(self, slots: Sequence[str], seconds: float, *, is_pooled: bool = False) -> None:
        super().__init__()
        self.embedding = hp.Embedding(slots, dim=DIM, name="embedding")
        self.seconds = seconds
        self._is_pooled = is_pooled
        # Not as an attribute: a layer takes it for a buffer, which each step would save.
        self._gradients: dict[tuple[int, ...], list[paddle.Tensor]] = {}

    def gradients_of(self, shape: tuple[int, ...]) -> paddle.Tensor:
        """Returns a constant of a shape, which is made once."""
        if shape not in self._gradients:
            self._gradients[shape] = [paddle.full(shape, 1e-4)]
        return self._gradients[shape][0].detach()

    def forward(self, batch):  # as hp.Trainer calls it
        """Returns logits `[batch]`."""
        # Rows are not what a model takes: hp.Embedding pools them.
        found = self.embedding(batch) if self._is_pooled else batch.pulled["embedding"].rows
        return _Kernel.apply(found, self, batch.size)
