"""CutBatch and CutResult: what goes to a dense worker and what comes back, as messages too."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hetero_pipe.data import Batch, Cut
from hetero_pipe.pipeline.wire import (
    floats_from_bytes,
    read_cut,
    stage_pb2,
    write_cut,
)

__all__ = ["CutBatch", "CutResult"]


@dataclass(frozen=True, eq=False)
class CutBatch:
    """A batch as a dense worker gets it.

    Attributes:
        step: Of the sparse worker that sends it.
        is_training: Whether gradients are wanted.
        samples: Dense columns and labels; without keys.
        cuts: By name.
        is_stopping: Whether, in `sync`, its sender takes no step more: then
            nobody takes this one.
    """

    step: int
    is_training: bool
    samples: Batch
    cuts: Mapping[str, Cut]
    is_stopping: bool = False

    def write(self, message: stage_pb2.Batch, wire: str) -> None:
        """Writes it into an empty message, the cuts in one of `plan.WIRES`.

        Made in its place, as a message that is made before is copied there.
        """
        samples = self.samples
        message.step = self.step
        message.training = self.is_training
        message.is_stopping = self.is_stopping
        message.size = samples.size
        message.dense = samples.dense.tobytes()
        message.dense_names.extend(samples.dense_names)
        if samples.label is not None:
            message.label = samples.label.tobytes()
        for name, cut in self.cuts.items():
            write_cut(message.cuts.add(name=name), cut, wire)

    @staticmethod
    def from_message(message: stage_pb2.Batch) -> "CutBatch":
        """Returns the batch of a message; its arrays start at a multiple of 64 bytes.

        Raises:
            ValueError: Data and sizes disagree.
        """
        size, names = message.size, tuple(message.dense_names)
        has_label = message.HasField("label")
        samples = Batch(
            bags={},
            dense=floats_from_bytes(message.dense, (size, len(names))),
            label=floats_from_bytes(message.label, (size,)) if has_label else None,
            dense_names=names,
        )
        cuts = {cut.name: read_cut(cut) for cut in message.cuts}
        return CutBatch(message.step, message.training, samples, cuts, message.is_stopping)


@dataclass(frozen=True, eq=False)
class CutResult:
    """What a dense worker made of a batch.

    Attributes:
        step: Of the batch.
        loss: Mean of the batch, before the step; 0 of a prediction.
        probabilities: float32 `[batch]`, before the step.
        gradients: Of training: the loss by each cut, of its shape. One that the
            loss does not depend on is absent.
        is_over: Whether, in `sync`, the step was not taken because no sparse
            worker has a sample more.
    """

    step: int
    loss: float
    probabilities: NDArray[np.float32]
    gradients: Mapping[str, NDArray[np.float32]]
    is_over: bool = False

    def write(self, message: stage_pb2.Result, wire: str) -> None:
        """Writes it into an empty message, the gradients in one of `plan.WIRES`."""
        message.step = self.step
        message.loss = self.loss
        message.probabilities = self.probabilities.tobytes()
        message.is_over = self.is_over
        for name, gradient in self.gradients.items():
            write_cut(message.gradients.add(name=name), Cut(gradient), wire)

    @staticmethod
    def from_message(message: stage_pb2.Result) -> "CutResult":
        """Returns the result of a message; its arrays start at a multiple of 64 bytes.

        Raises:
            ValueError: Data and sizes disagree.
        """
        return CutResult(
            message.step,
            message.loss,
            floats_from_bytes(message.probabilities, (len(message.probabilities) // 4,)),
            {cut.name: read_cut(cut).values for cut in message.gradients},
            message.is_over,
        )
