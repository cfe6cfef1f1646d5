"""DeviceTable: the rows of a table in the memory of a device, instead of a server's."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.client import Rows
from hetero_pipe.nn.device import Device
from hetero_pipe.units import format_bytes
from ps_server.keys import KeyIndex
from ps_server.spec import SGD, Adagrad, Adam, TableSpec

__all__ = ["DeviceTable"]

FIRST_CAPACITY = 1024  # rows

FirstWeights = Callable[[NDArray[np.uint64]], NDArray[np.float32]]
"""Of keys `[n]`, the weights `[n, dim]` that their rows start with."""


class DeviceTable:
    """Weights and optimizer state of a table's rows as tensors; what a server does, on a device.

    The host knows the row of each key; rows lie in the order in which their
    keys first came, and their memory doubles when it is full. May be used from
    any thread; what is pulled is as the pushes left it that were made before.

    Args:
        spec: What the table is.
        device: Where the rows are.
        first_weights: What a new row starts with.
    """

    def __init__(self, spec: TableSpec, device: Device, *, first_weights: FirstWeights) -> None:
        self._spec = spec
        self._device = device
        self._first_weights = first_weights
        self._state_dim = spec.optimizer.state_per_weight * spec.dim
        self._lock = threading.Lock()  # held while the tensors change, or are asked for rows
        self._clear()

    def _clear(self) -> None:
        self._index = KeyIndex()
        self._capacity = 0
        self._weights: Any = None  # a tensor [capacity, dim], once there is a row
        self._state: Any = None  # likewise [capacity, state_dim], if state_dim is above 0
        self._num_pushes = np.zeros(0, np.uint32)
        self._steps = np.zeros(0, np.uint64)

    @property
    def num_rows(self) -> int:
        """Rows there are."""
        return len(self._index)

    def pull(self, keys: NDArray[np.uint64], *, insert: bool) -> paddle.Tensor:
        """Returns the weights of distinct keys `[u]`, `[u, dim]`, on the device.

        A missing row is created if `insert`; its weights are returned either way.

        Raises:
            DeviceOutOfMemory: The table does not fit. No row was created.
        """
        if len(keys) == 0:
            with self._device.launching():
                return paddle.zeros([0, self._spec.dim])
        with self._lock, paddle.no_grad():
            if insert:
                numbers, missing = self._insert(keys), np.empty(0, np.int64)
            else:
                numbers = self._index.find(keys, insert=False)
                missing = np.flatnonzero(numbers < 0)
            first = self._first_weights(keys[missing]) if len(missing) else None
            if first is not None and len(missing) == len(keys):
                with self._device.launching():
                    return self._device.to_tensor(first)
            with self._device.launching():
                # A missing key takes any row's weights, until it gets its own.
                rows = paddle.gather(self._weights, self._to_tensor(np.maximum(numbers, 0)))
                if first is not None:
                    rows = _with_rows(rows, self._to_tensor(missing), self._device.to_tensor(first))
                return rows

    def push(
        self,
        keys: NDArray[np.uint64],
        gradients: paddle.Tensor | NDArray[np.float32],
        *,
        step: int,
    ) -> None:
        """Applies gradients `[u, dim]` to the rows of distinct keys; a missing one is created.

        Args:
            keys: uint64 `[u]`.
            gradients: On the device, or not yet.
            step: From 1: which update of the table this is.

        Raises:
            DeviceOutOfMemory: The table does not fit. No gradient was applied.
        """
        if len(keys) == 0:
            return
        with self._lock, paddle.no_grad():
            numbers = self._insert(keys)
            with self._device.launching():
                at = self._to_tensor(numbers)
                if not isinstance(gradients, paddle.Tensor):
                    gradients = self._device.to_tensor(gradients)
                weights = paddle.gather(self._weights, at)
                state = paddle.gather(self._state, at) if self._state_dim else None
                weights, state = updated(self._spec, weights, state, gradients, step=step)
                self._weights = _with_rows(self._weights, at, weights)
                if state is not None:
                    self._state = _with_rows(self._state, at, state)
            self._num_pushes[numbers] += 1
            self._steps[numbers] = np.maximum(self._steps[numbers], step)

    def export_rows(self) -> Rows:
        """Returns a copy of all rows, as they are in a snapshot."""
        with self._lock, self._device.launching():
            number = self.num_rows
            weights = np.empty((number, self._spec.dim), np.float32)
            state = np.empty((number, self._state_dim), np.float32)
            if number:
                weights[...] = self._device.to_array(self._weights)[:number]
            if number and self._state_dim:
                state[...] = self._device.to_array(self._state)[:number]
            pushes, steps = self._num_pushes[:number].copy(), self._steps[:number].copy()
            return Rows(self._index.keys(), weights, state, pushes, steps)

    def import_rows(self, rows: Rows) -> None:
        """Replaces all rows.

        Raises:
            DeviceOutOfMemory: They do not fit; the table is empty then.
        """
        with self._lock, paddle.no_grad():
            self._clear()
            number = len(rows.keys)
            if number == 0:
                return
            self._reserve(number)
            with self._device.launching():
                at = self._to_tensor(np.arange(number))
                to_tensor = self._device.to_tensor
                self._weights = _with_rows(self._weights, at, to_tensor(rows.weights))
                if self._state_dim:
                    self._state = _with_rows(self._state, at, to_tensor(rows.state))
            self._index.find(rows.keys, insert=True)
            self._num_pushes[:number] = rows.num_pushes
            self._steps[:number] = rows.steps

    def _insert(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Returns the row of each key, after making those that are missing."""
        numbers = self._index.find(keys, insert=False)
        missing = keys[numbers < 0]
        if len(missing) == 0:
            return numbers
        # Memory first: a key that has a number has a row.
        self._reserve(self.num_rows + len(missing))
        first = self._first_weights(missing)
        new = self._index.find(missing, insert=True)
        with self._device.launching():
            at, rows = self._to_tensor(new), self._device.to_tensor(first)
            self._weights = _with_rows(self._weights, at, rows)
        numbers[numbers < 0] = new
        return numbers

    def _reserve(self, num_rows: int) -> None:
        """Doubles the memory until so many rows fit."""
        if num_rows <= self._capacity:
            return
        capacity = max(FIRST_CAPACITY, self._capacity)
        while capacity < num_rows:
            capacity *= 2
        dims = (self._spec.dim, self._state_dim)
        claim = f"table {self._spec.name!r} with {num_rows} rows of {4 * sum(dims)} bytes"
        size = format_bytes(4 * sum(dims) * capacity)
        remedy = (
            f"its memory grows to {size} for {capacity} rows; keep tables on servers, in another "
            "mode (--servers, --mode bounded), or take a device with more memory"
        )
        with self._device.launching(), self._device.fitting(claim, remedy):
            initial = getattr(self._spec.optimizer, "initial_accumulator", 0.0)
            weights = self._grown(self._weights, capacity, self._spec.dim, 0.0)
            state = self._grown(self._state, capacity, self._state_dim, initial)
        self._weights, self._state = weights, state
        more = capacity - self._capacity
        self._num_pushes = np.append(self._num_pushes, np.zeros(more, np.uint32))
        self._steps = np.append(self._steps, np.zeros(more, np.uint64))
        self._capacity = capacity

    def _grown(self, tensor: Any, capacity: int, dim: int, value: float) -> Any:
        """Returns a tensor `[capacity, dim]` that begins with one, or with none, and goes on."""
        if dim == 0:
            return None
        more = paddle.full([capacity - self._capacity, dim], value, "float32")
        return more if tensor is None else paddle.concat([tensor, more])

    def _to_tensor(self, numbers: NDArray[np.int64]) -> paddle.Tensor:
        return self._device.to_tensor(np.ascontiguousarray(numbers))


def _with_rows(table: paddle.Tensor, at: paddle.Tensor, rows: paddle.Tensor) -> paddle.Tensor:
    """Returns the table itself, its rows `at` overwritten. Nobody else may hold it."""
    return paddle.scatter_(table, at, rows, overwrite=True)


def updated(
    spec: TableSpec,
    weights: paddle.Tensor,
    state: paddle.Tensor | None,
    gradients: paddle.Tensor,
    *,
    step: int,
) -> tuple[paddle.Tensor, paddle.Tensor | None]:
    """Returns weights `[u, dim]` and state `[u, state_dim]` of rows after an update.

    As `ps_server.spec` says of each optimizer, and in its order of operations.
    """
    rule = spec.optimizer
    if isinstance(rule, SGD):
        return weights - rule.learning_rate * gradients, None
    assert state is not None, "all but SGD keep state"
    if isinstance(rule, Adagrad):
        state = state + gradients * gradients
        step_size = rule.learning_rate * gradients / (paddle.sqrt(state) + rule.epsilon)
        return weights - step_size, state
    return _adam(rule, weights, state, gradients, step)


def _adam(
    rule: Adam, weights: paddle.Tensor, state: paddle.Tensor, gradients: paddle.Tensor, step: int
) -> tuple[paddle.Tensor, paddle.Tensor]:
    # In float32 as the server's: a beta of 0.999 is another number there.
    beta1, beta2 = float(np.float32(rule.beta1)), float(np.float32(rule.beta2))
    correction1, correction2 = 1 - beta1**step, (1 - beta2**step) ** 0.5
    dim = weights.shape[1]
    mean = beta1 * state[:, :dim] + (1 - beta1) * gradients
    square = beta2 * state[:, dim:] + (1 - beta2) * gradients * gradients
    quotient = mean / (paddle.sqrt(square) + rule.epsilon * correction2)
    rate = rule.learning_rate * correction2 / correction1
    return weights - rate * quotient, paddle.concat([mean, square], axis=1)
