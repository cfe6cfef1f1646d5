"""DenseStep: forward, backward and the optimizer step of the dense part of a model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it
from numpy.typing import NDArray

from hetero_pipe.data import Batch, Lookup
from hetero_pipe.errors import ConfigError, NonFiniteError
from hetero_pipe.nn.batch import PulledRows, TensorBatch
from hetero_pipe.nn.device import Device

__all__ = ["DenseStep", "Loss", "StepOutput", "TableRows"]

Loss = Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]
"""Of logits `[batch]` and labels `[batch]`, a scalar."""


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of one table for one batch.

    Attributes:
        rows: float32 `[u, dim]`, each distinct row once.
        lookup: Where each slot's rows lie among them.
    """

    rows: NDArray[np.float32]
    lookup: Lookup


@dataclass(frozen=True, eq=False)
class StepOutput:
    """What a dense step gives.

    Attributes:
        gradients: By table: float32 `[u, dim]`, of the loss by each row. A
            table that the loss does not depend on is absent.
        loss: Of the batch, before the step.
        probabilities: float32 `[batch]`, before the step.
    """

    gradients: Mapping[str, NDArray[np.float32]]
    loss: float
    probabilities: NDArray[np.float32]


class DenseStep:
    """Runs a model on batches whose rows were pulled. Used by one thread at a time.

    Args:
        model: Called with a batch, returns logits `[batch]` or `[batch, 1]`.
        loss: None is binary cross-entropy with logits.
        optimizer: Paddle's, of the model's parameters; None trains rows alone.
            Its learning-rate scheduler, if it has one, is stepped once a step.
        device: Where the model is.
    """

    def __init__(
        self, model: paddle.nn.Layer, *, loss: Loss | None, optimizer: Any, device: Device
    ) -> None:
        self._model = model
        self._loss = loss or F.binary_cross_entropy_with_logits
        self._optimizer = optimizer
        self._device = device
        self.num_steps = 0  # that changed the dense parameters

    def train(self, step: int, batch: Batch, tables: Mapping[str, TableRows]) -> StepOutput:
        """Runs one step: forward, backward, check, optimizer.

        Raises:
            ConfigError: The batch has no labels, or the model's output another shape.
            NonFiniteError: A gradient or the loss is NaN or infinite. No
                parameter has changed.
        """
        if batch.label is None:
            raise ConfigError("training needs labels, got a reader with label=None")
        self._device.enter()
        self._model.train()
        inputs = self._to_tensors(batch, tables, with_gradient=True)
        logits = self._logits(inputs)
        loss = self._loss(logits, inputs["label"])
        loss.backward()
        value = float(loss)
        gradients = {
            name: self._device.to_array(pulled.rows.grad)
            for name, pulled in inputs.pulled.items()
            if pulled.rows.grad is not None
        }
        self._check_finite(step, value, gradients, tables)
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.clear_grad()
            _step_scheduler(self._optimizer)
        self.num_steps += 1
        return StepOutput(gradients, value, self._probabilities(logits))

    def predict(self, batch: Batch, tables: Mapping[str, TableRows]) -> NDArray[np.float32]:
        """Returns the probability of each sample, `[batch]`; changes nothing."""
        self._device.enter()
        self._model.eval()
        with paddle.no_grad():
            inputs = self._to_tensors(batch, tables, with_gradient=False)
            return self._probabilities(self._logits(inputs))

    def _to_tensors(
        self, batch: Batch, tables: Mapping[str, TableRows], *, with_gradient: bool
    ) -> TensorBatch:
        pulled = {}
        for name, table in tables.items():
            rows = self._device.to_tensor(table.rows)
            rows.stop_gradient = not with_gradient
            pulled[name] = PulledRows(rows, table.lookup)
        return TensorBatch(batch, pulled, self._device)

    def _logits(self, inputs: TensorBatch) -> paddle.Tensor:
        logits = self._model(inputs)
        shape = list(getattr(logits, "shape", []))
        if shape not in ([inputs.size], [inputs.size, 1]):
            raise ConfigError(
                f"a model returns logits [batch] or [batch, 1], batch={inputs.size}, got {shape} "
                f"from {type(self._model).__name__}.forward"
            )
        return logits.reshape([inputs.size])

    def _probabilities(self, logits: paddle.Tensor) -> NDArray[np.float32]:
        return self._device.to_array(F.sigmoid(logits.detach()))

    def _check_finite(
        self,
        step: int,
        loss: float,
        gradients: Mapping[str, NDArray[np.float32]],
        tables: Mapping[str, TableRows],
    ) -> None:
        """Refuses a step before any of it is applied, dense or sparse."""
        remedy = "nothing of this step was applied; lower the learning rate or check the data"
        for name, gradient in gradients.items():
            # The sum is finite only if no element is NaN or infinite, and costs no array.
            if np.isfinite(gradient.sum(dtype=np.float64)):
                continue
            rows = np.flatnonzero(~np.isfinite(gradient).all(axis=1))
            if len(rows):
                self._clear_gradients()
                slot, sample = tables[name].lookup.first_use(int(rows[0]))
                raise NonFiniteError(
                    f"gradients must be finite, got {gradient[rows[0]].tolist()} in table {name!r} "
                    f"for the key of slot {slot!r} in sample {sample} of step {step}; {remedy}"
                )
        if not np.isfinite(loss):
            self._clear_gradients()
            raise NonFiniteError(f"the loss must be finite, got {loss} at step {step}; {remedy}")

    def _clear_gradients(self) -> None:
        if self._optimizer is not None:
            self._optimizer.clear_grad()


def _step_scheduler(optimizer: Any) -> None:
    scheduler = getattr(optimizer, "_learning_rate", None)
    if isinstance(scheduler, paddle.optimizer.lr.LRScheduler):
        scheduler.step()
