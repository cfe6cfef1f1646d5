"""The dense state of a model as plain arrays, and back."""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import paddle
from numpy.typing import NDArray

from hetero_pipe.errors import CheckpointError

__all__ = ["dense_state", "load_dense_state"]

MODEL, OPTIMIZER, SCHEDULER = "model/", "optimizer/", "scheduler"


def dense_state(model: paddle.nn.Layer, optimizer: Any) -> dict[str, NDArray[Any]]:
    """Returns parameters, buffers and optimizer state by name.

    Paddle names an optimizer's state by the order in which layers were made in
    the process (`linear_3.w_0_moment1_0`); here it is named by the parameter's
    path in the model (`optimizer/mlp.0.weight/moment1`), so that another
    process finds it.
    """
    state = {MODEL + path: _array(tensor) for path, tensor in model.state_dict().items()}
    if optimizer is None:
        return state
    paths = _paths(model)
    for name, value in optimizer.state_dict().items():
        if name == "LR_Scheduler":
            state[SCHEDULER] = np.array(json.dumps(value))
        elif isinstance(value, paddle.Tensor):
            path, accumulator = _split(name, paths)
            state[f"{OPTIMIZER}{path}/{accumulator}"] = _array(value)
    return state


def load_dense_state(
    model: paddle.nn.Layer, optimizer: Any, state: Mapping[str, NDArray[Any]]
) -> None:
    """Sets parameters, buffers and optimizer state to what `dense_state` returned.

    Raises:
        CheckpointError: The state is of another model, then nothing has
            changed, or of another optimizer.
    """
    saved = {n.removeprefix(MODEL): a for n, a in state.items() if n.startswith(MODEL)}
    _check_same(saved, {path: list(t.shape) for path, t in model.state_dict().items()})
    accumulators: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in state.items():
        if name.startswith(OPTIMIZER):
            path, accumulator = name.removeprefix(OPTIMIZER).rsplit("/", 1)
            accumulators.setdefault(path, {})[accumulator] = array
    if accumulators and optimizer is None:
        raise CheckpointError("the checkpoint holds optimizer state, got optimizer=None")
    if optimizer is not None:
        _load_optimizer(model, optimizer, accumulators)
        if SCHEDULER in state:
            optimizer.set_state_dict({"LR_Scheduler": json.loads(str(state[SCHEDULER]))})
    model.set_state_dict({path: paddle.to_tensor(array) for path, array in saved.items()})


def _load_optimizer(
    model: paddle.nn.Layer, optimizer: Any, accumulators: Mapping[str, Mapping[str, NDArray[Any]]]
) -> None:
    # Paddle makes the accumulators, and with them their names, at a parameter's first step. A step
    # without gradient makes them; what it does to the state is overwritten.
    by_path = dict(model.named_parameters())
    for path in accumulators:
        by_path[path].grad = paddle.zeros_like(by_path[path])
    optimizer.step()
    optimizer.clear_grad()
    paths = _paths(model)
    renamed = {}
    for name, value in optimizer.state_dict().items():
        if not isinstance(value, paddle.Tensor):
            continue
        path, accumulator = _split(name, paths)
        array = accumulators.get(path, {}).get(accumulator)
        if array is None:
            raise CheckpointError(
                f"the checkpoint must hold the state of {type(optimizer).__name__}, got none of "
                f"{accumulator} for {path}; build the optimizer as it was saved"
            )
        renamed[name] = paddle.to_tensor(array)
    optimizer.set_state_dict(renamed)


def _check_same(saved: Mapping[str, NDArray[Any]], built: Mapping[str, list[int]]) -> None:
    shapes = {path: list(array.shape) for path, array in saved.items()}
    for path in [*shapes, *built]:
        if shapes.get(path) != built.get(path):
            raise CheckpointError(
                f"the checkpoint must be of this model, got {path} with shape {shapes.get(path)} "
                f"saved and {built.get(path)} built; build the model as it was saved"
            )


def _paths(model: paddle.nn.Layer) -> dict[str, str]:
    """Returns the path in the model of each parameter by Paddle's name."""
    return {parameter.name: path for path, parameter in model.named_parameters()}


def _split(name: str, paths: Mapping[str, str]) -> tuple[str, str]:
    """Returns parameter path and accumulator of `linear_3.w_0_moment1_0`."""
    owner = max((p for p in paths if name.startswith(p + "_")), key=len)
    return paths[owner], re.sub(r"_\d+$", "", name[len(owner) + 1 :])


def _array(tensor: paddle.Tensor) -> NDArray[Any]:
    return np.asarray(tensor.detach().numpy())
