"""DenseStep: forward, backward and the optimizer step of the dense part of a model."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F  # noqa: N812  # as everybody writes it
from numpy.typing import NDArray

from hetero_pipe.data import Batch, Cut
from hetero_pipe.errors import ConfigError, DataError, NonFiniteError
from hetero_pipe.nn.batch import TensorBatch
from hetero_pipe.nn.device import Device, Upload
from hetero_pipe.nn.finite import check_finite
from hetero_pipe.nn.group import Group
from hetero_pipe.nn.input import TableRows, leaves_of, to_tensors, upload, values_of
from hetero_pipe.nn.optimizer import check_optimizer, step_optimizer
from hetero_pipe.nn.output import Computed, Gradients, StepOutput
from hetero_pipe.nn.random import Generators
from hetero_pipe.nn.reduce import Reducer
from hetero_pipe.nn.state import statistics_of

__all__ = ["DenseStep", "Loss"]

Loss = Callable[[paddle.Tensor, paddle.Tensor], paddle.Tensor]
"""Of logits `[batch]` and labels `[batch]`, a scalar."""


class DenseStep:
    """Runs a model on batches whose rows were pulled. Used by one thread at a time.

    Args:
        model: Called with a batch, returns logits `[batch]` or `[batch, 1]`.
        loss: None is binary cross-entropy with logits.
        optimizer: Paddle's, of the model's parameters; None trains rows alone.
            Its learning-rate scheduler, if it has one, is stepped once a step;
            `ReduceOnPlateau`, which follows a metric, is the caller's to step.
        device: Where the model is.
        on_gradients: Called in each step that is taken, when the gradients are known
            to be good and before the optimizer sees them: for who applies them
            elsewhere.

    Attributes:
        model: As given.
        device: As given.
        num_steps: That changed the dense parameters, or began to.

    Raises:
        ConfigError: The optimizer is of parameters that are not the model's.
    """

    def __init__(
        self,
        model: paddle.nn.Layer,
        *,
        loss: Loss | None,
        optimizer: Any,
        device: Device,
        on_gradients: Callable[[], None] = lambda: None,
    ) -> None:
        check_optimizer(model, optimizer)
        self.model = model
        self.device = device
        self._loss = loss
        self._optimizer = optimizer
        self._on_gradients = on_gradients
        self.num_steps = 0

    def upload(self, batch: Batch, tables: Mapping[str, TableRows | Cut]) -> Upload:
        """Starts to copy a batch and its rows to the device, beside what that computes.

        May be called from another thread than the one that trains. On the CPU,
        nothing is copied.
        """
        return upload(self.device, batch, tables)

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
        reducer = Reducer(self.model, group=group or Group.solo(), device=self.device)
        reducer.begin(len(parts))
        with ExitStack() as undo:
            undo.callback(self._way_back())
            problem, outputs = None, []
            try:
                for (batch, tables), there in zip(parts, uploaded, strict=True):
                    with self.device.launching():
                        computed = self._compute(batch, tables, there)
                    outputs.append(check_finite(step, tables, computed, device=self.device))
                    there.give_back()
                    reducer.take(batch.size)
            except NonFiniteError as error:
                problem = error
            agreement = reducer.agree(problem, is_stopping=is_stopping)
            if agreement.weight == 0:
                return None
            # In one turn: each may wait for an upload, and the next step for this one.
            with self.device.launching():
                reducer.give(agreement)
                undo.pop_all()  # the step is taken
                self.num_steps += 1
                self._on_gradients()
                if self._optimizer is not None:
                    step_optimizer(self._optimizer)
                else:
                    self._clear_gradients()
        return outputs

    def _compute(
        self, batch: Batch, tables: Mapping[str, TableRows | Cut], uploaded: Upload
    ) -> Computed:
        """Launches forward and backward, and the copies of what they give.

        The gradients of the parameters stay with them.
        """
        self.model.train()
        inputs = to_tensors(batch, tables, uploaded, with_gradient=True)
        logits = self._logits(inputs)
        loss = self._scalar_loss(logits, inputs["label"])
        # Before the backward, which is the longest: kernels that wait for it hold the launching up
        # where they run on the host.
        probabilities = self._probabilities(logits)
        # A model may compute in bfloat16, which numpy has not.
        value = loss.detach().astype("float32")
        loss.backward()
        of_rows = {
            name: leaf.grad for name, leaf in leaves_of(inputs).items() if leaf.grad is not None
        }
        of_parameters = {
            path: parameter.grad
            for path, parameter in self.model.named_parameters()
            # A sparse one is of `paddle.nn.Embedding(sparse=True)`; nobody can see into it.
            if parameter.grad is not None and not parameter.grad.is_selected_rows()
        }
        are_finite = self.device.are_finite([*of_rows.values(), *of_parameters.values()])
        # Two copies: the step goes on when the first is there.
        told = self.device.download([value, probabilities, are_finite])
        values = {name: values_of(tables[name]) for name in of_rows}
        sizes = {
            name: len(array) for name, array in values.items() if isinstance(array, np.ndarray)
        }
        sent = self.device.download([of_rows[name] for name in sizes])
        return Computed(of_rows, list(of_parameters), told, Gradients(of_rows, sizes, sent))

    def _way_back(self) -> Callable[[], None]:
        """Returns what leaves statistics, generators and gradients as they are now."""
        with self.device.launching():
            # A forward moves the running statistics of a BatchNorm, also to NaN.
            statistics = [(tensor, tensor.clone()) for tensor in statistics_of(self.model)]
            generators = Generators()

        def undo() -> None:
            with self.device.launching():
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
        with self.device.launching(), paddle.no_grad():
            self.model.eval()
            inputs = to_tensors(batch, tables, uploaded, with_gradient=False)
            download = self.device.download([self._probabilities(self._logits(inputs))])
        (probabilities,) = download.wait()
        uploaded.give_back()
        return probabilities

    def _logits(self, inputs: TensorBatch) -> paddle.Tensor:
        logits = self.model(inputs)
        found = _shape_of(logits)
        if found not in ([inputs.size], [inputs.size, 1]):
            raise ConfigError(
                f"a model returns logits [batch] or [batch, 1], batch={inputs.size}, got {found} "
                f"from {type(self.model).__name__}.forward"
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

    def _clear_gradients(self) -> None:
        for parameter in self.model.parameters():
            parameter.clear_gradient(False)


def _shape_of(found: Any) -> list[int] | str:
    """Returns the shape of a tensor, or what else it is; for messages."""
    return list(found.shape) if isinstance(found, paddle.Tensor) else type(found).__name__
