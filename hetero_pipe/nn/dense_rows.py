"""DenseRows: the dense part of a model as rows of two tables, and back.

What an optimizer moves is in one table, with that optimizer; all else that a model
keeps in float32, such as the statistics of a BatchNorm, is in the other::

    dense-...        parameters        gradients, as Paddle has them      w -= rate * g ...
    statistics-...   buffers, frozen   what they were less what they are  s -= 1 * (was - is)

Each is all its tensors, one after another, cut into rows of `DIM`.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.errors import ConfigError
from hetero_pipe.nn.optimizer import check_optimizer, scheduler_of
from ps_server.keys import hash_integers, slot_seed
from ps_server.spec import SGD, Adagrad, Adam, Constant, Optimizer, TableSpec

__all__ = ["DIM", "DenseRows"]

DIM = 1024
"""Weights of a row: 4 KiB, so that what a row costs beside them is little."""

Rows = NDArray[np.float32]

ADD = SGD(1.0)  # of a table to which differences are pushed


class DenseRows:
    """The dense part of a model as rows, which servers train. Used by one thread at a time.

    Names of the tables tell models apart whose tensors differ.

    Args:
        model: A `paddle.nn.Layer`.
        optimizer: Paddle's, of which servers have a like one; None trains nothing.

    Attributes:
        specs: Of the tables; the first has what is trained.
        keys: Of each table, `[n]`.

    Raises:
        ConfigError: Servers cannot train it so.
    """

    def __init__(self, model: paddle.nn.Layer, optimizer: Any) -> None:
        check_optimizer(model, optimizer)
        trained = {p.name for p in _listed(optimizer) if not p.stop_gradient}
        parameters = dict(model.named_parameters())
        moved = {path: p for path, p in parameters.items() if p.name in trained}
        others = {path: p for path, p in parameters.items() if p.name not in trained}
        others |= dict(model.named_buffers())
        kept = {path: each for path, each in others.items() if each.dtype == paddle.float32}
        for path, parameter in moved.items():
            _check_parameter(path, parameter)
        told = [(path, list(each.shape)) for path, each in [*moved.items(), *kept.items()]]
        digest = f"{zlib.crc32(json.dumps(told).encode()):08x}"
        self._moved, self._kept = list(moved.values()), list(kept.values())
        dense, statistics = f"dense-{digest}", f"statistics-{digest}"
        self.specs = (
            TableSpec(dense, DIM, optimizer_of(optimizer), Constant(0.0)),
            TableSpec(statistics, DIM, ADD, Constant(0.0)),
        )
        self._tensors = {dense: self._moved, statistics: self._kept}
        self.keys = {name: _keys_of(name, tensors) for name, tensors in self._tensors.items()}
        self._given: Mapping[str, Rows] = {}
        self._gradients: dict[str, Rows] = {}

    @property
    def run(self) -> str:
        """Name of the table whose batches are leased."""
        return self.specs[0].name

    def values(self) -> dict[str, Rows]:
        """Returns what the model has now, `[n, DIM]` by table."""
        return {name: _rows_of(tensors) for name, tensors in self._tensors.items()}

    def set(self, rows: Mapping[str, Rows]) -> None:
        """Gives the model these rows, `[n, DIM]` by table."""
        for name, tensors in self._tensors.items():
            flat, start = rows[name].reshape(-1), 0
            for tensor in tensors:
                size = int(np.prod(tensor.shape))
                tensor.set_value(flat[start : start + size].reshape(tensor.shape))
                start += size
        self._given = rows

    def take(self) -> None:
        """Notes the gradients of a step, before anything forgets them.

        Those of the rows that `set` was given last. A parameter that the loss does not
        depend on has one of zeros.

        Raises:
            ConfigError: One is sparse, as `paddle.nn.Embedding(sparse=True)` has it.
        """
        dense, statistics = (spec.name for spec in self.specs)
        self._gradients = {
            dense: _rows_of([_gradient_of(parameter) for parameter in self._moved]),
            statistics: self._given[statistics] - _rows_of(self._kept),
        }

    def taken(self) -> dict[str, Rows]:
        """Returns what `take` has noted, `[n, DIM]` by table."""
        return self._gradients


def optimizer_of(optimizer: Any) -> Optimizer:
    """Returns the optimizer of a table that moves rows as Paddle's moves parameters.

    Raises:
        ConfigError: Servers have none like it.
    """
    if optimizer is None:
        return ADD  # of no rows
    if scheduler_of(optimizer) is not None:
        raise _refused("one learning rate", f"a {type(scheduler_of(optimizer)).__name__}")
    for name, what in (
        ("regularization", "weight decay"),
        ("_grad_clip", "clipping of gradients"),
        ("_amsgrad", "amsgrad"),
        ("_multi_precision", "master weights"),
    ):
        if getattr(optimizer, name, None):
            raise _refused(f"no {what}", f"one with {name.lstrip('_')}")
    rate = float(optimizer.get_lr())
    kinds: dict[type, Any] = {
        paddle.optimizer.SGD: lambda o: SGD(rate),
        paddle.optimizer.Adagrad: lambda o: Adagrad(rate, o._epsilon, o.initial_accumulator_value),
        paddle.optimizer.Adam: lambda o: Adam(rate, o._beta1, o._beta2, o._epsilon),
    }
    # Not those that are derived from them, as AdamW is of Adam.
    make = kinds.get(type(optimizer))
    if make is None:
        raise _refused("Adam, Adagrad or SGD of paddle.optimizer", type(optimizer).__name__)
    try:
        found: Optimizer = make(optimizer)
    except (TypeError, ValueError) as error:  # a beta that is a tensor, say
        raise _refused("an optimizer of plain numbers", str(error)) from error
    return found


def _refused(wanted: str, found: str) -> ConfigError:
    return ConfigError(
        f"in mode elastic servers train the dense part, by {wanted}, got {found}; build the "
        "optimizer without, or use another mode"
    )


def _listed(optimizer: Any) -> Sequence[paddle.Tensor]:
    """Returns the parameters of an optimizer.

    Raises:
        ConfigError: They are in groups, each with settings of its own.
    """
    listed = [] if optimizer is None else optimizer._parameter_list or []
    if any(isinstance(each, dict) for each in listed):
        raise _refused("one set of settings", "groups of parameters")
    return list(listed)


def _check_parameter(path: str, parameter: paddle.Tensor) -> None:
    if parameter.dtype != paddle.float32:
        raise _refused("float32", f"{path} in {parameter.dtype}")
    if parameter.optimize_attr.get("learning_rate", 1.0) != 1.0 or parameter.regularizer:
        raise _refused("one learning rate and no weight decay", f"settings of its own of {path}")


def _gradient_of(parameter: paddle.Tensor) -> paddle.Tensor:
    if parameter.grad is None:
        return paddle.zeros_like(parameter)
    if parameter.grad.is_selected_rows():
        raise _refused(
            "dense gradients", "a sparse one, of paddle.nn.Embedding(sparse=True); use hp.Embedding"
        )
    return parameter.grad


def _num_rows(tensors: Sequence[paddle.Tensor]) -> int:
    return ceil(sum(int(np.prod(tensor.shape)) for tensor in tensors) / DIM)


def _keys_of(name: str, tensors: Sequence[paddle.Tensor]) -> NDArray[np.uint64]:
    return hash_integers(np.arange(_num_rows(tensors), dtype=np.int64), slot_seed(name))


def _rows_of(tensors: Sequence[paddle.Tensor]) -> Rows:
    """Returns tensors one after another as rows; the last one ends in zeros."""
    flat = np.zeros(_num_rows(tensors) * DIM, np.float32)
    start = 0
    for tensor in tensors:
        size = int(np.prod(tensor.shape))
        flat[start : start + size] = tensor.detach().numpy().reshape(-1)
        start += size
    return flat.reshape(-1, DIM)
