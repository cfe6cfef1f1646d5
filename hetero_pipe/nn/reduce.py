"""Reducer: makes the batches that several workers train at once one step."""

from dataclasses import dataclass

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.errors import ConfigError, NonFiniteError
from hetero_pipe.nn.device import Device
from hetero_pipe.nn.group import Group

__all__ = ["Agreement", "Reducer"]


@dataclass(frozen=True)
class Agreement:
    """What all workers know of a step before any of them applies it.

    Attributes:
        weight: Samples of all their batches; 0 where the step is not to be taken.
        moved: Whether a parameter has a gradient anywhere, in their order.
        is_stopping: Whether one of them stops, so that all do.
    """

    weight: int
    moved: tuple[bool, ...]
    is_stopping: bool = False


class Reducer:
    """Averages gradients over batches, and over the workers of a group, by their samples.

    With one batch of one worker it leaves the gradients as they are, bit for bit.

    Args:
        model: The same on all workers.
        group: The workers.
        device: Of the parameters.
    """

    def __init__(self, model: paddle.nn.Layer, *, group: Group, device: Device) -> None:
        self._model = model
        self._group = group
        self._device = device
        self._parameters: list[paddle.Tensor] = []
        self._sums: list[NDArray[np.float32] | None] = []
        self._weight = 0
        self._is_alone = True  # whether the step is of one batch

    def begin(self, num_parts: int) -> None:
        """Begins a step of some batches of this worker."""
        self._weight = 0
        self._is_alone = num_parts == 1 and self._group.size == 1
        self._parameters = [] if self._is_alone else list(self._model.parameters())
        self._sums = [None] * len(self._parameters)

    def take(self, weight: int) -> None:
        """Takes the gradients of a batch of `weight` samples off the parameters."""
        self._weight += weight
        if self._is_alone:
            return
        with self._device.launching():
            for i, parameter in enumerate(self._parameters):
                if parameter.grad is not None:
                    self._take(i, parameter, weight)

    def _take(self, i: int, parameter: paddle.Tensor, weight: int) -> None:
        if parameter.grad.is_selected_rows():
            raise ConfigError(
                "several workers reduce dense gradients, got a sparse one of "
                f"{parameter.name}; use hp.Embedding, or paddle.nn.Embedding(sparse=False)"
            )
        gradient = self._device.to_array(parameter.grad.astype("float32"))
        part = gradient * np.float32(weight)
        total = self._sums[i]
        self._sums[i] = part if total is None else total + part
        parameter.clear_gradient(False)

    def agree(self, problem: NonFiniteError | None, *, is_stopping: bool) -> Agreement:
        """Tells the others what came of this worker's batches and learns what of theirs.

        Args:
            problem: Why the step must not be taken.
            is_stopping: Whether this worker takes no step more.

        Raises:
            Closed: The group was closed.
            NonFiniteError: On all workers, where one has a problem.
            WorkerLost: One is gone.
        """
        if self._is_alone:
            if problem is not None:
                raise problem
            return Agreement(0 if is_stopping else self._weight, ())
        reports = self._group.gather(
            {
                "weight": self._weight,
                "still": [i for i, total in enumerate(self._sums) if total is None],
                "problem": None if problem is None else str(problem),
                "is_stopping": is_stopping,
            }
        )
        if problem is not None:
            raise problem
        for rank, report in enumerate(reports):
            if report["problem"] is not None:
                found = NonFiniteError(f"{report['problem']} (found by worker {rank})")
                found.is_of_another = True
                raise found
        still = set.intersection(*(set(report["still"]) for report in reports))
        stops = any(report["is_stopping"] for report in reports)
        return Agreement(
            weight=0 if stops else sum(report["weight"] for report in reports),
            moved=tuple(i not in still for i in range(len(self._parameters))),
            is_stopping=stops,
        )

    def give(self, agreement: Agreement) -> None:
        """Gives the parameters the mean gradients of a step that is taken.

        Raises:
            WorkerLost: One is gone.
        """
        if self._is_alone:
            return
        moved = [i for i, has_moved in enumerate(agreement.moved) if has_moved]
        arrays = []
        for i in moved:
            total = self._sums[i]
            shape = self._parameters[i].shape
            arrays.append(np.zeros(shape, np.float32) if total is None else total)
        share = np.float32(agreement.weight)
        for i, total in zip(moved, self._group.sum(arrays), strict=True):
            parameter = self._parameters[i]
            gradient = paddle.to_tensor(total / share, place=parameter.place)
            parameter.grad = gradient.astype(parameter.dtype)
        self._sums = []
