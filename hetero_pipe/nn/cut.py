"""SparseStep: the part of a step before the cut, pooling, and its backward after it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.data import Batch, Cut
from hetero_pipe.nn.batch import PulledRows, TensorBatch, cut_name
from hetero_pipe.nn.device import Device
from hetero_pipe.nn.embedding import Embedding
from hetero_pipe.nn.input import TableRows

__all__ = ["SparseForward", "SparseStep"]


@dataclass(frozen=True, eq=False)
class SparseForward:
    """What a forward of the sparse part gave; it holds the way back.

    Attributes:
        cuts: By name.
        outputs: The tensors of these.
        rows: By table: float32 `[u, dim]`, the leaves they come from.
    """

    cuts: Mapping[str, Cut]
    outputs: Mapping[str, paddle.Tensor]
    rows: Mapping[str, paddle.Tensor]


class SparseStep:
    """Gathers and pools what a model's Embeddings return, on the CPU. Thread safe.

    ::

        rows [u, dim] ──Embedding──▶ cuts ─ ─ ▶ dense worker: the model, from its Embeddings on
                      ◀─backward──  gradients ◀ ─ ─

    A cut is the pooled rows of an Embedding, or the rows of a slot with
    `pooling=None`. It is made by the very layer that the whole model has, and its
    gradient goes back through it, so that the two parts do what the whole does:
    bit for bit, where the model reads each cut once.

    Args:
        embeddings: Of the model, by table.
    """

    def __init__(self, embeddings: Mapping[str, Embedding]) -> None:
        self._embeddings = embeddings
        self._device = Device("cpu")
        # One thread sends a batch while another takes the gradients of the one before. Paddle's
        # autograd is not made for two at once; pooling is a small part of a step.
        self._lock = threading.Lock()

    def forward(
        self, batch: Batch, tables: Mapping[str, TableRows], *, with_gradient: bool
    ) -> SparseForward:
        """Returns the cuts of a batch whose rows were pulled.

        Args:
            batch: The samples.
            tables: The rows of each table.
            with_gradient: Whether `backward` will be called.
        """
        with self._lock, paddle.set_grad_enabled(with_gradient):
            self._device.enter()
            pulled = {}
            for table, found in tables.items():
                leaf = self._device.to_tensor(found.rows)
                leaf.stop_gradient = not with_gradient
                pulled[table] = PulledRows(leaf, found.lookup)
            inputs = TensorBatch(batch, pulled, self._device)
            cuts: dict[str, Cut] = {}
            outputs: dict[str, paddle.Tensor] = {}
            for table, layer in self._embeddings.items():
                if layer.is_pooled:
                    name = cut_name(table)
                    outputs[name] = layer(inputs)
                    cuts[name] = Cut(self._device.to_array(outputs[name]))
                for slot in layer.unpooled_slots:
                    name = cut_name(table, slot)
                    bags = layer.unpooled(inputs, slot)
                    outputs[name] = bags.rows
                    offsets = self._device.to_array(bags.offsets)
                    cuts[name] = Cut(self._device.to_array(bags.rows), offsets)
        return SparseForward(cuts, outputs, {name: rows.rows for name, rows in pulled.items()})

    def backward(
        self, forward: SparseForward, gradients: Mapping[str, NDArray[np.float32]]
    ) -> dict[str, NDArray[np.float32]]:
        """Returns the gradient of the rows of each table, `[u, dim]`; the way back is then gone.

        Args:
            forward: Of the batch, with gradient.
            gradients: Of its cuts, of their shapes. A cut that the loss does not
                depend on is absent, and so is then a table.
        """
        with self._lock:
            self._device.enter()
            # An Embedding without keys gives zeros, from which nothing leads back.
            names = [
                n for n, t in forward.outputs.items() if n in gradients and not t.stop_gradient
            ]
            if names:
                paddle.autograd.backward(
                    [forward.outputs[name] for name in names],
                    [self._device.to_tensor(gradients[name]) for name in names],
                )
            return {
                table: self._device.to_array(rows.grad)
                for table, rows in forward.rows.items()
                if rows.grad is not None
            }
