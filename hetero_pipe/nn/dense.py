"""DenseStep: forward, backward and the optimizer step of the dense part of a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it
from numpy.typing import NDArray

from hetero_pipe.data import Batch, Cut, Lookup
from hetero_pipe.errors import ConfigError, DataError, NonFiniteError
from hetero_pipe.nn.bag import BagRows
from hetero_pipe.nn.batch import PulledRows, TensorBatch
from hetero_pipe.nn.device import Device
from hetero_pipe.nn.group import Group
from hetero_pipe.nn.random import Generators
from hetero_pipe.nn.reduce import Reducer

__all__ = ["DenseStep", "Loss", "StepOutput", "TableRows", "statistics_of"]

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
        gradients: By table: float32 `[u, dim]`, of the loss by each row; or by
            cut, of its shape. One that the loss does not depend on is absent.
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
            Its learning-rate scheduler, if it has one, is stepped once a step;
            `ReduceOnPlateau`, which follows a metric, is the caller's to step.
        device: Where the model is.

    Attributes:
        num_steps: That changed the dense parameters, or began to.

    Raises:
        ConfigError: The optimizer is of parameters that are not the model's.
    """

    def __init__(
        self, model: paddle.nn.Layer, *, loss: Loss | None, optimizer: Any, device: Device
    ) -> None:
        _check_optimizer(model, optimizer)
        self._model = model
        self._loss = loss
        self._optimizer = optimizer
        self._device = device
        self.num_steps = 0

    def train(self, step: int, batch: Batch, tables: Mapping[str, TableRows | Cut]) -> StepOutput:
        """Runs one step of one batch: forward, backward, check, optimizer.

        Args:
            step: For messages.
            batch: The samples.
            tables: The rows of each table; in a dense worker, each cut by name.

        Raises:
            ConfigError: The batch has no labels, or the model or the loss returns
                another shape.
            DataError: A label is not from 0 to 1, with the default loss.
            NonFiniteError: A gradient or the loss is NaN or infinite.

        Whatever is raised before the optimizer's step, no parameter, no buffer
        of the model and no random generator of Paddle has changed.
        """
        outputs = self.train_parts(step, [(batch, tables)])
        assert outputs is not None, "a batch has samples"
        return outputs[0]

    def train_parts(
        self,
        step: int,
        parts: Sequence[tuple[Batch, Mapping[str, TableRows | Cut]]],
        *,
        group: Group | None = None,
        is_stopping: bool = False,
    ) -> list[StepOutput] | None:
        """Runs one step of all batches that the workers of a group have for it.

        Forward and backward of each batch by itself; the mean of the gradients by
        samples, over all batches of all workers; the optimizer, once. So a step
        is that of their batches in one, and replicas stay equal, bit for bit.

        Args:
            step: The same one on all workers.
            parts: Batches of this worker with their rows; none is no reason not
                to take the step.
            group: Of those that hold a replica; None is this worker alone.
            is_stopping: Whether this worker takes no step more: then none does.

        Returns:
            Of each part, its own; None if no worker has a sample or one of them
            is stopping: then nothing has changed, as when something is raised.

        Raises:
            ConfigError: As `train`.
            DataError: As `train`.
            NonFiniteError: As `train`, on all workers, where one finds it.
            WorkerLost: Another worker is gone.
            Closed: The group was closed.
        """
        for batch, _ in parts:
            self._check_labels(step, batch)
        self._device.enter()
        self._model.train()
        reducer = Reducer(self._model, group=group or Group.solo(), device=self._device)
        reducer.begin(len(parts))
        # A forward moves the running statistics of a BatchNorm, also to NaN.
        statistics = [(tensor, tensor.clone()) for tensor in statistics_of(self._model)]
        generators = Generators()
        is_taken = False
        try:
            problem, outputs = None, []
            try:
                for batch, tables in parts:
                    outputs.append(self._differentiate(step, batch, tables))
                    reducer.take(batch.size)
            except NonFiniteError as error:
                problem = error
            agreement = reducer.agree(problem, is_stopping=is_stopping)
            if agreement.weight == 0:
                return None
            reducer.give(agreement)
            is_taken = True
        finally:
            if not is_taken:
                for tensor, before in statistics:
                    tensor.set_value(before)
                generators.restore()
                self._clear_gradients()
        self.num_steps += 1
        if self._optimizer is not None:
            self._optimizer.step()
            self._optimizer.clear_grad()
            _step_scheduler(self._optimizer)
        else:
            self._clear_gradients()
        return outputs

    def _differentiate(
        self, step: int, batch: Batch, tables: Mapping[str, TableRows | Cut]
    ) -> StepOutput:
        """Runs forward and backward; the gradients of the parameters stay with them."""
        inputs = self._to_tensors(batch, tables, with_gradient=True)
        logits = self._logits(inputs)
        loss = self._scalar_loss(logits, inputs["label"])
        loss.backward()
        gradients = {
            name: self._device.to_array(leaf.grad)
            for name, leaf in _leaves(inputs).items()
            if leaf.grad is not None
        }
        self._check_finite(step, float(loss), gradients, tables)
        return StepOutput(gradients, float(loss), self._probabilities(logits))

    def predict(self, batch: Batch, tables: Mapping[str, TableRows | Cut]) -> NDArray[np.float32]:
        """Returns the probability of each sample, `[batch]`; changes nothing."""
        self._device.enter()
        self._model.eval()
        with paddle.no_grad():
            inputs = self._to_tensors(batch, tables, with_gradient=False)
            return self._probabilities(self._logits(inputs))

    def _to_tensors(
        self, batch: Batch, tables: Mapping[str, TableRows | Cut], *, with_gradient: bool
    ) -> TensorBatch:
        pulled: dict[str, PulledRows] = {}
        cuts: dict[str, paddle.Tensor | BagRows] = {}
        for name, table in tables.items():
            values = table.values if isinstance(table, Cut) else table.rows
            leaf = self._device.to_tensor(values)
            # An Embedding without keys gives rows that no gradient reaches: Paddle fails on them.
            leaf.stop_gradient = not with_gradient or len(values) == 0
            if isinstance(table, TableRows):
                pulled[name] = PulledRows(leaf, table.lookup)
            elif table.offsets is not None:
                cuts[name] = BagRows.of(leaf, table.offsets, self._device)
            else:
                cuts[name] = leaf
        return TensorBatch(batch, pulled, self._device, cuts=cuts or None)

    def _logits(self, inputs: TensorBatch) -> paddle.Tensor:
        logits = self._model(inputs)
        found = _shape_of(logits)
        if found not in ([inputs.size], [inputs.size, 1]):
            raise ConfigError(
                f"a model returns logits [batch] or [batch, 1], batch={inputs.size}, got {found} "
                f"from {type(self._model).__name__}.forward"
            )
        return logits.reshape([inputs.size])

    def _check_labels(self, step: int, batch: Batch) -> None:
        if batch.label is None:
            raise ConfigError("training needs labels, got a reader with label=None")
        if self._loss is not None:
            return
        wrong = np.flatnonzero((batch.label < 0) | (batch.label > 1))
        if len(wrong):
            raise DataError(
                f"binary cross-entropy needs labels from 0 to 1, got {batch.label[wrong[0]]:g} in "
                f"sample {wrong[0]} of step {step}; name another label, or pass loss="
            )

    def _scalar_loss(self, logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
        loss = (self._loss or F.binary_cross_entropy_with_logits)(logits, labels)
        if not isinstance(loss, paddle.Tensor) or loss.size != 1:
            raise ConfigError(
                f"a loss returns a scalar tensor, got {_shape_of(loss)}; take its mean"
            )
        return loss

    def _probabilities(self, logits: paddle.Tensor) -> NDArray[np.float32]:
        # A model may compute in bfloat16, which numpy has not.
        return self._device.to_array(F.sigmoid(logits.detach().astype("float32")))

    def _check_finite(
        self,
        step: int,
        loss: float,
        gradients: Mapping[str, NDArray[np.float32]],
        tables: Mapping[str, TableRows | Cut],
    ) -> None:
        """Refuses a step before any of it is applied, dense or sparse."""
        remedy = "nothing of this step was applied; lower the learning rate or check the data"
        for name, gradient in gradients.items():
            if _is_finite(gradient):
                continue
            *place, _ = (int(i) for i in np.argwhere(~np.isfinite(gradient))[0])
            raise NonFiniteError(
                f"gradients must be finite, got {gradient[tuple(place)].tolist()} in table "
                f"{name!r} for the key of {_name_of(place, tables[name])} of step {step}; {remedy}"
            )
        if not np.isfinite(loss):
            raise NonFiniteError(f"the loss must be finite, got {loss} at step {step}; {remedy}")
        for path, parameter in self._model.named_parameters():
            gradient = parameter.grad
            # A sparse one is of `paddle.nn.Embedding(sparse=True)`; numpy cannot see into it.
            if gradient is None or gradient.is_selected_rows():
                continue
            if not _is_finite(self._device.to_array(gradient)):
                raise NonFiniteError(
                    f"gradients must be finite, got NaN or infinity in parameter {path!r} of the "
                    f"model at step {step}; {remedy}"
                )

    def _clear_gradients(self) -> None:
        for parameter in self._model.parameters():
            parameter.clear_gradient(False)


def statistics_of(model: paddle.nn.Layer) -> list[paddle.Tensor]:
    """Returns what a forward may change: buffers, and a BatchNorm's vectors.

    Paddle keeps those among the parameters, without gradient. A frozen matrix is
    not among them, it may be large.
    """
    vectors = [p for p in model.parameters() if p.stop_gradient and p.ndim == 1]
    return [*model.buffers(), *vectors]


def _leaves(inputs: TensorBatch) -> dict[str, paddle.Tensor]:
    """Returns what gradients are wanted of, by name: rows that were pulled, or cuts."""
    cuts = inputs.cuts or {}
    return {
        **{name: pulled.rows for name, pulled in inputs.pulled.items()},
        **{name: cut.rows if isinstance(cut, BagRows) else cut for name, cut in cuts.items()},
    }


def _name_of(place: list[int], table: TableRows | Cut) -> str:
    """Returns slot and sample of a row's place, all its indices but that within the row."""
    if isinstance(table, TableRows):
        slot, sample = table.lookup.first_use(place[0])
        return f"slot {slot!r} in sample {sample}"
    if table.offsets is None:
        return f"pooled slot {place[1]} in sample {place[0]}"
    return f"sample {int(np.searchsorted(table.offsets, place[0], side='right')) - 1}"


def _shape_of(found: Any) -> list[int] | str:
    """Returns the shape of a tensor, or what else it is; for messages."""
    return list(found.shape) if isinstance(found, paddle.Tensor) else type(found).__name__


def _is_finite(array: NDArray[Any]) -> bool:
    # A quarter of the time of a sum in float64, which would need no array.
    return bool(np.isfinite(array).all())


def _check_optimizer(model: paddle.nn.Layer, optimizer: Any) -> None:
    if optimizer is None:
        return
    if not isinstance(optimizer, paddle.optimizer.Optimizer):
        raise ConfigError(
            f"optimizer is of paddle.optimizer, got {optimizer!r}; a table's own is given to its "
            "hp.Embedding"
        )
    ours = {id(parameter) for parameter in model.parameters()}
    listed = optimizer._parameter_list or []  # Paddle tells it nowhere else
    groups = [p["params"] if isinstance(p, dict) else [p] for p in listed]
    strangers = [p.name for group in groups for p in group if id(p) not in ours]
    if strangers:
        raise ConfigError(
            f"the optimizer is of the model's parameters, got {', '.join(strangers)}, which are "
            f"not of this {type(model).__name__}; pass parameters=model.parameters()"
        )


def _step_scheduler(optimizer: Any) -> None:
    scheduler = getattr(optimizer, "_learning_rate", None)
    lr = paddle.optimizer.lr
    if isinstance(scheduler, lr.LRScheduler) and not isinstance(scheduler, lr.ReduceOnPlateau):
        scheduler.step()
