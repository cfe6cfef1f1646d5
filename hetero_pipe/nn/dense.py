"""DenseStep: forward, backward and the optimizer step of the dense part of a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it
from numpy.typing import NDArray

from hetero_pipe.data import Batch, Lookup
from hetero_pipe.errors import ConfigError, DataError, NonFiniteError
from hetero_pipe.nn.batch import PulledRows, TensorBatch
from hetero_pipe.nn.device import Device, Download, Upload
from hetero_pipe.nn.random import Generators

__all__ = ["DenseStep", "Loss", "StepOutput", "TableRows"]

Loss = Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]
"""Of logits `[batch]` and labels `[batch]`, a scalar."""


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of one table for one batch.

    Attributes:
        rows: float32 `[u, dim]`, each distinct row once; a tensor if they are on
            the device.
        lookup: Where each slot's rows lie among them.
    """

    rows: NDArray[np.float32] | paddle.Tensor
    lookup: Lookup


@dataclass(frozen=True, eq=False)
class StepOutput:
    """What a dense step gives.

    Attributes:
        gradients: By table: float32 `[u, dim]`, of the loss by each row, a
            tensor where the rows are one. A table that the loss does not depend
            on is absent.
        loss: Of the batch, before the step.
        probabilities: float32 `[batch]`, before the step.
    """

    gradients: Mapping[str, NDArray[np.float32] | paddle.Tensor]
    loss: float
    probabilities: NDArray[np.float32]


class _Gradients(Mapping[str, Any]):
    """Gradients by table. Who asks for one waits until it is there: who pushes, not who trains.

    Args:
        tensors: On the device, `[u, dim]` or with more rows.
        sizes: Rows of each table whose gradient goes to the host.
        download: Of those, in that order.
    """

    def __init__(
        self, tensors: Mapping[str, paddle.Tensor], sizes: Mapping[str, int], download: Download
    ) -> None:
        self._kept = {name: tensor for name, tensor in tensors.items() if name not in sizes}
        self._sizes = sizes
        self._download = download

    def __getitem__(self, name: str) -> Any:
        if name in self._kept:
            return self._kept[name]
        # A device may hold more rows than the table has here, `Device.upload` tells why.
        size = self._sizes[name]
        return self._download.wait()[list(self._sizes).index(name)][:size]

    def __iter__(self) -> Iterator[str]:
        return iter([*self._kept, *self._sizes])

    def __len__(self) -> int:
        return len(self._kept) + len(self._sizes)


@dataclass(frozen=True, eq=False)
class _Computed:
    """What forward and backward of a step give.

    Attributes:
        of_rows: By table, the gradient of its rows, if it has one.
        parameters: Paths of those that have a gradient.
        told: Of the loss, the probabilities, and whether each gradient of
            `of_rows` and of a parameter is finite, on the way to the host.
        gradients: Of rows, on the way to who pushes them.
    """

    of_rows: Mapping[str, paddle.Tensor]
    parameters: Sequence[str]
    told: Download
    gradients: Mapping[str, Any]


class DenseStep:
    """Runs a model on batches whose rows were pulled. Used by one thread at a time.

    Args:
        model: Called with a batch, returns logits `[batch]` or `[batch, 1]`.
        loss: None is binary cross-entropy with logits.
        optimizer: Paddle's, of the model's parameters; None trains rows alone.
            Its learning-rate scheduler, if it has one, is stepped once a step;
            `ReduceOnPlateau`, which follows a metric, is the caller's to step.
        device: Where the model is.

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
        self.num_steps = 0  # that changed the dense parameters, or began to

    def upload(self, batch: Batch, tables: Mapping[str, TableRows]) -> Upload:
        """Starts to copy a batch and its rows to the device, beside what that computes.

        May be called from another thread than the one that trains. On the CPU,
        nothing is copied.
        """
        arrays: list[NDArray[Any]] = [batch.dense] if batch.dense_names else []
        arrays += [] if batch.label is None else [batch.label]
        # Tables of the same slots share their lookup.
        indexes = {id(table.lookup): table.lookup.single for table in tables.values()}
        arrays += [index for index in indexes.values() if index.size]
        rows = [
            table.rows
            for table in tables.values()
            if isinstance(table.rows, np.ndarray) and table.rows.size
        ]
        return self._device.upload(arrays, rows=rows)

    def train(
        self,
        step: int,
        batch: Batch,
        tables: Mapping[str, TableRows],
        *,
        uploaded: Upload | None = None,
    ) -> StepOutput:
        """Runs one step: forward, backward, check, optimizer.

        Args:
            step: For messages.
            batch: The samples.
            tables: The rows of each table.
            uploaded: What `upload` returned for them; by default, that is done
                here.

        Raises:
            ConfigError: The batch has no labels, or the model or the loss returns
                another shape.
            DataError: A label is not from 0 to 1, with the default loss.
            DeviceOutOfMemory: The step does not fit.
            NonFiniteError: A gradient or the loss is NaN or infinite.

        Whatever is raised before the optimizer's step, no parameter, no buffer
        of the model and no random generator of Paddle has changed.
        """
        self._check_labels(step, batch)
        uploaded = uploaded or self.upload(batch, tables)
        with self._undone_on_error():
            with self._device.launching():
                computed = self._compute(batch, tables, uploaded)
            output = self._check_finite(step, tables, computed)
        uploaded.give_back()
        self.num_steps += 1
        with self._device.launching():
            if self._optimizer is not None:
                self._optimizer.step()
                self._optimizer.clear_grad()
                _step_scheduler(self._optimizer)
            else:
                self._clear_gradients()
        return output

    def _compute(
        self, batch: Batch, tables: Mapping[str, TableRows], uploaded: Upload
    ) -> "_Computed":
        """Launches forward and backward, and the copies of what they give."""
        self._model.train()
        inputs = self._to_tensors(batch, tables, uploaded, with_gradient=True)
        logits = self._logits(inputs)
        loss = self._scalar_loss(logits, inputs["label"])
        # Before the backward, which is the longest: kernels that wait for it hold the launching up
        # where they run on the host.
        probabilities = self._probabilities(logits)
        # A model may compute in bfloat16, which numpy has not.
        value = loss.detach().astype("float32")
        loss.backward()
        of_rows = {
            name: pulled.rows.grad
            for name, pulled in inputs.pulled.items()
            if pulled.rows.grad is not None
        }
        of_parameters = {
            path: parameter.grad
            for path, parameter in self._model.named_parameters()
            # A sparse one is of `paddle.nn.Embedding(sparse=True)`; nobody can see into it.
            if parameter.grad is not None and not parameter.grad.is_selected_rows()
        }
        are_finite = self._device.are_finite([*of_rows.values(), *of_parameters.values()])
        # Two copies: the step goes on when the first is there.
        told = self._device.download([value, probabilities, are_finite])
        sizes = {
            name: len(tables[name].rows)
            for name in of_rows
            if isinstance(tables[name].rows, np.ndarray)
        }
        sent = self._device.download([of_rows[name] for name in sizes])
        return _Computed(of_rows, list(of_parameters), told, _Gradients(of_rows, sizes, sent))

    @contextmanager
    def _undone_on_error(self) -> Iterator[None]:
        """An error in the block leaves statistics, generators and gradients as they were."""
        with self._device.launching():
            # A forward moves the running statistics of a BatchNorm, also to NaN.
            statistics = [(tensor, tensor.clone()) for tensor in self._statistics()]
            generators = Generators()
        try:
            yield
        except BaseException:
            with self._device.launching():
                for tensor, before in statistics:
                    tensor.set_value(before)
                generators.restore()
                self._clear_gradients()
            raise

    def predict(
        self, batch: Batch, tables: Mapping[str, TableRows], *, uploaded: Upload | None = None
    ) -> NDArray[np.float32]:
        """Returns the probability of each sample, `[batch]`; changes nothing."""
        uploaded = uploaded or self.upload(batch, tables)
        with self._device.launching(), paddle.no_grad():
            self._model.eval()
            inputs = self._to_tensors(batch, tables, uploaded, with_gradient=False)
            download = self._device.download([self._probabilities(self._logits(inputs))])
        (probabilities,) = download.wait()
        uploaded.give_back()
        return probabilities

    def _to_tensors(
        self,
        batch: Batch,
        tables: Mapping[str, TableRows],
        uploaded: Upload,
        *,
        with_gradient: bool,
    ) -> TensorBatch:
        uploaded.join()
        pulled = {}
        for name, table in tables.items():
            rows: paddle.Tensor = (
                table.rows
                if isinstance(table.rows, paddle.Tensor)
                else uploaded.to_tensor(table.rows)
            )
            rows.stop_gradient = not with_gradient
            pulled[name] = PulledRows(rows, table.lookup)
        return TensorBatch(batch, pulled, uploaded)

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

    def _probabilities(self, logits: paddle.Tensor) -> paddle.Tensor:
        return F.sigmoid(logits.detach().astype("float32"))

    def _check_finite(
        self, step: int, tables: Mapping[str, TableRows], computed: "_Computed"
    ) -> StepOutput:
        """Waits for a step; refuses it before any of it is applied, dense or sparse."""
        loss, probabilities, are_finite = computed.told.wait()
        num_tables = len(computed.of_rows)
        for name, is_finite in zip(computed.of_rows, are_finite[:num_tables], strict=True):
            if not is_finite:
                raise self._not_finite(step, name, computed.of_rows[name], tables[name].lookup)
        if not np.isfinite(loss).all():
            raise NonFiniteError(
                f"the loss must be finite, got {loss.item()} at step {step}; {_NOT_APPLIED}"
            )
        for path, is_finite in zip(computed.parameters, are_finite[num_tables:], strict=True):
            if not is_finite:
                raise NonFiniteError(
                    f"gradients must be finite, got NaN or infinity in parameter {path!r} of the "
                    f"model at step {step}; {_NOT_APPLIED}"
                )
        return StepOutput(computed.gradients, loss.item(), probabilities)

    def _not_finite(
        self, step: int, table: str, gradient: paddle.Tensor, lookup: Lookup
    ) -> NonFiniteError:
        with self._device.launching():
            found = self._device.to_array(gradient)
        row = int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])
        slot, sample = lookup.first_use(row)
        return NonFiniteError(
            f"gradients must be finite, got {found[row].tolist()} in table {table!r} for the key "
            f"of slot {slot!r} in sample {sample} of step {step}; {_NOT_APPLIED}"
        )

    def _statistics(self) -> list[paddle.Tensor]:
        """Returns what a forward may change: buffers, and a BatchNorm's vectors.

        Paddle keeps those among the parameters, without gradient. A frozen
        matrix is not among them, it may be large.
        """
        vectors = [p for p in self._model.parameters() if p.stop_gradient and p.ndim == 1]
        return [*self._model.buffers(), *vectors]

    def _clear_gradients(self) -> None:
        for parameter in self._model.parameters():
            parameter.clear_gradient(False)


_NOT_APPLIED = "nothing of this step was applied; lower the learning rate or check the data"


def _shape_of(found: Any) -> list[int] | str:
    """Returns the shape of a tensor, or what else it is; for messages."""
    return list(found.shape) if isinstance(found, paddle.Tensor) else type(found).__name__


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
