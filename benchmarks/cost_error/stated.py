"""A model's tables in front of a device that takes a stated time a batch and computes nothing."""

import sys
from pathlib import Path

import paddle
from paddle import nn

sys.path.append(str(Path(__file__).parents[1] / "emulated_device"))

import emulated

from hetero_pipe.nn import find_embeddings

NAME = "emulated:0"


class _Kernel(paddle.autograd.PyLayer):
    """What the Embeddings gave to logits `[batch]` of zero; gradients are constants, later."""

    @staticmethod
    def forward(ctx, model, batch_size, *found):
        ctx.model, ctx.shapes = model, [tuple(each.shape) for each in found]
        return paddle.zeros([batch_size])

    @staticmethod
    def backward(ctx, _):
        emulated.compute(paddle.device.current_stream(NAME), ctx.model.seconds)
        return tuple(ctx.model.constant(shape) for shape in ctx.shapes)


class Stated(nn.Layer):
    """The Embeddings of a model, and gradients for them `seconds` after a batch.

    What a device would do between is stated, not computed: pooling, the model,
    the optimizer of its dense part.

    Args:
        model: Whose Embeddings they are.
        seconds: Of the device a batch.
        is_pooled: Whether it takes rows pooled, as a dense worker is sent them; else
            it takes each distinct row once, and nothing is gathered on the device.
    """

    def __init__(self, model: nn.Layer, seconds: float, *, is_pooled: bool) -> None:
        super().__init__()
        self._tables = find_embeddings(model)
        for name, layer in self._tables.items():
            self.add_sublayer(name, layer)
        self.seconds = seconds
        self._is_pooled = is_pooled
        # Not as attributes: a layer takes them for buffers, which each step would save.
        self._constants: dict[tuple[int, ...], list[paddle.Tensor]] = {}

    def constant(self, shape: tuple[int, ...]) -> paddle.Tensor:
        """Returns the gradient of a shape: the first rows of one that is made once, or seldom.

        Batches differ by their distinct rows. A constant for each number of them would be
        as many as there are batches, and what a device computes gradients in is one.
        """
        num_rows, *row = shape
        held = self._constants.setdefault(tuple(row), [])
        if not held or held[0].shape[0] < num_rows:
            held[:] = [paddle.full([num_rows + num_rows // 4, *row], 1e-4)]
        return held[0]._slice(0, num_rows)  # shares its memory: no kernel, no copy

    def forward(self, batch):  # as hp.Trainer calls it
        """Returns logits `[batch]`."""
        found = []
        for name, layer in self._tables.items():
            if not self._is_pooled:
                found.append(batch.pulled[name].rows)
                continue
            found += [layer(batch)] if layer.is_pooled else []
            found += [layer.unpooled(batch, slot).rows for slot in layer.unpooled_slots]
        return _Kernel.apply(self, batch.size, *found)
