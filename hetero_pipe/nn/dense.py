"""DenseStep: forward, backward and the optimizer step of the dense part of a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
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
from hetero_pipe.nn.device import Device, Download, Upload
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
            tensor where the rows are one; or by cut, of its shape. One that the
            loss does not depend on is absent.
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

    def upload(self, batch: Batch, tables: Mapping[str, TableRows | Cut]) -> Upload:
        """Starts to copy a batch and its rows to the device, beside what that computes.

        May be called from another thread than the one that trains. On the CPU,
        nothing is copied.
        """
        arrays: list[NDArray[Any]] = [batch.dense] if batch.dense_names else []
        arrays += [] if batch.label is None else [batch.label]
        pulled = [table for table in tables.values() if isinstance(table, TableRows)]
        # Tables of the same slots share their lookup.
        indexes = {id(table.lookup): table.lookup.single for table in pulled}
        arrays += [index for index in indexes.values() if index.size]
        # Rows of bags are as many as they are: they go with the step.
        arrays += [
            cut.values
            for cut in tables.values()
            if isinstance(cut, Cut) and cut.offsets is None and cut.values.size
        ]
        rows = [
            table.rows for table in pulled if isinstance(table.rows, np.ndarray) and table.rows.size
        ]
        return self._device.upload(arrays, rows=rows)

    def train(
        self,
        step: int,
        batch: Batch,
        tables: Mapping[str, TableRows | Cut],
        *,
        uploaded: Upload | None = None,
    ) -> StepOutput:
        """Runs one step of one batch: forward, backward, check, optimizer.

        Args:
            step: For messages.
            batch: The samples.
            tables: The rows of each table; in a dense worker, each cut by name.
            uploaded: What `upload` returned for them; by default, that is done
                here.

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
        outputs = self.train_parts(
            step, [(batch, tables)], uploaded=None if uploaded is None else [uploaded]
        )
        assert outputs is not None, "a batch has samples"
        return outputs[0]

    def train_parts(
        self,
        step: int,
        parts: Sequence[tuple[Batch, Mapping[str, TableRows | Cut]]],
        *,
        uploaded: Sequence[Upload] | None = None,
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
            uploaded: What `upload` returned for each part; by default, that is
                done here.
            group: Of those that hold a replica; None is this worker alone.
            is_stopping: Whether this worker takes no step more: then none does.

        Returns:
            Of each part, its own; None if no worker has a sample or one of them
            is stopping: then nothing has changed, as when something is raised.

        Raises:
            ConfigError: As `train`.
            DataError: As `train`.
            DeviceOutOfMemory: As `train`.
            NonFiniteError: As `train`, on all workers, where one finds it.
            WorkerLost: Another worker is gone.
            Closed: The group was closed.
        """
        for batch, _ in parts:
            self._check_labels(step, batch)
        if uploaded is None:
            uploaded = [self.upload(batch, tables) for batch, tables in parts]
        reducer = Reducer(self._model, group=group or Group.solo(), device=self._device)
        reducer.begin(len(parts))
        with ExitStack() as undo:
            undo.callback(self._way_back())
            problem, outputs = None, []
            try:
                for (batch, tables), there in zip(parts, uploaded, strict=True):
                    with self._device.launching():
                        computed = self._compute(batch, tables, there)
                    outputs.append(self._check_finite(step, tables, computed))
                    there.give_back()
                    reducer.take(batch.size)
            except NonFiniteError as error:
                problem = error
            agreement = reducer.agree(problem, is_stopping=is_stopping)
            if agreement.weight == 0:
                return None
            # In one turn: each may wait for an upload, and the next step for this one.
            with self._device.launching():
                reducer.give(agreement)
                undo.pop_all()  # the step is taken
                self.num_steps += 1
                if self._optimizer is not None:
                    self._optimizer.step()
                    self._optimizer.clear_grad()
                    _step_scheduler(self._optimizer)
                else:
                    self._clear_gradients()
        return outputs

    def _compute(
        self, batch: Batch, tables: Mapping[str, TableRows | Cut], uploaded: Upload
    ) -> "_Computed":
        """Launches forward and backward, and the copies of what they give.

        The gradients of the parameters stay with them.
        """
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
            name: leaf.grad for name, leaf in _leaves(inputs).items() if leaf.grad is not None
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
        values = {name: _values_of(tables[name]) for name in of_rows}
        sizes = {
            name: len(array) for name, array in values.items() if isinstance(array, np.ndarray)
        }
        sent = self._device.download([of_rows[name] for name in sizes])
        return _Computed(of_rows, list(of_parameters), told, _Gradients(of_rows, sizes, sent))

    def _way_back(self) -> Callable[[], None]:
        """Returns what leaves statistics, generators and gradients as they are now."""
        with self._device.launching():
            # A forward moves the running statistics of a BatchNorm, also to NaN.
            statistics = [(tensor, tensor.clone()) for tensor in statistics_of(self._model)]
            generators = Generators()

        def undo() -> None:
            with self._device.launching():
                for tensor, before in statistics:
                    tensor.set_value(before)
                generators.restore()
                self._clear_gradients()

        return undo

    def predict(
        self,
        batch: Batch,
        tables: Mapping[str, TableRows | Cut],
        *,
        uploaded: Upload | None = None,
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
        tables: Mapping[str, TableRows | Cut],
        uploaded: Upload,
        *,
        with_gradient: bool,
    ) -> TensorBatch:
        uploaded.join()
        pulled: dict[str, PulledRows] = {}
        cuts: dict[str, paddle.Tensor | BagRows] = {}
        for name, table in tables.items():
            values = _values_of(table)
            leaf: paddle.Tensor = (
                values if isinstance(values, paddle.Tensor) else uploaded.to_tensor(values)
            )
            # An Embedding without keys gives rows that no gradient reaches: Paddle fails on them.
            leaf.stop_gradient = not with_gradient or len(values) == 0
            if isinstance(table, TableRows):
                pulled[name] = PulledRows(leaf, table.lookup)
            elif table.offsets is not None:
                cuts[name] = BagRows.of(leaf, table.offsets, uploaded)
            else:
                cuts[name] = leaf
        return TensorBatch(batch, pulled, uploaded, cuts=cuts or None)

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
        self, step: int, tables: Mapping[str, TableRows | Cut], computed: "_Computed"
    ) -> StepOutput:
        """Waits for a step; refuses it before any of it is applied, dense or sparse."""
        loss, probabilities, are_finite = computed.told.wait()
        num_leaves = len(computed.of_rows)
        for name, is_finite in zip(computed.of_rows, are_finite[:num_leaves], strict=True):
            if not is_finite:
                raise self._not_finite(step, name, computed.of_rows[name], tables[name])
        if not np.isfinite(loss).all():
            raise NonFiniteError(
                f"the loss must be finite, got {loss.item()} at step {step}; {_NOT_APPLIED}"
            )
        for path, is_finite in zip(computed.parameters, are_finite[num_leaves:], strict=True):
            if not is_finite:
                raise NonFiniteError(
                    f"gradients must be finite, got NaN or infinity in parameter {path!r} of the "
                    f"model at step {step}; {_NOT_APPLIED}"
                )
        return StepOutput(computed.gradients, loss.item(), probabilities)

    def _not_finite(
        self, step: int, name: str, gradient: paddle.Tensor, table: TableRows | Cut
    ) -> NonFiniteError:
        with self._device.launching():
            found = self._device.to_array(gradient)
        *place, _ = (int(i) for i in np.argwhere(~np.isfinite(found))[0])
        return NonFiniteError(
            f"gradients must be finite, got {found[tuple(place)].tolist()} in table {name!r} for "
            f"the key of {_name_of(place, table)} of step {step}; {_NOT_APPLIED}"
        )

    def _clear_gradients(self) -> None:
        for parameter in self._model.parameters():
            parameter.clear_gradient(False)


_NOT_APPLIED = "nothing of this step was applied; lower the learning rate or check the data"


def statistics_of(model: paddle.nn.Layer) -> list[paddle.Tensor]:
    """Returns what a forward may change: buffers, and a BatchNorm's vectors.

    Paddle keeps those among the parameters, without gradient. A frozen matrix is
    not among them, it may be large.
    """
    vectors = [p for p in model.parameters() if p.stop_gradient and p.ndim == 1]
    return [*model.buffers(), *vectors]


def _values_of(table: TableRows | Cut) -> NDArray[np.float32] | paddle.Tensor:
    return table.values if isinstance(table, Cut) else table.rows


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
